"""A chat in the terminal, over an SDS channel."""
