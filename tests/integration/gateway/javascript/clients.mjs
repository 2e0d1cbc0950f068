// Answers lines of JSON: `node clients.mjs waku|libp2p|channel|light|talk|relay MULTIADDR SETTINGS`, a query a line, an answer a line.
//
// waku: @waku/sdk asks as an application would; an answer has the pages, each with the hashes of its messages.
// libp2p: js-libp2p over TCP with yamux; a query is the bytes of a request in base64, and so is the answer.
// light: @waku/sdk pushes messages (light push) and subscribes to them (filter).
// talk: a ReliableChannel of @waku/sdk that sends and receives live.
// relay: the gossipsub of js-libp2p as a relay peer; messages are base64.
// channel: a ReliableChannel of @waku/sdk; each line is answered with the next message that it received.
import { createHash } from "node:crypto";
import { createInterface } from "node:readline";
import { gossipsub } from "@chainsafe/libp2p-gossipsub";
import { noise } from "@chainsafe/libp2p-noise";
import { yamux } from "@chainsafe/libp2p-yamux";
import { identify } from "@libp2p/identify";
import { ping } from "@libp2p/ping";
import { tcp } from "@libp2p/tcp";
import { multiaddr } from "@multiformats/multiaddr";
import { createDecoder, createEncoder, createLightNode, Protocols, ReliableChannel } from "@waku/sdk";
import * as lp from "it-length-prefixed";
import { pipe } from "it-pipe";
import { createLibp2p } from "libp2p";

const STORE_QUERY = "/vac/waku/store-query/3.0.0";
const fromHex = (text) => Uint8Array.from(Buffer.from(text, "hex"));

async function lightNode({ cluster, shard }) {
  const node = await createLightNode({
    defaultBootstrap: false,
    networkConfig: { clusterId: cluster, shards: [shard] },
    libp2p: { filterMultiaddrs: false, hideWebSocketInfo: true },
  });
  await node.start();
  const routing = { clusterId: cluster, shardId: shard, pubsubTopic: `/waku/2/rs/${cluster}/${shard}` };
  return { node, routing };
}

async function channelClient(address, settings) {
  const { node, routing } = await lightNode(settings);
  const received = [];
  let arrived = () => {};
  const channel = await ReliableChannel.create(
    node,
    settings.channel,
    "javascript",
    createEncoder({ contentTopic: settings.topic, routingInfo: routing }),
    createDecoder(settings.topic, routing),
    { retrieveFrequencyMs: 200, processTaskMinElapseMs: 50, syncMinIntervalMs: 0, autoStart: false },
  );
  channel.addEventListener("message-received", ({ detail }) => {
    received.push(detail);
    arrived();
  });
  // There is no peer for Filter: all that the channel receives comes from the store.
  await channel.start();
  await node.dial(multiaddr(address), [Protocols.Store]);

  async function ask() {
    while (!received.length) await new Promise((resolve) => (arrived = resolve));
    const { hashStr, payload } = received.shift();
    return { hash: hashStr, text: Buffer.from(payload).toString() };
  }

  return { ask, stop: () => node.stop() };
}

async function lightClient(address, settings) {
  const { node, routing } = await lightNode(settings);
  const protocols = [Protocols.Store, Protocols.LightPush, Protocols.Filter];
  await node.dial(multiaddr(address), protocols);
  await node.waitForPeers(protocols, 30_000);
  const received = [];
  let arrived = () => {};
  const decoder = createDecoder(settings.topic, routing);

  async function ask({ subscribe, unsubscribe, push, ephemeral, legacy, stored }) {
    if (subscribe) {
      const done = await node.filter.subscribe([decoder], (message) => {
        received.push(message);
        arrived();
      });
      return { done };
    }
    if (unsubscribe) return { done: await node.filter.unsubscribe([decoder]) };
    if (push !== undefined) {
      const encoder = createEncoder({ contentTopic: settings.topic, routingInfo: routing, ephemeral: !!ephemeral });
      const { successes, failures } = await node.lightPush.send(
        encoder,
        { payload: Buffer.from(push) },
        { useLegacy: !!legacy, autoRetry: false },
      );
      return { successes: successes.length, failures: failures.map(({ error }) => String(error)) };
    }
    if (stored) {
      const found = [];
      for await (const page of node.store.queryGenerator([decoder])) {
        for (const message of await Promise.all(page)) found.push(Buffer.from(message.payload).toString());
      }
      return { stored: found };
    }
    while (!received.length) await new Promise((resolve) => (arrived = resolve));
    return { received: Buffer.from(received.shift().payload).toString() };
  }

  return { ask, stop: () => node.stop() };
}

