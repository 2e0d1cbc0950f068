// A page that shows what @waku/sdk fetches: after `#` in its address stand the settings as JSON.
import { multiaddr } from "@multiformats/multiaddr";
import { createDecoder, createLightNode, Protocols } from "@waku/sdk";

const { address, cluster, shard, topic } = JSON.parse(decodeURIComponent(location.hash.slice(1)));
const state = document.getElementById("state");
const list = document.getElementById("messages");

async function show() {
  const node = await createLightNode({
    defaultBootstrap: false,
    networkConfig: { clusterId: cluster, shards: [shard] },
    // Unless told otherwise, the SDK dials secure WebSockets alone.
    libp2p: { filterMultiaddrs: false, hideWebSocketInfo: true },
  });
  await node.start();
  await node.dial(multiaddr(address), [Protocols.Store]);
  await node.waitForPeers([Protocols.Store], 30_000);
  const routing = { clusterId: cluster, shardId: shard, pubsubTopic: `/waku/2/rs/${cluster}/${shard}` };
  const options = { paginationForward: true, paginationLimit: 20 };
  for await (const page of node.store.queryGenerator([createDecoder(topic, routing)], options)) {
    for (const message of await Promise.all(page)) {
      const item = document.createElement("li");
      const time = document.createElement("time");
      time.textContent = message.timestamp.toISOString();
      item.append(time, new TextDecoder().decode(message.payload));
      list.append(item);
    }
  }
  state.textContent = `${list.children.length} messages from ${address}`;
}

show().catch((error) => {
  state.textContent = `failed: ${error}`;
});
