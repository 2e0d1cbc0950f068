// SDS messages: the parts of protobuf's wire format that the page shows, and proofs of message IDs.

function* fieldsOf(bytes) {
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
    } else throw new RangeError("unknown wire type");
  }
}

export const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function parentOf(bytes) {
  try {
    for (const [part, text] of fieldsOf(bytes)) if (part === 1) return utf8.decode(text);
  } catch { /* the older revision, whose entries are the IDs themselves */ }
  return utf8.decode(bytes);
}

export function decodeSds(bytes) {
  const found = { parents: [] };
  try {
    for (const [number, value] of fieldsOf(bytes)) {
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
