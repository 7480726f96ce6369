"""HTTP calls: the executor, the request that a payload describes, and the guard on where it may go."""
