/** `loadChatModel`: a language model with the calls of OpenAI's clients. */

import { AbortError, errorNamed, InternalError, TilewrightError } from "../errors.js";
import { type Progress, urlOf } from "../fetching.js";
import { Remote, type ThrownError } from "../remote.js";
import { startThread } from "../threads.js";
import { type ChatApi, type ChatModelOptions, openChatModel } from "./chat-model.js";
import type { Statistics } from "./engine.js";
import type { ModelInfo } from "./folder.js";
import type {
  Answer,
  ChatCompletion,
  ChatCompletionChunk,
  ChatRequest,
  Completion,
  CompletionRequest,
} from "./openai.js";
import { Queue } from "./queue.js";

export interface LoadChatOptions extends ChatModelOptions {
  /** Run the model in a worker. The default is true where there are workers. */
  readonly worker?: boolean;
}

export interface CallOptions {
  /** Ends the answer with an AbortError. */
  readonly signal?: AbortSignal;
}

type Streaming<Request> = Request & { readonly stream: true };

interface Create<Request, Chunk, Whole> {
  (body: Streaming<Request>, options?: CallOptions): Promise<AsyncIterable<Chunk>>;
  (body: Request & { readonly stream?: false }, options?: CallOptions): Promise<Whole>;
  (body: Request, options?: CallOptions): Promise<AsyncIterable<Chunk> | Whole>;
}

/** A language model; its calls are named as those of OpenAI's client. */
export interface ChatModel {
  readonly info: ModelInfo;
  readonly chat: {
    readonly completions: { readonly create: Create<ChatRequest, ChatCompletionChunk, ChatCompletion> };
  };
  readonly completions: { readonly create: Create<CompletionRequest, Completion, Completion> };
  readonly embeddings: {
    create(body: { readonly input: string | readonly string[]; readonly model?: string }): Promise<{
      readonly object: "list";
      readonly model: string;
      readonly data: readonly {
        readonly object: "embedding";
        readonly index: number;
        readonly embedding: number[];
      }[];
    }>;
  };
  statistics(): Promise<Statistics>;
  /** Ends all answers and frees the memory. */
  dispose(): Promise<void>;
}

/** Loads the model in the folder that `tilewright llm compile MODEL --target webgpu -o folder/` wrote.
 *
 * Throws ArtifactError, DeviceError, MemoryError or AbortError as `load` does. */
export async function loadChatModel(folder: string | URL, options: LoadChatOptions = {}): Promise<ChatModel> {
  if (options.signal?.aborted) throw new AbortError(`${folder}: loading was aborted`);
  const worker = options.worker ?? typeof Worker !== "undefined";
  return modelOf(worker ? await openInWorker(folder, options) : await openChatModel(folder, options));
}

function modelOf(api: ChatApi): ChatModel {
  const call =
    <Request extends { readonly stream?: boolean }, Chunk, Whole>(
      act: (body: Request) => Promise<Answer<Chunk, Whole>>,
    ) =>
    async (body: Request, { signal }: CallOptions = {}): Promise<AsyncIterable<Chunk> | Whole> => {
      if (signal?.aborted) throw new AbortError("the request was aborted");
      const answer = await act(body);
      const abort = (): void => answer.abort();
      signal?.addEventListener("abort", abort);
      if (signal?.aborted) abort(); // while the request was prepared
      if (body.stream) return listened(answer.chunks(), () => signal?.removeEventListener("abort", abort));
      return answer.whole().finally(() => signal?.removeEventListener("abort", abort));
    };
  return {
    info: api.info,
    chat: {
      completions: { create: call(api.chat) as ChatModel["chat"]["completions"]["create"] },
    },
    completions: { create: call(api.completion) as ChatModel["completions"]["create"] },
    embeddings: {
      async create({ input }) {
        const data = [];
        for (const [index, text] of (typeof input === "string" ? [input] : input).entries())
          data.push({ object: "embedding" as const, index, embedding: [...(await api.embedding(text))] });
        return { object: "list", model: api.info.name, data };
      },
    },
    statistics: () => api.statistics(),
    dispose: () => api.dispose(),
  };
}

async function* listened<T>(chunks: AsyncIterable<T>, ended: () => void): AsyncGenerator<T> {
  try {
    yield* chunks;
  } finally {
    ended();
  }
}

interface Notice {
  readonly progress?: Progress;
  readonly reader?: number;
  readonly chunk?: unknown;
  readonly done?: true;
  readonly error?: ThrownError;
}

async function openInWorker(folder: string | URL, options: LoadChatOptions): Promise<ChatApi> {
  const { cache, threads, onProgress, signal } = options;
  const thread = await startThread(
    () => new Worker(new URL("./llm-worker.js", import.meta.url), { type: "module" }),
    "./llm-worker.js",
    import.meta.url,
  );
  const readers = new Map<number, Queue<unknown>>();
  let next = 0;
  const remote = new Remote(thread, (notice) => {
    const { progress, reader, chunk, done, error } = notice as Notice;
    if (progress) onProgress?.(progress);
    const to = readers.get(reader ?? -1);
    if (chunk !== undefined) to?.push(chunk);
    if (done) to?.end();
    if (error) to?.fail(errorNamed(error.name, error.message, error.param, error.code));
  });
  thread.onFailure((message) => {
    const error = new InternalError(`the worker of the model failed: ${message}`);
    remote.end(error);
    for (const reader of readers.values()) reader.fail(error);
  });
  const abort = (): void => void remote.call("abort", []).catch(() => undefined);
  signal?.addEventListener("abort", abort);
  let info: ModelInfo;
  try {
    const request = {
      progress: onProgress !== undefined,
      ...(cache !== undefined && { cache }),
      ...(threads !== undefined && { threads }),
    };
    info = await remote.call<ModelInfo>("open", [urlOf(folder).href, request]);
  } catch (thrown) {
    thread.terminate();
    throw thrown;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
  const answer = <Chunk, Whole>(name: string, stream: string, body: unknown): Answer<Chunk, Whole> => {
    const number = next++;
    return {
      abort: () => void remote.call("stop", [number]).catch(() => undefined),
      async *chunks() {
        const reader = new Queue<unknown>();
        readers.set(number, reader);
        try {
          await remote.call(stream, [number, body]);
          yield* reader.read() as AsyncIterable<Chunk>;
        } finally {
          readers.delete(number);
          if (!reader.ended) await remote.call("stop", [number]).catch(() => undefined);
        }
      },
      whole: () => remote.call<Whole>(name, [number, body]),
    };
  };
  return {
    info,
    chat: async (body) => answer("chat", "streamChat", body),
    completion: async (body) => answer("completion", "streamCompletion", body),
    embedding: (text) => remote.call("embedding", [text]),
    statistics: () => remote.call("statistics", []),
    dispose: async () => {
      await remote.call("dispose", []);
      thread.terminate();
      remote.end(new TilewrightError("this model has been disposed of: load it again"));
    },
  };
}
