"""Limits of the gateway. All that a client can make grow has one, and every wait has a deadline."""

from typing import Final

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""The time limit from the accepted connection to the agreed multiplexer."""

MAX_HANDSHAKES: Final = 256
"""Connections at a time whose handshake is not complete; with one more, the oldest is closed."""

IDLE_TIMEOUT_S: Final = 15 * 60.0
"""A connection on which nothing arrives for so long is closed; js-waku pings more often."""

REQUEST_TIMEOUT_S: Final = 10.0
"""The time from the opened stream to its complete request."""

FORWARD_TIMEOUT_S: Final = 30.0
"""A call of the node; one for which there is no place waits for it within this time too."""

SEND_TIMEOUT_S: Final = 30.0
"""The time within which the other side must receive a response, a pushed message or a frame."""

GOODBYE_TIMEOUT_S: Final = 1.0
"""The time within which a client must receive the last bytes of a connection."""

DRAIN_TIMEOUT_S: Final = 5.0
"""The time that open streams get when the gateway stops."""

FIRST_NODE_PAUSE_S: Final = 0.25
LONGEST_NODE_PAUSE_S: Final = 5.0
"""Pauses after a call of the node that failed, until it is made again."""

FORWARD_PLACES: Final = 64
"""Calls of the node under way at a time."""

CLIENT_QUERIES: Final = 16
"""The same for one address; further queries of it wait."""

MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024
"""Received on streams that are not done with it, of all connections."""

MAX_CLIENT_UNREAD_BYTES: Final = MAX_UNREAD_BYTES // 8
"""The same of one address."""

MAX_UNSENT_BYTES: Final = 128 * 1024 * 1024
"""Responses that clients have not yet taken, of all connections; past it, queries are refused."""

MAX_CLIENT_UNSENT_BYTES: Final = MAX_UNSENT_BYTES // 4
"""The same of one address."""

MAX_STREAM_UNREAD_BYTES: Final = 512 * 1024
"""Received and not yet used of one stream. mplex has no flow control: past it, it is reset."""

WINDOW_BYTES: Final = 256 * 1024
"""The receive window of a stream of yamux, as its specification begins with."""

MAX_FRAME_BYTES: Final = 1024 * 1024
"""The data of one frame of a multiplexer (mplex, "Implementation notes": 1 MiB)."""

CHUNK_BYTES: Final = 63 * 1024
"""The data of one frame that is sent: with its header it fits one message of Noise."""

MIN_CHUNK_BYTES: Final = 4 * 1024
"""The least data of such a frame, but for the last one. Clients grant more when half of a window,
which begins with 256 KiB, is used."""

READ_BYTES: Final = 64 * 1024
"""Read from a socket at a time."""

MAX_WEBSOCKET_FRAME_BYTES: Final = 128 * 1024
"""The size limit of a WebSocket frame: a message of Noise and its overhead."""

MAX_NEGOTIATION_BYTES: Final = 1024
"""The size limit of a negotiation's line (64 KiB in multistream-select, longer than any name)."""

MAX_PROPOSALS: Final = 16
"""Protocols that a client may propose one after the other."""

MAX_REFUSAL_BYTES: Final = 8 * 1024
"""A response of the node that may be a status only, and is parsed where there is another node."""

MAX_REQUEST_ID_BYTES: Final = 1024
"""A request ID that is repeated in a refusal; the node has the same limit."""

MAX_RELAYED_BYTES: Final = 150 * 1024 - 24
"""A message and its pubsub topic: with its frame, an RPC of gossipsub has at most 150 KiB
(64/WAKU2-NETWORK)."""

MAX_REQUEST_BYTES: Final = 256 * 1024
"""A request of light push, filter or metadata; one with a message that is too large by less is
refused by its status."""

MAX_REQUESTED_TOPICS: Final = 100
"""Content topics in a request of filter, as nwaku has it."""

MAX_SUBSCRIBER_CRITERIA: Final = 1_000
"""Pairs of topics that one connection may subscribe to, as nwaku has it."""

MAX_CLIENT_CRITERIA: Final = 20_000
"""The same of one address."""

MAX_CRITERIA: Final = 100_000
"""The same of all connections."""

SUBSCRIPTION_TIMEOUT_S: Final = 5 * 60.0
"""A subscription ends so long after the last request of its connection; js-waku pings every
minute."""

MAX_QUEUED_PUSHES: Final = 2_048
"""Messages that wait for one subscriber; further ones are dropped and counted."""

