"""`python -m fusee`: the command line, where the environment's programs are not on the path."""

from fusee.app.cli.root import main

if __name__ == "__main__":
    main()
