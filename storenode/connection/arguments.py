"""Checks of arguments that several calls take."""

from __future__ import annotations

import logging
from functools import lru_cache

from storenode.common.errors import ArgumentError
from storenode.message.limits import MAX_CACHED_TOPICS
from storenode.message.topics import is_content_topic

_log = logging.getLogger("storenode")


def check_bytes(name: str, value: object, hint: str) -> None:
    """Check an argument that is bytes; ``hint`` says how to make them of a text.

    Raises:
        ArgumentError: It is something else.
    """
    if not isinstance(value, bytes):
        advice = f": use {hint}" if isinstance(value, str) else ""
        raise ArgumentError(f"The {name} is {type(value).__name__}, not bytes{advice}.")


@lru_cache(maxsize=MAX_CACHED_TOPICS)
def check_content_topic(topic: object) -> None:
    """Check a content topic; log a warning, once, if other Waku nodes cannot place it.

    Raises:
        ArgumentError: It is no text.
    """
    if not isinstance(topic, str):
        raise ArgumentError(f"The content topic {topic!r} is {type(topic).__name__}, not str.")
    if topic and not is_content_topic(topic):
        _log.warning(
            "The content topic %r is not of the form /APPLICATION/VERSION/NAME/ENCODING, by which "
            "Waku nodes choose a shard: check that it is the one meant.",
            topic,
        )
