// The newest messages of a topic or an SDS channel, followed live, and what is missing in the channel.
//
// A follower is opened first and the history read once it is live, so that nothing falls between the
// two; a message that arrives by both is shown once, by its hash. Contents are only ever shown as text.

import { decodeSds, utf8 } from "./sds.js";

const PAGE = 100;
const MAX_ROWS = 5000;
const MAX_CHANNELS = 200; // in the list to choose from
const MAX_PARENTS = 1000; // in one request, and in the list of missing messages
const LOOKUP_INTERVAL_MS = 3000; // between requests for parents, whatever others publish
const RECHECK_MS = 60_000; // until a missing parent is looked up again
const SHORT = 8; // digits of a hash

const find = id => document.getElementById(id);
const form = find("ask");
const channels = form.elements.channel;

const shown = new Map(); // hash -> message
const claims = new Map(); // channel and ID -> the shown messages with that ID
const parentsKnown = new Map(); // ID of a parent in the channel -> whether it is missing, and since when
let asked = {}, feed = null, cursor = null, round = 0, checking = null, isStale = false, isRead = false;

// Requests

const headers = () => asked.token ? { authorization: `Bearer ${asked.token}` } : {};

function parameters(more) {
  const found = new URLSearchParams(more);
  for (const name of ["contentTopics", "pubsubTopic"]) if (asked[name]) found.append(name, asked[name]);
  return found;
}

async function checked(response) {
  if (response.ok) return response;
  const text = await response.text();
  let sentence = text;
  try { sentence = JSON.parse(text).error.message; } catch { /* a proxy's response */ }
  throw new Error(sentence);
}

async function readPage() {
  const more = { limit: PAGE, ...(cursor ? { cursor } : {}) };
  const response = await checked(await fetch(`api/v1/messages?${parameters(more)}`, { headers: headers() }));
  return response.json();
}

async function post(path, body) {
  return checked(await fetch(`api/v1/${path}`, {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify(body),
  }));
}

async function lookUp(channelId, ids) {
  const response = await post("sds/messages", { channelId, entries: ids.map(messageId => ({ messageId })) });
  const lines = (await response.text()).split("\n").filter(Boolean).map(line => JSON.parse(line));
  return {
    found: lines.flatMap(line => line.stored ? [line.stored] : line.message ? [line] : []),
    missing: new Set(lines.flatMap(line => line.missing ? [line.missing.messageId] : [])),
  };
}

async function publish(text) {
  const message = {
    payload: btoa(String.fromCharCode(...new TextEncoder().encode(text))),
    contentTopic: form.elements.contentTopics.value,
    timestamp: String(BigInt(Date.now()) * 1_000_000n),
    pubsubTopic: form.elements.pubsubTopic.value || "/waku/2/rs/1/0",
  };
  const response = await post("messages", { messages: [message] });
  const [result] = (await response.json()).results;
  return result;
}

// Rendering

function report(text, isBad = false) {
  find("state").textContent = text;
  find("state").className = isBad ? "bad" : "";
}

function element(name, text, className = "") {
  const created = document.createElement(name);
  created.textContent = text;
  if (className) created.className = className;
  return created;
}

function textOf(bytes) {
  try {
    const text = utf8.decode(bytes);
    if (!/[\u0000-\u0008\u000e-\u001f]/.test(text)) return text;
  } catch { /* not text */ }
  return `${bytes.length} bytes: ${[...bytes.subarray(0, 32)].map(each => each.toString(16).padStart(2, "0")).join(" ")}`;
}

const isHash = id => /^(0x)?[0-9a-f]{64}$/.test(id);
const shortened = id => isHash(id) ? id.replace(/^0x/, "").slice(0, SHORT) : id;

function timeOf(timestamp) {
  const date = new Date(Number(timestamp / 1_000_000n));
  const created = element("time", date.toLocaleString(undefined, {
    year: "numeric", month: "short", day: "numeric",
    hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short",
  }));
  created.dateTime = date.toISOString();
  return created;
}

// An ID of which a click shows the rest.
function idButton(id, label) {
  const button = element("button", shortened(id), "id");
  button.type = "button";
  button.title = `${label}: ${id}`;
  button.addEventListener("click", () => { button.textContent = button.textContent === id ? shortened(id) : id; });
  return button;
}

