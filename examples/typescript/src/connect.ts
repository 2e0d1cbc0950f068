import { readFileSync } from "node:fs";

import { type Client, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import { Store } from "./gen/storenode/v1/store_pb.js";

export type StoreClient = Client<typeof Store>;

// #region connect
// Pings detect a node that is gone while a Follow waits for messages.
const pings = { pingIntervalMs: 60_000 };

export function connect(address: string): StoreClient {
  return createClient(Store, createGrpcTransport({ baseUrl: `http://${address}`, ...pings }));
}
// #endregion

// #region tls
export function connectSecurely(address: string, authority: string, token: string): StoreClient {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  const transport = createGrpcTransport({
    baseUrl: `https://${address}`,
    nodeOptions: { ca: readFileSync(authority) },
    interceptors: [authorize],
    ...pings,
  });
  return createClient(Store, transport);
}
// #endregion
