// The history of a topic or an SDS channel, followed live, and what is missing of it.
//
// A follower is begun first and the history read when it is live, so that nothing falls between the
// two; a message that comes by both ways is shown once, by its hash. Whatever a message holds is text.

const PAGE = 100;
const MOST_ROWS = 5000;
const MOST_CHANNELS = 200; // to choose from
const MOST_LOOKED_UP = 1000; // parents in one request
const MOST_LOOK_UPS = 20; // requests in a minute, whatever others publish
const MOST_NAMED = 1000; // missing messages in the list
const MINUTE_MS = 60_000;

const find = id => document.getElementById(id);
const form = find("ask");
const channels = form.elements.channel;

const shown = new Map(); // hash -> message
const claims = new Map(); // channel and ID -> the shown messages that claim it
const parentsKnown = new Map(); // channel and ID of a parent -> whether it is missing, and since when that is known
const lookUps = []; // when the last requests for parents were made
let asked = {}, feed = null, cursor = null, round = 0, checking = null, isStale = false;

// What is asked of the node

const headers = () => asked.token ? { authorization: `Bearer ${asked.token}` } : {};

function parameters(more) {
  const found = new URLSearchParams(more);
  for (const name of ["contentTopics", "pubsubTopic"]) if (asked[name]) found.append(name, asked[name]);
  return found;
}

async function answer(response) {
  if (response.ok) return response;
  const text = await response.text();
  let sentence = text;
  try { sentence = JSON.parse(text).error.message; } catch { /* a proxy's own words */ }
  throw new Error(sentence);
}

async function readPage() {
  const more = { limit: PAGE, ...(cursor ? { cursor } : {}) };
  const response = await answer(await fetch(`api/v1/messages?${parameters(more)}`, { headers: headers() }));
  return response.json();
}

async function lookUp(channelId, ids) {
  const response = await answer(await fetch("api/v1/sds/messages", {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify({ channelId, entries: ids.map(messageId => ({ messageId })) }),
  }));
  const lines = (await response.text()).split("\n").filter(Boolean).map(line => JSON.parse(line));
  return lines.flatMap(line => line.missing ? [line.missing.messageId] : []);
}

// SDS messages: protobuf's wire format, as far as the page shows it

function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      if (at >= bytes.length || shift > 63n) throw new RangeError("cut off");
      const byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const tag = Number(varint());
    if ((tag & 7) === 0) yield [tag >> 3, varint()];
    else if ((tag & 7) === 2) {
      const size = Number(varint());
      if (at + size > bytes.length) throw new RangeError("cut off");
      yield [tag >> 3, bytes.subarray(at, at += size)];
    } else throw new RangeError("another type");
  }
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function parentOf(bytes) {
  try {
    for (const [part, text] of fields(bytes)) if (part === 1) return utf8.decode(text);
  } catch { /* the older revision, whose entries are the IDs themselves */ }
  return utf8.decode(bytes);
}

function sdsOf(bytes) {
  const found = { parents: [] };
  try {
    for (const [number, value] of fields(bytes)) {
      if (number === 1) found.sender = utf8.decode(value);
      if (number === 2) found.id = utf8.decode(value);
      if (number === 3) found.channel = utf8.decode(value);
      if (number === 10) found.lamport = value;
      if (number === 11) found.parents.push(parentOf(value));
      if (number === 20) found.content = value;
    }
  } catch { return null; }
  if (!found.id || !found.channel) return null;
  // As storenode.sds.proofs: no other ID can be a proof.
  found.isProven = found.id.length === 64 && Boolean(found.content?.length) && isProven(found);
  return found;
}

function joined(parts) {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + 4 + part.length, 0));
  let at = 0;
  for (const part of parts) {
    new DataView(bytes.buffer).setUint32(at, part.length);
    bytes.set(part, at + 4);
    at += 4 + part.length;
  }
  return bytes;
}

function isProven({ id, channel, sender, lamport, parents, content }) {
  const named = ["sds.v1", channel, sender ?? "", String(lamport ?? 0), ...parents, ""];
  const bytes = named.map(each => new TextEncoder().encode(each));
  if (sha256(joined([...bytes, content])) === id) return true;
  const begin = joined(bytes.slice(0, 1));
  return begin.some((byte, at) => content[at] !== byte) && sha256(content) === id;
}

// SHA-256 (FIPS 180-4): browsers have one of their own only for pages that come over TLS.

const PRIMES = [];
for (let n = 2; PRIMES.length < 64; n += 1) if (PRIMES.every(each => n % each)) PRIMES.push(n);
const fraction = root => ((root % 1) * 2 ** 32) | 0;
const FIRST = PRIMES.slice(0, 8).map(each => fraction(Math.sqrt(each)));
const ADDED = PRIMES.map(each => fraction(Math.cbrt(each)));
const turned = (word, by) => (word >>> by) | (word << (32 - by));

