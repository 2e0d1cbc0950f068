"""The methods of ``Store`` from bytes to bytes: gRPC and Connect serve the same ones."""
