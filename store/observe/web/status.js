"use strict";

// The page asks for /status.json again and again and shows what it says: the answer of GetStatus, as
// `status`, whose times are nanoseconds, and others in seconds. Whatever comes from there is put in as
// text, never as markup: peers write some of it.

const INTERVAL_MS = 2000;
const MOST_ANSWERS = 150;
const TIMEOUT_MS = 8000;
const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;
const LEVELS = 5;
const RATES = [
  ["published", "published here"],
  ["queries", "queries"],
  ["gossip_in", "in by gossip"],
  ["gossip_out", "out by gossip"],
  ["transfer_in", "in by reconciliation"],
  ["transfer_out", "out by reconciliation"],
  ["failed", "failed calls"],
];

const byId = (id) => document.getElementById(id);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Only what changed is touched: a screen reader is not interrupted, a selection stays.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

// Numbers and times as words

const secondsOf = (nanoseconds) => nanoseconds / 1e9;

const count = (value) => value.toLocaleString("en");
const plural = (value, one, many = one + "s") => `${count(value)} ${value === 1 ? one : many}`;

function moment(seconds) {
  return new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
}

const day = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);

function duration(seconds) {
  const units = [[DAY_S, "d"], [HOUR_S, "h"], [60, "min"], [1, "s"]];
  const whole = Math.max(0, Math.round(seconds));
  const first = units.findIndex(([length]) => whole >= length);
  if (first < 0) return "0 s";
  const [length, name] = units[first];
  const rest = Math.floor((whole % length) / (units[first + 1] || [1])[0]);
  const text = `${count(Math.floor(whole / length))} ${name}`;
  return rest && first < 3 ? `${text} ${rest} ${units[first + 1][1]}` : text;
}

function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let step = 0;
  while (size >= 1024 && step < units.length - 1) {
    size /= 1024;
    step += 1;
  }
  return `${size >= 100 || step === 0 ? Math.round(size) : size.toFixed(1)} ${units[step]}`;
}

function rate(value) {
  if (value >= 100) return count(Math.round(value));
  return value === 0 ? "0" : value.toFixed(value >= 10 ? 1 : 2);
}

const yetUnknown = "not known yet";

// The header and the tiles

function stateOf({ problems, ready, unready }) {
  const number = plural(problems.length, "problem");
  if (!ready) return [`not ready: ${unready}`, "bad"];
  if (problems.some((each) => each.critical)) return [`ready, ${number}`, "bad"];
  return problems.length ? [`ready, ${number}`, "warn"] : ["ready, no problems", "good"];
}

function showHeader(data) {
  const state = byId("state");
  const { version, ready, problems, node_id: node, store_id: store } = data.status;
  const [words, kind] = stateOf(data.status);
  setText(state, words);
  setClass(state, `state ${kind}`);
  const parts = [`version ${version}`, `up for ${duration(data.time - data.started)}`];
  if (node) parts.unshift(`node ${node}`);
  if (store) parts.push(`store ${store}`);
  setText(byId("identity"), parts.join(" · "));
  const number = problems.length;
  const marks = (ready ? "" : "! ") + (number ? `(${number}) ` : "");
  document.title = `${marks}storenode${node ? ` ${node}` : ""}`;
}

// What is wrong

function problemLine(problem, now) {
  const over = problem.ended !== undefined;
  const line = element("li", undefined, over ? "over" : problem.critical ? "bad" : "warn");
  const link = element("a", "what to do");
  if (/^https:/.test(problem.runbook_url)) link.href = problem.runbook_url;
  link.rel = "noreferrer";
  const began = secondsOf(problem.since);
  const length = now - began < 60 ? "" : `for ${duration(now - began)}, `;
  const since = over
    ? `ended ${duration(Math.max(60, now - problem.ended))} ago, began ${moment(began)}`
    : `${length}since ${moment(began)}`;
  line.append(
    element("strong", over ? "over" : problem.critical ? "critical" : "warning"),
    element("span", problem.sentence),
    element("span", since, "quiet"),
    link,
  );
  return line;
}

