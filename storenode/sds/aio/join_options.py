"""The options of joining a channel, and the parameters of a participant."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from types import NoneType
from typing import Self, TypedDict

from storenode.common.errors import ArgumentError
from storenode.connection.arguments import check_content_topic, check_kind, check_text
from storenode.message.topics import DEFAULT_PUBSUB_TOPIC
from storenode.sds.aio.cipher import Cipher, Clear
from storenode.sds.aio.signing import Signer
from storenode.sds.aio.state import SqliteState
from storenode.sds.aio.transport import Route
from storenode.sds.config import ChannelConfig
from storenode.sds.log import Rng


class JoinOptions(TypedDict, total=False):
    """The keyword arguments of joining a channel, all of which may be left out.

    - ``pubsub_topic``, ``content_topic``: the same for all participants; a content topic of
      ``/sds/1/CHANNEL/proto`` if not given.
    - ``state``: path of a file from which the participant continues. Each participant has its own.
      None: nothing outlives the participant.
    - ``config``: with the same IDs; all participants need filters of one size.
    - ``cipher``, ``signer``: see `storenode.sds.aio.cipher` and `storenode.sds.aio.signing`.
    - ``clock`` (Unix time in nanoseconds) and ``rng`` are for tests.
    """

    pubsub_topic: str
    content_topic: str | None
    state: str | Path | None
    config: ChannelConfig | None
    cipher: Cipher | None
    signer: Signer | None
    clock: Callable[[], int]
    rng: Rng | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """The parameters of a participant: its channel, route, state, and the means that it uses."""

    state: SqliteState
    route: Route
    config: ChannelConfig
    cipher: Cipher = field(default_factory=Clear)
    signer: Signer | None = None
    clock: Callable[[], int] = time.time_ns
    rng: Rng = field(default_factory=SystemRandom)

    @classmethod
    def of(cls, channel_id: str, sender_id: str, options: JoinOptions) -> Self:
        """Read the arguments of joining.

        Raises:
            ArgumentError: an ID, an option or the configuration is none that can be used.
            StateError: the state is a URL.
        """
        for name in options.keys() - JoinOptions.__annotations__.keys():
            raise ArgumentError(
                f"{name} is no option of a channel: {', '.join(JoinOptions.__annotations__)} are."
            )
        config, state = options.get("config"), options.get("state")
        pubsub_topic = options.get("pubsub_topic", DEFAULT_PUBSUB_TOPIC)
        config = ChannelConfig(channel_id, sender_id) if config is None else config
        check_kind("config", config, ChannelConfig, "a ChannelConfig")
        check_kind("state", state, (str, Path, NoneType), "the path of a file")
        check_text("pubsub topic", pubsub_topic)
        if (config.channel_id, config.sender_id) != (channel_id, sender_id):
            raise ArgumentError("config is of another channel or sender than the one to join as")
        for name, methods in (
            ("cipher", ("whole", "seal", "open")),
            ("signer", ("sign", "verify")),
        ):
            given: object = options.get(name)
            if given is not None and not all(hasattr(given, each) for each in methods):
                raise ArgumentError(f"{name} is {given!r}: it needs {', '.join(methods)}")
        topic = options.get("content_topic")
        if topic is None:
            topic = f"/sds/1/{channel_id}/proto"
        else:
            check_content_topic(topic)
        return cls(
            state=SqliteState(state, channel_id, sender_id),
            route=Route(channel_id, pubsub_topic, topic),
            config=config,
            cipher=options.get("cipher") or Clear(),
            signer=options.get("signer"),
            clock=options.get("clock", time.time_ns),
            rng=options.get("rng") or SystemRandom(),
        )
