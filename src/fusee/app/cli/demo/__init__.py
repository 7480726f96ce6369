"""`fusee demo`: six things that go wrong elsewhere, live, in a temporary folder."""
