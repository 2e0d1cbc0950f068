"""The Reliable Channel API around a participant: large contents, requests, and their events."""
