"""A client of the gRPC services, for the command line and for tests."""
