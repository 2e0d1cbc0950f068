"""Scalable Data Sync: the codec of its messages. Pure."""