function parentLink(message, parent) {
  const link = element("a", shortened(parent));
  link.href = "#messages";
  link.title = parent;
  link.addEventListener("click", async event => {
    event.preventDefault();
    const { channel } = message.sds;
    try {
      if (!claims.has(`${channel}\n${parent}`)) {
        const { found } = await lookUp(channel, [parent]);
        for (const each of found) take(each, false);
      }
    } catch (error) { return report(error.message, true); }
    const [target] = claims.get(`${channel}\n${parent}`) ?? [];
    if (!target?.row) return link.replaceWith(element("span", `${shortened(parent)} (missing)`, "bad"));
    target.row.scrollIntoView({ block: "center" });
    target.row.focus();
  });
  return link;
}

function rowOf(message) {
  const row = element("li", "", message.isNew ? "new" : "");
  row.message = message;
  row.tabIndex = -1;
  const { sds } = message;
  if (sds) {
    const head = element("p", "", "head");
    head.append(element("b", sds.sender || "unnamed sender"));
    if (sds.content?.length) head.append(message.verdict = element("small", ""));
    row.append(head);
    judge(message);
  }
  row.append(element("p", textOf(sds?.content ?? message.bytes), "text"));
  const about = element("p", "", "about");
  const topic = element("span", message.topic, "topic");
  topic.title = message.topic;
  about.append(timeOf(message.timestamp), topic, idButton(message.hash, "message hash"));
  if (sds) {
    const claim = element("span", "message ");
    claim.append(idButton(sds.id, "SDS message ID"));
    about.append(claim);
  }
  if (sds?.parents.length) {
    const after = element("span", "after ");
    sds.parents.forEach((parent, at) => after.append(...(at ? [", "] : []), parentLink(message, parent)));
    about.append(after);
  }
  row.append(about);
  return message.row = row;
}

// The mark of a message whose ID proves nothing: FORGED beside a shown one that the ID proves.
function judge({ sds, claimants, verdict }) {
  if (!verdict || sds.isProven) return;
  const isForged = [...claimants].some(each => each.sds.isProven);
  verdict.textContent = isForged ? "FORGED: its ID belongs to another message" : "not verified";
  verdict.className = isForged ? "forged" : "";
}

// The list of messages