function showProblems(data) {
  const shown = data.status.problems.concat(data.ended);
  byId("trouble").hidden = shown.length === 0;
  // Minutes are enough: a screen reader would be told of every second.
  const now = data.time - (data.time % 60);
  const lines = shown.map((each) => problemLine(each, Math.max(now, secondsOf(each.since))));
  const list = byId("problems");
  const same =
    list.children.length === lines.length &&
    lines.every((line, place) => line.isEqualNode(list.children[place]));
  if (!same) list.replaceChildren(...lines);
}

function timeTile(name, nanoseconds, now) {
  const at = secondsOf(nanoseconds);
  return at ? [name, `${duration(now - at)} ago`, moment(at)] : [name, "–", "no messages"];
}

function tilesOf(data) {
  const { status, held } = data;
  const running = status.peers.filter((peer) => peer.in_session).length;
  return [
    ["messages", held ? count(status.messages) : "–", held ? "" : yetUnknown],
    timeTile("oldest", status.oldest_timestamp, data.time),
    timeTile("newest", status.newest_timestamp, data.time),
    ["published per second", rate(ratesOf("published").at(-1) || 0), publishNote(data)],
    failedTile(data),
    diskTile(status.database),
    unreadTile(status.gossip),
    ["sessions", count(running), endedOf(data.sessions_ended)],
    ["followers", count(data.followers), "live now"],
    archiveTile(status.database, data.time),
  ];
}

function publishNote(data) {
  const flying = `${count(data.publishes_in_flight)} in flight`;
  const { batches, batch_seconds: seconds } = data.totals;
  return batches ? `${count(Math.ceil((1000 * seconds) / batches))} ms a batch; ${flying}` : flying;
}

function failedTile({ totals }) {
  return ["failed calls", count(totals.failed), "by the node's fault, since its start"];
}

function diskTile(database) {
  const name = "free disk";
  if (!database) return [name, "–", yetUnknown];
  if (!database.disks.length) return [name, "–", "the database is elsewhere"];
  const least = database.disks.reduce((a, b) => (b.free_bytes < a.free_bytes ? b : a));
  const share = least.size_bytes ? `, ${Math.floor((100 * least.free_bytes) / least.size_bytes)} %` : "";
  return [name, bytes(least.free_bytes), `volume ${least.volume}${share}`];
}

function unreadTile(gossip) {
  if (!gossip) return ["unread events", "–", "gossip is off"];
  const age = duration(secondsOf(gossip.oldest_unread));
  const oldest = gossip.unread ? `oldest waiting for ${age}` : "none waiting";
  const waiting = gossip.waiting ? `; ${plural(gossip.waiting, "parent")} missing` : "";
  return ["unread events", count(gossip.unread), oldest + waiting];
}

function endedOf(ended) {
  const words = { done: "done", failed: "failed", refused: "refused", aborted: "given up" };
  const parts = Object.entries(ended).filter(([, number]) => number > 0);
  if (!parts.length) return "none ended yet";
  return parts.map(([name, number]) => `${count(number)} ${words[name] || name}`).join(", ");
}

function archiveTile(database, now) {
  const name = "oldest unarchived hour";
  if (!database) return [name, "–", yetUnknown];
  if (!database.archived) return [name, "–", "nothing archived yet"];
  const oldest = secondsOf(database.oldest_unarchived);
  if (!oldest) return [name, "none", "everything is archived"];
  return [name, `${duration(now - oldest)} ago`, moment(oldest)];
}

function showTiles(data) {
  const list = byId("tiles");
  tilesOf(data).forEach(([name, value, aside], place) => {
    if (!list.children[place]) {
      const tile = element("div");
      tile.append(element("dt"), element("dd"), element("dd", "", "aside"));
      list.append(tile);
    }
    const [term, number, note] = list.children[place].children;
    setText(term, name);
    setText(number, value);
    setText(note, aside);
  });
}

