"""Kits for surfaces: REST, command line and gRPC. They know no noun."""
