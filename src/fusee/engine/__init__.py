"""The engine: runs, and nothing but runs. It knows no kind of work; kinds register with it."""
