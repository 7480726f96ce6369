"""gRPC: a thin skin over the operations, as REST is."""
