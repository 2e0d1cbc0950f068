"""The gRPC edge: services, authentication and the translation of errors."""
