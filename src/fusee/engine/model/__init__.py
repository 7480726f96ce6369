"""The facts of runs: states, retry, outcome, sessions, limits. Pure: standard library and `values` only."""
