import { createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";

import type { StoreClient } from "./connect.js";
import { Store } from "./gen/storenode/v1/store_pb.js";

// #region web
export function connectFromPage(url: string, token: string): StoreClient {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  const interceptors = token === "" ? [] : [authorize];
  const transport = createConnectTransport({ baseUrl: url, useBinaryFormat: true, interceptors });
  return createClient(Store, transport);
}
// #endregion
