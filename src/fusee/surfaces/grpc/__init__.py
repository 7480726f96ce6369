"""The gRPC kit."""
