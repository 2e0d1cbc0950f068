"""Publish, query and follow Waku and SDS messages at store nodes, and take part in SDS channels."""
