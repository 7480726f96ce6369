"""The command-line kit: options, output, exit codes."""
