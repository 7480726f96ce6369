"""`fusee demo`: five things that go wrong elsewhere, live, in a temporary folder."""