// Hours and days

// Shares of a busy hour, so that one which has lost half of its messages stands out.
const SHARES = [0, 0.1, 0.3, 0.55, 0.8];

function levelsOf(hours) {
  const most = Math.max(1, ...hours);
  const filled = hours.filter((value) => value > 0).sort((a, b) => a - b);
  const busy = filled.length ? filled[Math.ceil(0.9 * filled.length) - 1] : 1;
  const bounds = SHARES.map((share) => Math.max(1, Math.ceil(share * busy)));
  return { most, bounds };
}

function levelOf(value, bounds) {
  let level = 0;
  while (level < LEVELS && value >= bounds[level]) level += 1;
  return level;
}

function kindOf(data, start, value, bounds) {
  if (value > 0) return `l${levelOf(value, bounds)}`;
  if (start > data.time) return "future";
  if (start + HOUR_S > data.time) return "open";
  const oldest = secondsOf(data.status.oldest_timestamp);
  return !oldest || start + HOUR_S <= oldest ? "before" : "gap";
}

function wordsOf(kind, value) {
  if (kind === "future") return "in the future";
  if (kind === "open") return "no messages so far";
  if (kind === "before") return "older than the oldest message";
  return kind === "gap" ? "gap: no messages" : plural(value, "message");
}

// What other stores are known to hold of each hour: a list for each, empty where nothing is known.
function knownOf(data, start, length) {
  const known = Array.from({ length }, () => []);
  if (!data.coverage) return known;
  const offset = Math.round((data.coverage.start - start) / HOUR_S);
  for (const { store_id: id, runs } of data.coverage.stores) {
    const peer = data.status.peers.find((each) => each.store_id === id);
    const name = (peer && (peer.node_id || peer.address)) || `store ${id.slice(0, 8)}`;
    for (const [first, number, state, compared, until, here, there, last] of runs) {
      for (let place = first + offset; place < first + offset + number; place += 1) {
        if (known[place]) known[place].push({ name, state, compared, until, here, there, last });
      }
    }
  }
  return known;
}

function markOf(known, over) {
  if (known.some((each) => each.state === "differs")) return " differs";
  return known.some((each) => each.state === "equal") || !over ? "" : " unsure";
}

function countsOf({ here, there }) {
  return `${count(here)} missing here, ${count(there)} missing there`;
}

function unconfirmedWords(known) {
  const latest = (name) => Math.max(0, ...known.map((each) => each[name]));
  const [until, last] = [latest("until"), latest("last")];
  if (until) return `confirmed by other stores up to ${moment(until)} only`;
  return `not confirmed by any other store${last ? ` since ${moment(last)}` : ""}`;
}

function knownWords(known) {
  const words = [];
  for (const each of known) {
    if (each.state === "equal") {
      words.push(`equal to ${each.name} as of ${moment(each.compared)}`);
    } else if (each.state === "differs") {
      words.push(`differs from ${each.name} as of ${moment(each.compared)}: ${countsOf(each)}`);
    }
  }
  if (!known.some((each) => each.state === "equal")) words.push(unconfirmedWords(known));
  return words.map((each) => `; ${each}`).join("");
}

function makeMap(start, days) {
  const map = byId("map");
  const head = element("tr");
  head.setAttribute("role", "row");
  const corner = element("th", "", "day");
  corner.scope = "col";
  corner.append(element("span", "day", "hidden"));
  head.append(corner);
  for (let hour = 0; hour < 24; hour += 3) {
    const cell = element("th", String(hour).padStart(2, "0"));
    cell.colSpan = 3;
    cell.scope = "colgroup";
    head.append(cell);
  }
  const top = element("thead");
  top.append(head);
  const body = element("tbody");
  const cells = [];
  for (let row = 0; row < days; row += 1) {
    const line = element("tr");
    line.setAttribute("role", "row");
    const name = element("th", day(start + row * DAY_S).slice(5), "day");
    name.scope = "row";
    line.append(name);
    for (let hour = 0; hour < 24; hour += 1) {
      const cell = element("td");
      cell.setAttribute("role", "gridcell");
      cells.push(cell);
      line.append(cell);
    }
    body.append(line);
  }
  map.replaceChildren(top, body);
  map.dataset.start = String(start);
  moveAmong(map, cells, 24);
  return cells;
}