function sha256(bytes) {
  const padded = new Uint8Array(((bytes.length + 72) >> 6) << 6);
  padded.set(bytes);
  padded[bytes.length] = 128;
  const view = new DataView(padded.buffer), words = new Int32Array(64), state = Int32Array.from(FIRST);
  view.setBigUint64(padded.length - 8, BigInt(bytes.length) * 8n);
  for (let at = 0; at < padded.length; at += 64) {
    for (let i = 0; i < 64; i += 1) {
      if (i < 16) { words[i] = view.getInt32(at + 4 * i); continue; }
      const one = words[i - 15], two = words[i - 2];
      words[i] = words[i - 16] + (turned(one, 7) ^ turned(one, 18) ^ (one >>> 3))
        + words[i - 7] + (turned(two, 17) ^ turned(two, 19) ^ (two >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i += 1) {
      const low = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + ADDED[i] + words[i];
      const high = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      [a, b, c, d, e, f, g, h] = [(low + high) | 0, a, b, c, (d + low) | 0, e, f, g];
    }
    [a, b, c, d, e, f, g, h].forEach((word, i) => { state[i] += word; });
  }
  return [...state].map(word => (word >>> 0).toString(16).padStart(8, "0")).join("");
}

function textOf(bytes) {
  try {
    const text = utf8.decode(bytes);
    if (!/[\u0000-\u0008\u000e-\u001f]/.test(text)) return text;
  } catch { /* no text */ }
  return `${bytes.length} bytes: ${[...bytes.subarray(0, 32)].map(each => each.toString(16).padStart(2, "0")).join(" ")}`;
}

// What is shown

function say(text, bad = false) {
  find("state").textContent = text;
  find("state").className = bad ? "bad" : "";
}

function made(name, text, className = "") {
  const found = document.createElement(name);
  found.textContent = text;
  if (className) found.className = className;
  return found;
}

function take(stored, isNew) {
  if (shown.has(stored.messageHash) || !stored.message) return;
  const bytes = Uint8Array.from(atob(stored.message.payload), each => each.charCodeAt(0));
  const message = {
    hash: stored.messageHash, timestamp: BigInt(stored.message.timestamp), isNew,
    topic: stored.message.contentTopic, bytes, sds: sdsOf(bytes),
  };
  shown.set(message.hash, message);
  if (message.sds) claim(message);
  place(message);
}

function claim(message) {
  const { channel, id } = message.sds, key = `${channel}\n${id}`;
  addChannel(channel);
  if (!claims.has(key)) claims.set(key, new Set());
  message.claimants = claims.get(key).add(message);
  message.claimants.forEach(judge);
}

function forget(message) {
  shown.delete(message.hash);
  if (message.claimants?.delete(message) && !message.claimants.size) {
    claims.delete(`${message.sds.channel}\n${message.sds.id}`);
  }
}

// What is said of a message whose ID proves nothing: FORGED, beside a shown one that it proves.
function judge({ sds, claimants, verdict }) {
  if (!verdict || sds.isProven) return;
  const isForged = [...claimants].some(each => each.sds.isProven);
  verdict.textContent = isForged ? "FORGED: its ID belongs to another message" : "not verified";
  verdict.className = isForged ? "forged" : "";
}

function addChannel(name) {
  if (channels.options.length > MOST_CHANNELS) return;
  if ([...channels.options].some(each => each.value === name)) return;
  channels.append(new Option(name, name));
}

function rowOf(message) {
  const row = made("tr", "", message.isNew ? "new" : "");
  row.message = message;
  const when = new Date(Number(message.timestamp / 1000000n)).toISOString().replace("T", " ").replace("Z", "");
  const { sds } = message;
  const body = made("td", textOf(sds?.content ?? message.bytes));
  if (sds) {
    const after = sds.parents.length ? `, after ${sds.parents.join(", ")}` : "";
    body.append(made("small", `${sds.id} from ${sds.sender || "nobody named"}, Lamport ${sds.lamport ?? 0}${after}`));
    if (sds.content?.length) body.append(message.verdict = made("small", ""));
    judge(message);
  }
  row.append(made("td", when), made("td", message.topic), body, made("td", message.hash, "hash"));
  return row;
}

const isWanted = message => !channels.value || message.sds?.channel === channels.value;
const isBefore = (one, other) =>
  one.timestamp === other.timestamp ? one.hash < other.hash : one.timestamp < other.timestamp;

function place(message) {
  if (!isWanted(message)) return;
  const rows = find("messages");
  let next = rows.firstElementChild; // the newest
  while (next && isBefore(message, next.message)) next = next.nextElementSibling;
  rows.insertBefore(rowOf(message), next);
  while (rows.childElementCount > MOST_ROWS) {
    forget(rows.lastElementChild.message);
    rows.lastElementChild.remove();
  }
  find("count").textContent = rows.childElementCount;
  check(200);
}

function showAll() {
  find("messages").replaceChildren();
  find("count").textContent = 0;
  for (const message of shown.values()) place(message);
  check(0);
}

// One check at a time, and another one behind it if something has come meanwhile.
function check(afterMs) {
  isStale = true;
  checking ??= setTimeout(async () => {
    isStale = false;
    const isComplete = await checkMissing();
    checking = null;
    if (!isComplete) check(MINUTE_MS / MOST_LOOK_UPS);
    else if (isStale) check(1000);
  }, afterMs);
}

function wantedParents() {
  const wanted = new Map(); // channel -> parent -> the message that names it
  for (const message of shown.values()) {
    if (!message.sds || !isWanted(message)) continue;
    const { channel, id, parents } = message.sds;
    for (const parent of parents) {
      if (claims.has(`${channel}\n${parent}`)) continue;
      if (!wanted.has(channel)) wanted.set(channel, new Map());
      wanted.get(channel).set(parent, id);
    }
  }
  return wanted;
}

function isKnown(key) {
  const known = parentsKnown.get(key);
  return Boolean(known) && (!known.isMissing || Date.now() - known.at < MINUTE_MS);
}

// Looks up what is not known, as far as the rate allows; false: there is more.
async function checkMissing() {
  const mine = round, wanted = wantedParents();
  let unasked = 0;
  try {
    for (const [channel, parents] of wanted) {
      const ids = [...parents.keys()].filter(id => !isKnown(`${channel}\n${id}`)).slice(0, MOST_LOOKED_UP);
      if (!ids.length) continue;
      while (lookUps.length && Date.now() - lookUps[0] > MINUTE_MS) lookUps.shift();
      if (lookUps.length >= MOST_LOOK_UPS) { unasked += 1; continue; }
      if (parentsKnown.size > 100 * MOST_LOOKED_UP) parentsKnown.clear();
      lookUps.push(Date.now());
      const missing = new Set(await lookUp(channel, ids));
      if (mine !== round) return true;
      for (const id of ids) parentsKnown.set(`${channel}\n${id}`, { isMissing: missing.has(id), at: Date.now() });
    }
  } catch (error) { say(error.message, true); }
  showMissing(wanted, unasked);
  return !unasked;
}

function showMissing(wanted, unasked) {
  const found = [...wanted].flatMap(([channel, parents]) => [...parents]
    .filter(([id]) => parentsKnown.get(`${channel}\n${id}`)?.isMissing)
    .map(([id, child]) => ({ channel, id, child })));
  find("missing").replaceChildren(...found.slice(0, MOST_NAMED).map(({ channel, id, child }) => {
    const item = made("li", id);
    item.append(made("small", ` in ${channel}, named by ${child}`));
    return item;
  }));
  find("lacks").textContent = found.length;
  find("nothing-missing").hidden = found.length > 0 || unasked > 0;
  find("unasked").hidden = !unasked;
  find("unasked").textContent = `${unasked} channels are looked up later, ${MOST_LOOK_UPS} in a minute.`;
}

// The course of things

async function older() {
  const mine = round;
  try {
    const page = await readPage();
    if (mine !== round) return;
    for (const each of page.messages) take(each, false);
    cursor = page.cursor ?? null;
    find("older").hidden = cursor === null;
  } catch (error) { if (mine === round) say(error.message, true); }
}

async function whyRefused(query) {
  // An EventSource does not tell what the node has said.
  const aborted = new AbortController();
  try {
    await answer(await fetch(`api/v1/follow?${query}`, { headers: headers(), signal: aborted.signal }));
    return "The connection has ended: show it again.";
  } catch (error) { return error.message; } finally { aborted.abort(); }
}

function follow() {
  const mine = round;
  let begun = false;
  const query = parameters(asked.token ? { access_token: asked.token } : {});
  feed = new EventSource(`api/v1/follow?${query}`);
  feed.onmessage = event => take(JSON.parse(event.data), true);
  feed.addEventListener("page", () => {
    say("Live: new messages appear as they are stored.");
    if (begun) return;
    begun = true;
    older();
  });
  feed.onerror = async () => {
    if (feed.readyState !== EventSource.CLOSED) return say("The connection was lost; the browser tries again.", true);
    const sentence = await whyRefused(query);
    if (mine === round) say(sentence, true);
  };
}

form.addEventListener("submit", event => {
  event.preventDefault();
  round += 1;
  feed?.close();
  asked = Object.fromEntries(new FormData(form));
  cursor = null;
  shown.clear();
  claims.clear();
  parentsKnown.clear();
  channels.replaceChildren(new Option("all messages", ""));
  find("older").hidden = true;
  showAll();
  say("Connecting.");
  follow();
});
channels.addEventListener("change", showAll);
find("older").addEventListener("click", older);