async function talkClient(address, settings) {
  const { node, routing } = await lightNode(settings);
  const received = [];
  const acknowledged = new Set();
  let arrived = () => {};
  const wake = (note) => ({ detail }) => {
    note(detail);
    arrived();
  };
  const protocols = [Protocols.Store, Protocols.LightPush, Protocols.Filter];
  await node.dial(multiaddr(address), protocols);
  await node.waitForPeers(protocols, 30_000);
  const channel = await ReliableChannel.create(
    node,
    settings.channel,
    settings.sender,
    createEncoder({ contentTopic: settings.topic, routingInfo: routing }),
    createDecoder(settings.topic, routing),
    { retrieveFrequencyMs: 500, processTaskMinElapseMs: 50, syncMinIntervalMs: 500 },
  );
  // The SDK reports a message of its own, too, if filter brings it back before the push is answered.
  const isOwn = (text) => text.startsWith(settings.sender);
  channel.addEventListener(
    "message-received",
    wake(({ payload }) => {
      const text = Buffer.from(payload).toString();
      if (!isOwn(text)) received.push(text);
    }),
  );
  channel.addEventListener("message-acknowledged", wake((id) => acknowledged.add(id)));

  async function ask({ send, wait, acknowledge }) {
    if (send !== undefined) return { id: channel.send(Buffer.from(send)) };
    const done = () => (acknowledge ? acknowledged.size >= acknowledge : received.length >= wait);
    while (!done()) await new Promise((resolve) => (arrived = resolve));
    return { received: [...received].sort() };
  }

  return { ask, stop: () => node.stop() };
}

async function wakuClient(address, settings) {
  const { node, routing } = await lightNode(settings);
  await node.dial(multiaddr(address), [Protocols.Store]);
  await node.waitForPeers([Protocols.Store], 30_000);

  async function ask({ topics, start, end, hashes, forward, limit, cursor, most }) {
    const decoders = topics.map((topic) => createDecoder(topic, routing));
    const options = { paginationForward: forward, paginationLimit: limit };
    if (start !== null) options.timeStart = new Date(start);
    if (end !== null) options.timeEnd = new Date(end);
    if (hashes !== null) options.messageHashes = hashes.map(fromHex);
    if (cursor !== null) options.paginationCursor = fromHex(cursor);
    const pages = [];
    for await (const page of node.store.queryGenerator(decoders, options)) {
      pages.push((await Promise.all(page)).map((message) => message.hashStr));
      if (pages.length === most) break;
    }
    return { pages };
  }

  return { ask, stop: () => node.stop() };
}

async function relayClient(address, { topic, listen }) {
  const make = gossipsub({
    globalSignaturePolicy: "StrictNoSign",
    msgIdFn: ({ data }) => createHash("sha256").update(data).digest(),
    allowPublishToZeroTopicPeers: true,
  });
  const pubsub = (components) => Object.assign(make(components), { multicodecs: ["/vac/waku/relay/2.0.0"] });
  const node = await createLibp2p({
    addresses: { listen: listen ? ["/ip4/127.0.0.1/tcp/0"] : [] },
    transports: [tcp()],
    streamMuxers: [yamux()],
    connectionEncrypters: [noise()],
    services: { identify: identify(), pubsub },
  });
  const { pubsub: relay } = node.services;
  const received = [];
  let arrived = () => {};
  relay.addEventListener("message", ({ detail }) => {
    received.push(Buffer.from(detail.data).toString("base64"));
    arrived();
  });
  relay.subscribe(topic);
  if (address) await node.dial(multiaddr(address));

  async function ask({ addresses, subscribers, mesh, publish }) {
    if (addresses) return { addresses: node.getMultiaddrs().map(String) };
    if (subscribers) return { subscribers: relay.getSubscribers(topic).length };
    if (mesh) return { mesh: relay.getMeshPeers(topic).length };
    if (publish !== undefined) {
      const { recipients } = await relay.publish(topic, Buffer.from(publish, "base64"));
      return { recipients: recipients.length };
    }
    while (!received.length) await new Promise((resolve) => (arrived = resolve));
    return { received: received.shift() };
  }

  return { ask, stop: () => node.stop() };
}

async function libp2pClient(address) {
  const node = await createLibp2p({
    transports: [tcp()],
    streamMuxers: [yamux()],
    connectionEncrypters: [noise()],
    services: { identify: identify(), ping: ping() },
  });
  const target = multiaddr(address);
  const connection = await node.dial(target);

  async function ask({ request, pings, identity }) {
    if (pings) return { milliseconds: await node.services.ping.ping(target) };
    if (identity) {
      const { protocols, agentVersion, listenAddrs } = await node.services.identify.identify(connection);
      return { protocols, agentVersion, addresses: listenAddrs.map(String) };
    }
    const stream = await connection.newStream(STORE_QUERY);
    const pieces = await pipe([Buffer.from(request, "base64")], lp.encode, stream, lp.decode, async (source) => {
      const all = [];
      for await (const piece of source) all.push(piece.subarray());
      return all;
    });
    return { answer: Buffer.concat(pieces).toString("base64") };
  }

  return { ask, stop: () => node.stop() };
}

const [kind, address, settings] = process.argv.slice(2);
const kinds = { waku: wakuClient, libp2p: libp2pClient, channel: channelClient, light: lightClient, talk: talkClient, relay: relayClient };
const make = kinds[kind];
const client = await make(address, JSON.parse(settings ?? "null"));
for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = await client.ask(JSON.parse(line));
  } catch (error) {
    answer = { error: String(error.message) };
  }
  console.log(JSON.stringify(answer));
}
await client.stop();
process.exit(0);