function showMap(data) {
  const { hours, hours_start: start } = data.history;
  const map = byId("map");
  let cells = [...map.querySelectorAll("td")];
  if (map.dataset.start !== String(start) || cells.length !== hours.length) {
    cells = makeMap(start, hours.length / 24);
  }
  const { most, bounds } = levelsOf(hours);
  const kinds = hours.map((value, place) => kindOf(data, start + place * HOUR_S, value, bounds));
  const compares = Boolean(data.coverage && data.coverage.stores.length);
  const known = knownOf(data, start, hours.length);
  cells.forEach((cell, place) => {
    const from = start + place * HOUR_S;
    const kind = kinds[place];
    const shows = compares && kind !== "future" && kind !== "before";
    setClass(cell, kind + (shows ? markOf(known[place], from + HOUR_S <= data.time) : ""));
    const others = shows ? knownWords(known[place]) : "";
    const words = `${moment(from).slice(0, 16)} UTC: ${wordsOf(kind, hours[place])}${others}`;
    if (cell.getAttribute("aria-label") !== words) cell.setAttribute("aria-label", words);
  });
  hideEmptyDays([...map.querySelectorAll("tbody tr")], kinds);
  showLegend(bounds, most, compares);
  repeatDetail();
  setText(byId("gaps"), data.status.oldest_timestamp ? gapsOf(kinds, start) : "No messages yet.");
}

// Days before the oldest message say nothing of this store; today is always shown.
function hideEmptyDays(rows, kinds) {
  rows.forEach((row, place) => {
    const day = kinds.slice(24 * place, 24 * (place + 1));
    row.hidden = place < rows.length - 1 && day.every((kind) => kind === "before");
  });
}

function gapsOf(kinds, start) {
  const all = kinds.filter((kind) => kind === "gap").length;
  if (!all) return `No gaps in these ${kinds.length / 24} days, all topics together.`;
  let length = 0;
  let longest = [0, 0];
  kinds.forEach((kind, place) => {
    length = kind === "gap" ? length + 1 : 0;
    if (length > longest[0]) longest = [length, place + 1 - length];
  });
  const from = moment(start + longest[1] * HOUR_S).slice(0, 16);
  return `${plural(all, "hour")} without messages of any topic in these ${kinds.length / 24} days; ` +
    `the longest gap is ${plural(longest[0], "hour")}, from ${from} UTC.`;
}

function showLegend(bounds, most, compares) {
  const rows = [];
  bounds.forEach((from, place) => {
    const to = place + 1 < LEVELS ? bounds[place + 1] - 1 : most;
    if (to >= from) rows.push([`l${place + 1}`, from === to ? count(from) : `${count(from)}–${count(to)}`]);
  });
  rows.push(["gap", "gap: no messages"], ["before", "before the oldest message"], ["open", "this hour"]);
  if (compares) rows.push(["differs", "differs from a peer"], ["unsure", "not confirmed by any peer"]);
  const wanted = JSON.stringify(rows);
  const legend = byId("legend");
  if (legend.dataset.rows === wanted) return;
  legend.dataset.rows = wanted;
  legend.replaceChildren(
    ...rows.map(([kind, words]) => {
      const entry = element("span");
      entry.append(element("i", undefined, kind), words);
      return entry;
    }),
  );
}

// One cell of a group can be reached by Tab; arrows go on from there.
function moveAmong(group, cells, width) {
  cells.forEach((cell, place) => {
    cell.tabIndex = place === cells.length - 1 ? 0 : -1;
    cell.dataset.place = String(place);
  });
  group.cells = cells;
  group.width = width;
}

