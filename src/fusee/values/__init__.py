"""Plain value types that every package may use: durations, sizes, names. Standard library only."""