FEED_TIMEOUT_S: Final = 5.0
"""The time within which the node must answer when it is followed for the first subscriber."""

MAX_PUSH_AGE_NS: Final = 60 * 10**9
"""The age by its timestamp up to which a message is pushed: reconciliation brings older ones."""

MAX_RELAY_PEERS: Final = 100
"""Relay peers; those that are configured are always accepted."""

MAX_QUEUED_RPCS: Final = 4_096
"""RPCs that wait for one relay peer; further ones are dropped and counted."""

RELAY_BYTES_PER_S: Final = 4 * 1024 * 1024
MIN_RELAY_BYTES: Final = 2 * 1024
"""The rate at which a relay peer is read, and the least that an RPC counts; above it, its stream is
left unread for a moment."""

PEER_FRAMES_PER_S: Final = 50_000
"""Frames of the connection of a peer that the operator named, in place of `FRAMES_PER_S`."""

MAX_DELAYED_BYTES: Final = 32 * 1024 * 1024
"""New messages of the node that wait a moment before they are sent to the mesh."""

MAX_SPOOL_MESSAGES: Final = 20_000
MAX_SPOOL_BYTES: Final = 32 * 1024 * 1024
"""Relayed messages that wait for the node; beyond, the oldest are dropped and counted."""

MAX_BATCH_MESSAGES: Final = 1_000
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
"""The size limit of a request that publishes relayed messages."""

MAX_RPC_BYTES: Final = 150 * 1024
"""The size limit of an RPC of gossipsub, or of a message on a stream of transfer; nwaku closes the
stream after a larger one."""

MAX_RPC_ENTRIES: Final = 1_000
"""Entries of an RPC, of all kinds together; message IDs are counted by themselves."""

MAX_RPC_IDS: Final = 5_000
"""Message IDs of an RPC, of all kinds together."""

MAX_IWANT_PER_HEARTBEAT: Final = 500
"""Announced messages that one relay peer is asked for."""

MAX_IDONTWANT_PER_HEARTBEAT: Final = 1_000
"""Messages that one relay peer may refuse in advance."""

MAX_SEEN_MESSAGES: Final = 200_000
"""Relayed messages, by their ID and by their hash, that are recognised when they come again."""

MAX_CACHED_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Relayed messages of the last seconds, for peers that request them."""

MAX_PENALTIES: Final = 10_000
"""Peers whose faults are remembered."""

MAX_BACKOFFS: Final = 20_000
"""Pairs of a topic and a peer, also one that has left, for which a back-off is remembered."""

MAX_HANDSHAKE_PAYLOAD_BYTES: Final = 4096
"""The size limit of a client's payload in the handshake of Noise: a key and a signature."""

FRAMES_PER_S: Final = 5_000
"""Frames of one connection, and as many at once; a client that sends more is cut off."""

MAX_REMEMBERED_ADDRESSES: Final = 100_000
"""Client addresses whose rates are kept."""

SYNC_FRAME_TIMEOUT_S: Final = 30.0
"""The time within which a peer must answer a frame of reconciliation."""

SYNC_SESSION_TIMEOUT_S: Final = 5 * 60.0
"""The time limit of a session of reconciliation without its transfer."""

SYNC_SESSIONS: Final = 2
"""Sessions of reconciliation at a time; each holds about 80 MiB at most."""

MAX_SYNC_FRAMES: Final = 64
"""Frames that a peer may send in a session; nwaku needs about 16 for an hour."""

MAX_SYNC_FRAME_BYTES: Final = 4 * 1024 * 1024
"""The size limit of a frame of reconciliation: about 125,000 IDs."""

MAX_SYNC_IDS: Final = 125_000
"""IDs of a payload, and of the node's messages in a session: of more, the newest wait for a later
session."""

MAX_SYNC_RANGES: Final = 65_536
"""Ranges of a payload."""

MAX_SYNC_MESSAGES: Final = 100_000
MAX_SYNC_BYTES: Final = 256 * 1024 * 1024
"""Messages that are transferred after a session, each way; the rest waits for the next one."""

TRANSFER_BATCH: Final = 50
"""Messages that are read from the node at a time: at most about 8 MiB."""

MAX_UNSOLICITED_MESSAGES: Final = 1_000
"""Transferred messages that are dropped, for each session, before the stream is."""

MIN_SYNC_PAUSE_S: Final = 1.0
"""The shortest pause between a peer's sessions; nwaku begins one every five minutes."""
