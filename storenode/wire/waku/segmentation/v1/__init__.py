"""Generated from the schemas of the same name in `proto/`."""
