"""One file a noun; built-ins of `fusee` are put together in `fusee.cli.root`."""
