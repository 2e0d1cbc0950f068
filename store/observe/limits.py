"""Bounds of logging and of the metrics listener, each with its unit in its name."""

from typing import Final

LOG_BURST_EVENTS: Final = 20
"""Warnings and errors of one kind that are written per interval; the rest is counted."""

LOG_INTERVAL_S: Final = 10.0

MAX_LOG_KINDS: Final = 512
"""Kinds of event that are counted apart; further ones share one count."""

MAX_LOG_TEXT_CHARS: Final = 2_000
"""A longer text in a log line is cut: what a remote side sends is not written without end."""

MAX_TRACEBACK_CHARS: Final = 20_000

MAX_UNFINISHED_REQUESTS: Final = 128
"""Connections of the metrics listener whose request is not complete; where one more comes, the
oldest of them is closed."""

MAX_HTTP_HEAD_BYTES: Final = 8 * 1024
"""The request line and the headers of one request."""

HTTP_HEAD_TIMEOUT_S: Final = 3.0
"""How long a request may take to arrive, from the connection on."""

HTTP_TIMEOUT_S: Final = 10.0
"""How long one request may take, from the connection to the end of the response."""

BEAT_INTERVAL_S: Final = 1.0
READY_SILENCE_S: Final = 10.0
LIVE_SILENCE_S: Final = 60.0
"""How often the node's event loop notes that it runs, and for how long it may not before the node
is neither ready nor, at last, alive."""

MAX_STATUS_REQUESTS: Final = 24
"""Requests about the status page under way; further ones are answered 503."""

MAX_METRICS_REQUESTS: Final = 8
"""Requests for metrics under way; further ones are answered 503."""

RATE_INTERVAL_S: Final = 2.0
RATE_SAMPLES: Final = 150
"""How often the status page's rates are taken, and how many are kept: five minutes of them."""

MAX_TRACED_MESSAGES: Final = 16_384
"""Messages whose trace is known, and bodies on their way to peers; the oldest make room."""

MAX_FRAME_TRACES: Final = 16
"""Traces that one frame or page goes on with; what is of others goes untraced."""

MAX_TRACE_FIELD_CHARS: Final = 512
"""Of a caller's `traceparent` or `tracestate`; a longer one is passed over."""

TRACE_FLUSH_S: Final = 3.0
"""How long the end of the node waits for a collector to take the last spans."""
