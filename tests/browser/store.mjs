// What a page of another site does with the TypeScript client: one call for each question.
import { Code, ConnectError } from "@connectrpc/connect";

import { connectFromPage } from "/dist/web.js";

const pubsubTopic = "/waku/2/rs/1/0";
const decoder = new TextDecoder();

function open({ api, token }) {
  return connectFromPage(api, token);
}

function texts(messages) {
  return messages.map(({ message }) => decoder.decode(message.payload));
}

const calls = {
  async publish(store, { topic, said }) {
    const messages = said.map((text, index) => ({
      message: {
        payload: new TextEncoder().encode(text),
        contentTopic: topic,
        timestamp: BigInt(Date.now()) * 1_000_000n + BigInt(index),
      },
      pubsubTopic,
    }));
    return (await store.publish({ messages })).results.map(({ outcome }) => outcome);
  },
  async query(store, { topic }) {
    const page = await store.query({ contentTopics: [topic], includeData: true });
    return texts(page.messages);
  },
  async scan(store, { topic }) {
    const filter = { contentTopics: [topic] };
    const found = [];
    for await (const page of store.scan({ filter, includeData: true, pageSize: 2 })) {
      found.push(texts(page.messages));
    }
    return found;
  },
  // Follows until a text has come that is published when everything before has been read.
  async follow(store, { topic, last }) {
    const filter = { contentTopics: [topic] };
    const found = [];
    for await (const page of store.follow({ filter, fromBeginning: true, includeData: true })) {
      found.push(...texts(page.messages));
      if (page.live && !found.includes(last)) {
        await calls.publish(store, { topic, said: [last] });
      }
      if (found.includes(last)) {
        return found;
      }
    }
    throw new Error("the node has ended the stream");
  },
  async wrongCursor(store) {
    for await (const page of store.follow({ cursor: new Uint8Array([1]) })) {
      throw new Error(`a page came: ${page}`);
    }
  },
};

window.ask = async (question) => {
  try {
    return { answer: await calls[question.what](open(question), question) };
  } catch (error) {
    if (error instanceof ConnectError) {
      const id = error.metadata.get("x-request-id");
      return { code: Code[error.code], sentence: error.rawMessage, id };
    }
    return { code: "none", sentence: String(error) };
  }
};