function take(stored, isNew) {
  if (shown.has(stored.messageHash) || !stored.message) return;
  const bytes = Uint8Array.from(atob(stored.message.payload), each => each.charCodeAt(0));
  const message = {
    hash: stored.messageHash, timestamp: BigInt(stored.message.timestamp), isNew,
    topic: stored.message.contentTopic, bytes, sds: decodeSds(bytes),
  };
  shown.set(message.hash, message);
  if (message.sds) claim(message);
  insert(message);
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

function addChannel(name) {
  if (channels.options.length > MAX_CHANNELS) return;
  if ([...channels.options].some(each => each.value === name)) return;
  channels.append(new Option(name, name));
}

const isWanted = message => !channels.value || message.sds?.channel === channels.value;
const isBefore = (one, other) =>
  one.timestamp === other.timestamp ? one.hash < other.hash : one.timestamp < other.timestamp;

function insert(message) {
  if (!isWanted(message)) return;
  const rows = find("messages");
  let next = rows.firstElementChild; // the newest
  while (next && isBefore(message, next.message)) next = next.nextElementSibling;
  rows.insertBefore(rowOf(message), next);
  while (rows.childElementCount > MAX_ROWS) {
    forget(rows.lastElementChild.message);
    rows.lastElementChild.remove();
  }
  showCount();
  checkLater(200);
}

function showCount() {
  const number = find("messages").childElementCount;
  find("count").textContent = number;
  find("none").hidden = number > 0 || !isRead;
}

function showAll() {
  find("messages").replaceChildren();
  showCount();
  parentsKnown.clear();
  find("missing").replaceChildren();
  find("gap-count").textContent = "";
  find("gaps").hidden = !channels.value;
  for (const message of shown.values()) insert(message);
  checkLater(0);
}

// Missing messages of the chosen channel: one lookup at a time, and another one later if something came.

function checkLater(afterMs) {
  if (!channels.value) return;
  isStale = true;
  checking ??= setTimeout(async () => {
    isStale = false;
    const isComplete = await checkMissing();
    checking = null;
    if (!isComplete || isStale) checkLater(LOOKUP_INTERVAL_MS);
  }, afterMs);
}

function missingParents() {
  const wanted = new Map(); // parent -> the message that references it
  for (const message of shown.values()) {
    if (!message.sds || message.sds.channel !== channels.value) continue;
    for (const parent of message.sds.parents) {
      if (!claims.has(`${channels.value}\n${parent}`)) wanted.set(parent, message.sds.id);
    }
  }
  return wanted;
}

function isKnown(id) {
  const known = parentsKnown.get(id);
  return Boolean(known) && (!known.isMissing || Date.now() - known.at < RECHECK_MS);
}

// Looks up unknown parents in one request; false: there are more.
async function checkMissing() {
  const channel = channels.value, mine = round, wanted = missingParents();
  const unknown = [...wanted.keys()].filter(id => !isKnown(id)), ids = unknown.slice(0, MAX_PARENTS);
  try {
    if (ids.length) {
      const { missing } = await lookUp(channel, ids);
      if (mine !== round || channel !== channels.value) return true;
      for (const id of ids) parentsKnown.set(id, { isMissing: missing.has(id), at: Date.now() });
    }
  } catch (error) { report(error.message, true); }
  const found = [...wanted].filter(([id]) => parentsKnown.get(id)?.isMissing);
  find("missing").replaceChildren(...found.slice(0, MAX_PARENTS).map(([id, child]) => {
    const item = element("li", shortened(id));
    item.title = id;
    item.append(element("small", `, referenced by ${shortened(child)}`));
    return item;
  }));
  find("gap-count").textContent = found.length;
  return ids.length === unknown.length;
}

// Connection

async function older() {
  const mine = round;
  try {
    const page = await readPage();
    if (mine !== round) return;
    for (const each of page.messages) take(each, false);
    cursor = page.cursor ?? null;
    find("older").hidden = cursor === null;
    isRead = true;
    showCount();
  } catch (error) { if (mine === round) report(error.message, true); }
}

// An EventSource does not pass on the node's sentence, so the request is made again to read it.
async function reasonOfRefusal(query) {
  const aborted = new AbortController();
  try {
    await checked(await fetch(`api/v1/follow?${query}`, { headers: headers(), signal: aborted.signal }));
    return "The connection has ended: press Show.";
  } catch (error) { return error.message; } finally { aborted.abort(); }
}

function follow() {
  const mine = round;
  let hasBegun = false;
  const query = parameters(asked.token ? { access_token: asked.token } : {});
  feed = new EventSource(`api/v1/follow?${query}`);
  feed.onmessage = event => take(JSON.parse(event.data), true);
  feed.addEventListener("page", () => {
    report("Live: new messages appear as they are stored.");
    if (hasBegun) return;
    hasBegun = true;
    older();
  });
  feed.onerror = async () => {
    if (feed.readyState !== EventSource.CLOSED) return report("The connection was lost; the browser retries.", true);
    const sentence = await reasonOfRefusal(query);
    if (mine === round) report(sentence, true);
  };
}

function start() {
  round += 1;
  feed?.close();
  asked = Object.fromEntries(new FormData(form));
  cursor = null;
  isRead = false;
  shown.clear();
  claims.clear();
  channels.replaceChildren(new Option("all messages", ""));
  find("older").hidden = true;
  showAll();
  report("Connecting.");
  follow();
}

form.addEventListener("submit", event => {
  event.preventDefault();
  start();
});
find("publish").addEventListener("submit", async event => {
  event.preventDefault();
  const outcome = find("outcome"), input = event.target.elements.text;
  if (!form.elements.contentTopics.value) {
    outcome.textContent = "Enter the content topic above, such as /my-chat/1/lobby/proto.";
    return form.elements.contentTopics.focus();
  }
  try {
    asked.token = form.elements.token.value;
    const { outcome: word, reason } = await publish(input.value);
    outcome.textContent = reason ? `${word}: ${reason}` : word;
    if (!reason) input.value = "";
  } catch (error) { outcome.textContent = error.message; }
});
channels.addEventListener("change", showAll);
find("older").addEventListener("click", older);
start();
