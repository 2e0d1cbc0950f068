"""The vocabulary: Waku messages, their hashes, topics, limits and validation. Pure."""
