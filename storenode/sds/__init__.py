"""Scalable Data Sync: the codec of its messages, and a participant's channel. Pure."""
