"""Classes generated from the schemas in `proto/`; never edited by hand."""
