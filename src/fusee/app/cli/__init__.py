"""The command line: `fusee`.

Commands talk straight to the database. Nothing heavy is imported until a command needs it, so that
`fusee --help` returns at once.
"""

from fusee.app.cli.root import cli, main

__all__ = ["cli", "main"]
