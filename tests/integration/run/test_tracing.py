"""A trace from a client's publish to followers of another node; and collectors that fail."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from store.observe import MAX_FRAME_TRACES
from storenode.client.messages import hash_of, new_request
from storenode.client.node import NodeClient, connect
from storenode.client.types import PublishResult, WakuMessageAndTopic
from tests.integration.run.helpers import get
from tests.support.collector import Collector, Exported, collecting
from tests.support.fleet import exchanging, made
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually
from tests.support.postgres import PostgresServer

PUBLISH = "storenode.v1.Store/Publish"
STREAM = "storenode.v1.Store/PublishStream"
PATIENCE_S = 120.0
FAST = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@pytest.fixture(scope="module")
def tracer() -> trace.Tracer:
    """Return the tracer of an application that has one; OpenTelemetry takes its provider once."""
    provider = TracerProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(provider)
    return trace.get_tracer("application")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture
def databases(postgres: PostgresServer, template_database: str) -> Iterator[list[str]]:
    """Yield URLs of two empty stores."""
    names = [postgres.copy_store(template_database) for _ in range(2)]
    yield [postgres.url(name) for name in names]
    for name in names:
        postgres.drop_database(name)


@asynccontextmanager
async def following(client: NodeClient, wanted: set[bytes]) -> AsyncIterator[asyncio.Task[None]]:
    """Yield a follower that stands at the head, and a task that ends when it has received these."""
    live = asyncio.Event()

    async def follow() -> None:
        missing = set(wanted)
        async with aclosing(client.follow()) as pages:
            async for page in pages:
                live.set()
                missing -= {each.message_hash for each in page.messages}
                if not missing:
                    return

    task = asyncio.create_task(follow())
    async with asyncio.timeout(PATIENCE_S):
        await live.wait()
        yield task
        await task


def one(spans: Sequence[Exported], name: str, node: NodeProcess) -> Exported:
    (found,) = [span for span in spans if span.name == name and span.node == node.ready["node_id"]]
    return found


async def test_a_publish_is_one_trace_through_two_nodes(
    tmp_path: Path, collector: Collector, databases: list[str], tracer: trace.Tracer
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **FAST}
    tracing = ("--tracing", "on", "--sync-interval", "0")
    with (
        running_node(tmp_path / "a", *tracing, database_url=databases[0], **environment) as first,
        running_node(
            tmp_path / "b", *tracing, "--peer", first.peer, database_url=databases[1], **environment
        ) as second,
    ):
        exchanging(first, 1)
        (message,) = made(1, time.time_ns(), span_s=1)
        digest = hash_of(message)
        async with (
            connect(first.listen) as publisher,
            connect(first.listen) as near,
            connect(second.listen) as far,
            following(near, {digest}) as at_first,
            following(far, {digest}) as at_second,
        ):
            with tracer.start_as_current_span("the application's own") as own:
                await publisher.publish([message], min_confirms=1)
            await asyncio.gather(at_first, at_second)
        trace_id = f"{own.get_span_context().trace_id:032x}"
        expected = [
            (False, "storenode.commit"),
            (False, "storenode.deliver"),
            (False, "storenode.gossip.receive"),
            (False, "storenode.wait"),
            (True, "storenode.commit"),
            (True, "storenode.confirm"),
            (True, "storenode.deliver"),
            (True, "storenode.gossip.push"),
            (True, PUBLISH),
            (True, "storenode.wait"),
        ]
        spans = collector.wait(
            lambda found: sum(span.trace == trace_id for span in found) >= len(expected)
        )
        ours = [span for span in spans if span.trace == trace_id]
        assert sorted((span.node == first.ready["node_id"], span.name) for span in ours) == expected
        server = one(ours, PUBLISH, first)
        commit = one(ours, "storenode.commit", first)
        wait = one(ours, "storenode.wait", first)
        push = one(ours, "storenode.gossip.push", first)
        receive = one(ours, "storenode.gossip.receive", second)
        far_commit = one(ours, "storenode.commit", second)
        assert server.parent not in {"", f"{own.get_span_context().span_id:016x}"}, (
            "the client's own span is between"
        )
        assert wait.parent == commit.parent == server.span
        assert (trace_id, server.span) in commit.links
        assert (trace_id, commit.span) in wait.links
        assert one(ours, "storenode.deliver", first).parent == commit.span
        assert push.parent == commit.span
        assert push.attributes["storenode.peer"] == second.ready["node_id"]
        assert receive.parent == push.span
        assert far_commit.parent == receive.span
        assert one(ours, "storenode.deliver", second).parent == far_commit.span
        assert commit.attributes["storenode.messages"] == 1
        assert commit.attributes["storenode.source"] == "client"
        assert far_commit.attributes["storenode.source"] == "gossip"


async def test_calls_that_share_a_transaction_keep_their_own_traces(
    tmp_path: Path, collector: Collector, database_url: str, tracer: trace.Tracer
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **FAST}
    count = MAX_FRAME_TRACES
    with running_node(
        tmp_path / "a", "--tracing", "on", database_url=database_url, **environment
    ) as node:
        messages = made(count, time.time_ns(), span_s=1)
        async with (
            connect(node.listen) as client,
            following(client, {hash_of(each) for each in messages}),
        ):
            await asyncio.gather(*(client.publish([each]) for each in messages))
        spans = collector.wait(
            lambda found: (
                sum(span.name == PUBLISH for span in found) == count
                and len({span.trace for span in found if span.name == "storenode.deliver"}) == count
            )
        )
        await check_batches_of_a_stream(node, collector, tracer)
    servers = {span.span: span for span in spans if span.name == PUBLISH}
    commits = {span.span: span for span in spans if span.name == "storenode.commit"}
    assert len({span.trace for span in servers.values()}) == count
    assert any(len(commit.links) > 1 for commit in commits.values()), "none was shared"
    linked = [link[1] for commit in commits.values() for link in commit.links]
    assert sorted(linked) == sorted(servers)
    for wait in (span for span in spans if span.name == "storenode.wait"):
        assert wait.trace == servers[wait.parent].trace
        ((_, commit_id),) = wait.links
        assert wait.parent in {link[1] for link in commits[commit_id].links}
    for delivery in (span for span in spans if span.name == "storenode.deliver"):
        parent = servers.get(delivery.parent) or commits[delivery.parent]
        assert parent.trace == delivery.trace


async def check_batches_of_a_stream(
    node: NodeProcess, collector: Collector, tracer: trace.Tracer
) -> None:
    """Check that the batches of a stream are parts of its call."""
    before = {span.span for span in collector.wait(lambda _found: True)}
    messages = made(3, time.time_ns(), span_s=1, seed=7)
    async with connect(node.listen) as client:
        with tracer.start_as_current_span("the application's own") as own:
            requests = [new_request([each]) for each in messages]
            async for _ in client.publish_stream(requests):
                pass
    spans = collector.wait(lambda found: any(span.name == STREAM for span in found))
    trace_id = f"{own.get_span_context().trace_id:032x}"
    spans = [span for span in spans if span.span not in before]
    assert {span.trace for span in spans} == {trace_id}
    call = one(spans, STREAM, node)
    assert call.parent == f"{own.get_span_context().span_id:016x}"
    parts = {span.span for span in spans if span.name == "storenode.request"}
    assert len(parts) == len(messages)
    assert {span.parent for span in spans if span.span in parts} == {call.span}
    assert {span.parent for span in spans if span.name == "storenode.wait"} == parts
    assert {
        link[1] for span in spans if span.name == "storenode.commit" for link in span.links
    } == (parts)


async def publish_many(node: NodeProcess, messages: Sequence[WakuMessageAndTopic]) -> None:
    async with connect(node.listen) as client:
        for each in messages:
            (result,) = await client.publish([each])
            assert result.outcome == PublishResult.STORED


def spans_counted(node: NodeProcess, outcome: str) -> float:
    lines = get(node.metrics, "/metrics")[1].splitlines()
    prefix = f'storenode_trace_spans_total{{outcome="{outcome}"}} '
    return next((float(line[len(prefix) :]) for line in lines if line.startswith(prefix)), 0.0)


async def test_a_collector_that_hangs_costs_spans_and_nothing_else(
    tmp_path: Path, database_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_BSP_MAX_QUEUE_SIZE": "16",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
            **FAST,
        }
        with running_node(
            tmp_path / "a", "--tracing", "on", database_url=database_url, **environment
        ) as node:
            seed = 0
            while not spans_counted(node, "dropped"):
                seed += 1
                await publish_many(node, made(60, time.time_ns(), span_s=1, seed=seed))
            eventually(lambda: spans_counted(node, "failed") > 0)
            assert node.terminate() == 0
        assert "Traceback" not in node.log()
