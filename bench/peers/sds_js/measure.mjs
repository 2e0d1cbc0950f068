// usage: node measure.mjs FILE CASE HISTORY
// FILE holds the packets of one conversation, each after its length as four bytes, big-endian.
// CASE is receive, shuffled or send, HISTORY the length of causal histories. Prints
// {"count": ..., "seconds": ...} of processor time as one line of JSON.
import { readFileSync } from "node:fs";
import { Message, MessageChannel } from "@waku/sds";

const [file, what, history] = process.argv.slice(2);
const OPTIONS = { causalHistorySize: Number(history), possibleAcksThreshold: 2, enableRepair: false };
const OUTSTANDING = { receive: 10, shuffled: 10, send: 1000 }[what];
const published = async () => ({ success: true });

function packets() {
  const data = readFileSync(file);
  const found = [];
  for (let at = 0; at < data.length; ) {
    const size = data.readUInt32BE(at);
    found.push(new Uint8Array(data.subarray(at + 4, at + 4 + size)));
    at += 4 + size;
  }
  return found;
}

async function send(channel, text) {
  channel.pushOutgoingMessage(new TextEncoder().encode(text), async (message) => {
    message.encode();
    return published();
  });
  await channel.processTasks();
}

const channel = new MessageChannel("bench", "receiver", OPTIONS);
for (let n = 0; n < OUTSTANDING; n++) await send(channel, `own ${n}`);
const given = packets();
const start = process.cpuUsage();
for (const [n, packet] of given.entries()) {
  if (what === "send") {
    await send(channel, `more ${n}`);
  } else {
    channel.pushIncomingMessage(Message.decode(packet), undefined);
    await channel.processTasks();
  }
}
while (what === "shuffled" && channel.sweepIncomingBuffer().length > 0);
const used = process.cpuUsage(start);
const seconds = (used.user + used.system) / 1e6;
console.log(JSON.stringify({ count: given.length, seconds }));