function moved(group, place, key) {
  const { cells, width } = group;
  const rowStart = place - (place % width);
  const to = {
    ArrowLeft: place - 1,
    ArrowRight: place + 1,
    ArrowUp: place - width,
    ArrowDown: place + width,
    Home: rowStart,
    End: Math.min(rowStart + width, cells.length) - 1,
  }[key];
  const cell = cells[to];
  return cell && !cell.closest("tr")?.hidden ? cell : null;
}

let shown = null;

function showDetail(cell) {
  shown = cell;
  repeatDetail();
}

function repeatDetail() {
  if (shown && shown.isConnected) setText(byId("detail"), shown.getAttribute("aria-label"));
}

function listenTo(group, selector) {
  const cellOf = (event) => event.target.closest(selector);
  group.addEventListener("pointerover", (event) => cellOf(event) && showDetail(cellOf(event)));
  group.addEventListener("click", (event) => cellOf(event) && cellOf(event).focus());
  group.addEventListener("focusin", (event) => {
    const cell = cellOf(event);
    if (!cell) return;
    group.cells.forEach((each) => {
      if (each.tabIndex === 0) each.tabIndex = -1;
    });
    cell.tabIndex = 0;
    showDetail(cell);
  });
  group.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    const next = cell && moved(group, Number(cell.dataset.place), event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}

function showHistory(data) {
  const note = "Messages per hour, by message timestamp, in UTC.";
  if (!data.history) {
    setText(byId("history-note"), `${note} Not read yet.`);
    return;
  }
  const behind = data.history.complete ? "" : " The newest messages are not counted yet.";
  setText(byId("history-note"), note + behind);
  showMap(data);
}

// Rates

// The newest answers, from which rates are computed while the page is open; those of a node that
// has started anew begin again.
let answers = [];

function noteTotals(data) {
  const last = answers.at(-1);
  if (last && last.started !== data.started) answers = [];
  answers.push({ started: data.started, time: data.time, totals: data.totals });
  answers = answers.slice(-MOST_ANSWERS);
}

function ratesOf(name) {
  return answers.slice(1).map(({ time, totals }, place) => {
    const before = answers[place];
    return Math.max(0, totals[name] - before.totals[name]) / Math.max(0.1, time - before.time);
  });
}

function makeRate(words) {
  const box = element("div", undefined, "rate");
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  drawing.setAttribute("viewBox", "0 0 150 32");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  drawing.append(document.createElementNS(space, "path"));
  box.append(element("span", words), element("b"), drawing, element("span"));
  return box;
}

function lineOf(values, length) {
  const most = Math.max(1e-9, ...values);
  const left = length - values.length;
  return values
    .map((value, place) => {
      const x = ((left + place) / Math.max(1, length - 1)) * 150;
      return `${place ? "L" : "M"}${x.toFixed(1)} ${(31 - (value / most) * 29).toFixed(1)}`;
    })
    .join("");
}

function showRates() {
  const boxes = byId("rates");
  RATES.forEach(([name, words], place) => {
    if (!boxes.children[place]) boxes.append(makeRate(words));
    const [, now, drawing, note] = boxes.children[place].children;
    const values = ratesOf(name);
    const latest = values.slice(-3);
    const mean = latest.reduce((sum, value) => sum + value, 0) / Math.max(1, latest.length);
    setText(now, rate(mean));
    setText(note, `peak ${rate(Math.max(0, ...values))}`);
    drawing.firstChild.setAttribute("d", lineOf(values, 150));
  });
}

// Peers

const failuresOf = (number) => (number === 1 ? "failed" : `failed ${count(number)} times in a row`);

function badgesOf(peer, shortfall) {
  const badges = [];
  const live = peer.live;
  if (peer.in_session) badges.push(["reconciling now", ""]);
  if (peer.address === undefined) badges.push(calling(peer));
  else if (peer.failures) badges.push([failuresOf(peer.failures), "bad"]);
  else badges.push(peer.connected ? ["connected", "good"] : ["not connected", ""]);
  if (live && live.cut_off_until) badges.push(["cut off", "bad"]);
  else if (live && live.slowed) badges.push(["live, throttled for violations", "warn"]);
  else if (live && live.connected) badges.push(["live", peer.failures ? "" : "good"]);
  else badges.push(["not live", ""]);
  if (peer.last_report && peer.last_report.outcome === "done") {
    if (!peer.last_report.in_sync) badges.push(["differences left", "warn"]);
    else badges.push(shortfall ? ["in sync above the horizon", "warn"] : ["in sync", "good"]);
  }
  return badges;
}

function calling(peer) {
  if (peer.live && peer.live.connected) return ["calls this node", ""];
  return ["has called this node", "warn"];
}

function comparedBy(last) {
  if (last.equality === "keyed") return "Compared by sums that nobody can forge.";
  if (last.keyed_from !== null) {
    const from = moment(secondsOf(last.keyed_from));
    return `Compared by sums that nobody can forge from ${from} on, before that by XOR.`;
  }
  return "Compared by XOR, which publishers can forge.";
}

function sentencesOf(peer, now) {
  const lines = [];
  const last = peer.last_report;
  if (peer.address !== undefined) {
    const synced = secondsOf(peer.last_sync);
    const when = synced ? `${duration(now - synced)} ago, ${moment(synced)}` : "never";
    lines.push([`Last reconciled: ${when}.`, ""]);
  }
  if (peer.last_heard) {
    lines.push([`Last heard: ${duration(now - peer.last_heard)} ago, ${moment(peer.last_heard)}.`, ""]);
  }
  if (last && last.outcome === "done") {
    lines.push([
      `Found ${count(last.missing_here)} missing here, ${count(last.missing_there)} missing there; ` +
        `${count(last.messages_received)} received, ${count(last.messages_sent)} sent.`,
      "",
    ]);
  }
  if (last && last.equality) {
    const mode = last.compact ? "Differences found in the compact mode." : "Differences found by WAKU-SYNC.";
    lines.push([`${comparedBy(last)} ${mode}`, ""]);
  }
  if (peer.lacks || peer.has) {
    lines.push([`Still missing: ${count(peer.has)} here, ${count(peer.lacks)} there.`, ""]);
  }
  if (peer.last_error) lines.push([`The last attempt failed: ${peer.last_error}.`, "fault"]);
  if (peer.live && peer.live.reason) lines.push([`Cut off: ${peer.live.reason}.`, "fault"]);
  if (last) last.notes.forEach((note) => lines.push([note, "quiet"]));
  if (peer.address && peer.node_id) lines.push([`node ${peer.node_id}`, "quiet"]);
  if (peer.store_id) lines.push([`store ${peer.store_id}`, "quiet"]);
  return lines;
}

function peerCard(peer, now, shortfall) {
  const card = element("article", undefined, "peer");
  card.append(element("h3", peer.address || peer.node_id));
  const badges = element("div", undefined, "badges");
  badgesOf(peer, shortfall).forEach(([words, kind]) => badges.append(element("span", words, `badge ${kind}`.trim())));
  card.append(badges);
  sentencesOf(peer, now).forEach(([words, kind]) => card.append(element("p", words, kind)));
  return card;
}

// The configured peers, then those that only call.
function peersOf({ status, calls }) {
  const live = new Map((status.gossip ? status.gossip.peers : []).map((each) => [each.node_id, each]));
  const known = new Set(status.peers.map((peer) => peer.node_id));
  const others = new Set([...live.keys(), ...Object.keys(calls)].filter((name) => !known.has(name)));
  const configured = status.peers.map((peer) => ({ ...peer, live: live.get(peer.node_id) }));
  return [
    ...configured.sort((a, b) => (a.address < b.address ? -1 : 1)),
    ...[...others].sort().map((name) => ({ node_id: name, live: live.get(name), last_heard: calls[name] })),
  ];
}

function showPeers(data) {
  const peers = peersOf(data);
  const cards = peers.map((peer) => peerCard(peer, data.time, data.held && data.held.shortfall_s));
  const box = byId("peers");
  const same =
    box.children.length === cards.length &&
    cards.every((card, place) => card.isEqualNode(box.children[place]));
  if (!same) box.replaceChildren(...cards);
  const resume = data.status.resume;
  let text = peers.length ? "" : "This node has no peers, and none has called it: configure them with --peer.";
  if (resume && resume.running) {
    const [start, end] = [resume.time_start, resume.time_end].map((each) => moment(secondsOf(each)));
    text += ` Fetching messages missed from ${start} to ${end}: ` +
      `${plural(resume.messages, "message")} so far.`;
  }
  setText(byId("peers-note"), text.trim());
}

// The database

function serverOf({ host, timeline }, refused) {
  const parts = [host];
  if (timeline) parts.push(`timeline ${timeline}`);
  if (refused) parts.push(`${plural(refused, "other host")} refused`);
  return parts.join(", ");
}

function showDatabase(data) {
  const { held, tables: found } = data;
  const { database: server, index_entries: entries } = data.status;
  const rows = [];
  if (found && server) {
    const all = found.rows + found.dead_rows;
    const share = all ? ` (${((100 * found.dead_rows) / all).toFixed(1)} %)` : "";
    const total = Object.values(found.partitions).reduce((sum, number) => sum + number, 0);
    rows.push(
      [server.standby ? "standby that is read" : "primary", serverOf(server, found.hosts_refused)],
      ["size", bytes(server.size_bytes)],
      ["rows (estimate)", count(found.rows)],
      ["dead rows (estimate)", count(found.dead_rows) + share],
      ["partitions", `${count(total)}, ${count(found.partitions.messages || 0)} of them for messages`],
      ["partitions created ahead", `for ${duration(found.ahead_s)}`],
    );
  }
  if (held) {
    rows.push(
      ["retention", held.retention_s === null ? "off" : duration(held.retention_s)],
      ["horizon", held.horizon ? moment(held.horizon) : "nothing dropped yet"],
      ["IDs in memory", count(entries)],
      ["read", `${duration(held.age_s)} ago`],
    );
  }
  const list = byId("database");
  while (list.children.length > rows.length) list.lastChild.remove();
  rows.forEach(([name, value], place) => {
    if (!list.children[place]) {
      const row = element("div");
      row.append(element("dt"), element("dd"));
      list.append(row);
    }
    setText(list.children[place].firstChild, name);
    setText(list.children[place].lastChild, value);
  });
}

// Asking

let failedSince = null;

function show(data) {
  failedSince = null;
  byId("alarm").hidden = true;
  setText(byId("alarm"), "");
  document.body.classList.remove("stale");
  noteTotals(data);
  showHeader(data);
  showProblems(data);
  showTiles(data);
  showHistory(data);
  showRates();
  showPeers(data);
  showDatabase(data);
  setText(byId("updated"), `As of ${moment(data.time)}.`);
}

function showFailure() {
  failedSince = failedSince || Date.now() / 1000;
  const alarm = byId("alarm");
  setText(
    alarm,
    `This node has been unreachable since ${moment(failedSince)}. ` +
      "The page shows the last data received and retries every few seconds.",
  );
  alarm.hidden = false;
  document.body.classList.add("stale");
  setText(byId("state"), "unreachable");
  setClass(byId("state"), "state bad");
}

async function ask() {
  const response = await fetch("/status.json", {
    cache: "no-store",
    credentials: "omit",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.json();
}

async function askOnce() {
  let data;
  try {
    data = await ask();
  } catch {
    showFailure();
    return;
  }
  show(data);
}

async function askAgain() {
  try {
    if (!document.hidden) await askOnce();
  } finally {
    setTimeout(askAgain, INTERVAL_MS);
  }
}

listenTo(byId("map"), "td");
askAgain();
