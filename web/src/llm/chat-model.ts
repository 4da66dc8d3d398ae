/** A language model with OpenAI's interface. */

import type { Progress } from "../fetching.js";
import { openBackend } from "../open.js";
import { Engine, type Statistics } from "./engine.js";
import { inFolder, type ModelInfo, modelInfo, shardsOf, tokenizerFiles } from "./folder.js";
import {
  type Answer,
  type ChatCompletion,
  type ChatCompletionChunk,
  type ChatRequest,
  type Completion,
  type CompletionRequest,
  chat,
  completion,
} from "./openai.js";
import { Runner } from "./runner.js";
import { Tokenizer } from "./tokenizer.js";

export interface ChatModelOptions {
  readonly onProgress?: (progress: Progress) => void;
  /** Ends loading with an AbortError. */
  readonly signal?: AbortSignal;
  /** Keep weights in the browser's storage. Default: true. */
  readonly cache?: boolean;
  /** The most threads of a library for `wasm32:threads`. */
  readonly threads?: number;
}

/** The calls of a page, or of the worker's other side. */
export interface ChatApi {
  readonly info: ModelInfo;
  chat(body: ChatRequest): Promise<Answer<ChatCompletionChunk, ChatCompletion>>;
  completion(body: CompletionRequest): Promise<Answer<Completion, Completion>>;
  embedding(text: string): Promise<Float32Array>;
  statistics(): Promise<Statistics>;
  dispose(): Promise<void>;
}

/** Opens the model of a folder in this thread. */
export async function openChatModel(folder: string | URL, options: ChatModelOptions): Promise<ChatApi> {
  const info = await modelInfo(folder, options.signal);
  const [files, backend] = await Promise.all([
    tokenizerFiles(folder, info, options.signal),
    openBackend(inFolder(folder, info.library), { ...options, weights: shardsOf(folder, info) }),
  ]);
  const engine = new Engine(new Runner(backend, info.library), new Tokenizer(files));
  return {
    info,
    chat: (body) => chat(engine, info.name, body),
    completion: (body) => completion(engine, info.name, body),
    embedding: (text) => engine.embed(engine.tokenizer.encode(text, true)),
    statistics: async () => engine.statistics,
    dispose: () => engine.dispose(),
  };
}
