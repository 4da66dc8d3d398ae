/** The worker of `loadChatModel`: it holds the model, and sends the parts of answers as they come. */

import { serve, thrownError } from "../remote.js";
import { parentPort } from "../threads.js";
import { type ChatApi, openChatModel } from "./chat-model.js";
import type { Answer, ChatRequest, CompletionRequest } from "./openai.js";

/** The page's options of loading. */
interface WorkerOptions {
  readonly cache?: boolean;
  readonly threads?: number;
  readonly progress: boolean;
}

let model: ChatApi;
const opening = new AbortController();
const port = parentPort();
const answers = new Map<number, Answer<unknown, unknown>>();

/** Sends the parts of an answer as notices with the reader's number. */
async function send(reader: number, answer: Answer<unknown, unknown>): Promise<void> {
  answers.set(reader, answer);
  try {
    for await (const chunk of answer.chunks()) port.postMessage({ notice: { reader, chunk } }, []);
    port.postMessage({ notice: { reader, done: true } }, []);
  } catch (thrown) {
    port.postMessage({ notice: { reader, error: thrownError(thrown) } }, []);
  } finally {
    answers.delete(reader);
  }
}

const whole = async (reader: number, answer: Answer<unknown, unknown>): Promise<unknown> => {
  answers.set(reader, answer);
  return answer.whole().finally(() => answers.delete(reader));
};

serve(port, {
  open: async (folder: string, { progress, ...options }: WorkerOptions) => {
    model = await openChatModel(folder, {
      ...options,
      signal: opening.signal,
      ...(progress && { onProgress: (notice) => port.postMessage({ notice: { progress: notice } }, []) }),
    });
    return model.info;
  },
  abort: () => opening.abort(),
  chat: async (reader: number, body: ChatRequest) => whole(reader, await model.chat(body)),
  streamChat: async (reader: number, body: ChatRequest) => void send(reader, await model.chat(body)),
  completion: async (reader: number, body: CompletionRequest) => whole(reader, await model.completion(body)),
  streamCompletion: async (reader: number, body: CompletionRequest) =>
    void send(reader, await model.completion(body)),
  stop: (reader: number) => answers.get(reader)?.abort(),
  embedding: (text: string) => model.embedding(text),
  statistics: () => model.statistics(),
  dispose: () => model.dispose(),
});
