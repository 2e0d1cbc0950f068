// Participants of the published JavaScript channel. Each line of standard input is a request, of
// standard output its answer; both are JSON, and payloads base64. The clock is the request's.
//
//   {now, who, join: {history}}      {now, who, send: text}
//   {now, who, receive: payload, hint}      {now, who, tick: {sync}}
//
// The answer: {sent: [payload], missing: [[id, hint]], log: [id], acknowledged: [id], errors: [text]}
import { createInterface } from "node:readline";
import { Message, MessageChannel, MessageChannelEvent } from "@waku/sds";

let now = 0;
Date.now = () => now;

const people = new Map();
const base64 = (bytes) => Buffer.from(bytes).toString("base64");
const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));

function join(name, { history }) {
  const log = [];
  const repairConfig = { tMin: 30000, tMax: 120000, numResponseGroups: 1 };
  const options = { causalHistorySize: history, possibleAcksThreshold: 2, repairConfig };
  const channel = new MessageChannel("room", name, options, log);
  const person = { channel, log, acknowledged: [], errors: [] };
  channel.addEventListener(MessageChannelEvent.OutMessageAcknowledged, ({ detail }) => {
    person.acknowledged.push(detail);
  });
  channel.addEventListener(MessageChannelEvent.ErrorTask, ({ detail }) => {
    person.errors.push(String(detail.error));
  });
  people.set(name, person);
}

async function answer(request) {
  now = request.now;
  if (request.join) {
    join(request.who, request.join);
  }
  const { channel, log, acknowledged, errors } = people.get(request.who);
  const sent = [];
  const publish = (message) => {
    sent.push(base64(message.encode()));
    return true;
  };
  const say = (content) =>
    channel.pushOutgoingMessage(content, async (message) => ({ success: publish(message) }));
  if (request.send) {
    say(new TextEncoder().encode(request.send));
  }
  if (request.receive) {
    const hint = request.hint ? bytes(request.hint) : undefined;
    channel.pushIncomingMessage(Message.decode(bytes(request.receive)), hint);
  }
  await channel.processTasks();
  const missing = channel.sweepIncomingBuffer();
  if (request.tick) {
    const { unacknowledged } = channel.sweepOutgoingBuffer();
    // Sent again as it is: to push it once more would put it into the log twice.
    unacknowledged.forEach(publish);
    await channel.sweepRepairIncomingBuffer(async (message) => publish(message));
    if (request.tick.sync) {
      await channel.pushOutgoingSyncMessage(async (message) => publish(message));
    }
  }
  return {
    sent,
    missing: missing.map(({ messageId, retrievalHint }) => [
      messageId,
      retrievalHint ? base64(retrievalHint) : "",
    ]),
    log: log.map(({ messageId }) => messageId),
    acknowledged: acknowledged.splice(0),
    errors: errors.splice(0),
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
}
