import { existsSync, readFileSync, writeFileSync } from "node:fs";

import type { StoreClient } from "./connect.js";
import { PublishResult_Outcome } from "./gen/storenode/v1/store_pb.js";
import type { WakuMessageKeyValue } from "./gen/waku/store/v3/store_pb.js";

const pubsubTopic = "/waku/2/rs/1/0";
const contentTopic = "/my-chat/1/lobby/proto";

export async function publish(store: StoreClient, text: string): Promise<void> {
  // #region publish
  const timestamp = BigInt(Date.now()) * 1_000_000n;
  const message = { payload: Buffer.from(text), contentTopic, timestamp };
  const response = await store.publish({ messages: [{ message, pubsubTopic }] });
  for (const { outcome, messageHash, reason } of response.results) {
    console.log(PublishResult_Outcome[outcome], hex(messageHash), reason);
  }
  // #endregion
}

export async function query(store: StoreClient): Promise<void> {
  // #region query
  const response = await store.query({
    pubsubTopic,
    contentTopics: [contentTopic],
    includeData: true,
    paginationLimit: 10n,
  });
  if (response.statusCode !== 200) {
    throw new Error(`${response.statusDesc} (${response.statusCode})`);
  }
  show(response.messages);
  // #endregion
}

export async function scan(store: StoreClient): Promise<void> {
  // #region scan
  const filter = { contentTopics: [contentTopic] };
  for await (const page of store.scan({ filter, includeData: true })) {
    show(page.messages);
  }
  // #endregion
}

export async function follow(store: StoreClient, file: string, signal: AbortSignal): Promise<void> {
  // #region follow
  const cursor = existsSync(file) ? readFileSync(file) : undefined;
  const filter = { contentTopics: [contentTopic] };
  const request = { filter, cursor, fromBeginning: true, includeData: true };
  for await (const page of store.follow(request, { signal })) {
    show(page.messages);
    writeFileSync(file, page.cursor);
  }
  // #endregion
}

function show(messages: WakuMessageKeyValue[]): void {
  for (const { messageHash, message } of messages) {
    console.log(hex(messageHash), Buffer.from(message?.payload ?? []).toString());
  }
}

function hex(bytes: Uint8Array = new Uint8Array()): string {
  return Buffer.from(bytes).toString("hex");
}
