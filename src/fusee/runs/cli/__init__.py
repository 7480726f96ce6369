"""The commands `fusee run`, `fusee queue` and `fusee worker`."""
