// A client of a store node in TypeScript; docs/clients.md shows how to build and run it.
//
//   client publish TEXT
//   client query
//   client scan
//   client follow CURSOR_FILE
//
// Environment: STORENODE_NODE, the node's HOST:PORT; STORENODE_TLS_CA, the authority of its
// certificate, and STORENODE_TOKEN_FILE, the client's token: both or neither. Or STORENODE_URL, that
// of the node's HTTP listener, which is called as web pages do.
import { readFileSync } from "node:fs";

import { Code, ConnectError } from "@connectrpc/connect";

import { connect, connectSecurely, type StoreClient } from "./connect.js";
import { follow, publish, query, scan } from "./store.js";
import { connectFromPage } from "./web.js";

// Ctrl-C ends a follow after the page that is being processed.
const interrupted = new AbortController();

try {
  await run(process.argv.slice(2));
} catch (error) {
  if (!interrupted.signal.aborted) {
    console.error(explain(error));
    process.exitCode = 1;
  }
}

async function run([command, argument]: string[]): Promise<void> {
  const store = openStore();
  if (command === "publish" && argument !== undefined) {
    await publish(store, argument);
  } else if (command === "query") {
    await query(store);
  } else if (command === "scan") {
    await scan(store);
  } else if (command === "follow" && argument !== undefined) {
    process.once("SIGINT", () => interrupted.abort());
    await follow(store, argument, interrupted.signal);
  } else {
    throw new Error("usage: client publish TEXT | query | scan | follow CURSOR_FILE");
  }
}

function openStore(): StoreClient {
  const { STORENODE_NODE, STORENODE_TLS_CA, STORENODE_TOKEN_FILE, STORENODE_URL } = process.env;
  if (STORENODE_URL !== undefined) {
    return connectFromPage(STORENODE_URL, readToken(STORENODE_TOKEN_FILE));
  }
  const address = STORENODE_NODE ?? "127.0.0.1:7420";
  if (STORENODE_TLS_CA === undefined && STORENODE_TOKEN_FILE === undefined) {
    return connect(address);
  }
  if (STORENODE_TLS_CA === undefined || STORENODE_TOKEN_FILE === undefined) {
    throw new Error("set both STORENODE_TLS_CA and STORENODE_TOKEN_FILE, or neither");
  }
  return connectSecurely(address, STORENODE_TLS_CA, readToken(STORENODE_TOKEN_FILE));
}

function readToken(file: string | undefined): string {
  return file === undefined ? "" : readFileSync(file, "utf8").trim();
}

// The node's sentence and the status code that it came with.
function explain(error: unknown): string {
  if (error instanceof ConnectError) {
    return `${error.rawMessage} (${Code[error.code]})`;
  }
  return error instanceof Error ? error.message : String(error);
}
