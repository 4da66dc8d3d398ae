/** A backend in another thread, so that a page stays responsive while a model runs. */

import type { Backend, BackendName, FunctionCall, RunResult } from "./backend.js";
import { asError, errorNamed, InternalError, RequestError } from "./errors.js";
import type { FileSource } from "./fetching.js";
import type { Metadata } from "./metadata.js";
import type { Tensor } from "./tensors.js";

/** A `Worker`, a `MessagePort`, or a thread of Node behind `onMessage`. */
export interface Port {
  postMessage(message: unknown, transfer: Transferable[]): void;
  addEventListener(type: "message", listener: (event: { data: unknown }) => void): void;
}

/** An error as a message. */
export interface ThrownError {
  readonly name: string;
  readonly message: string;
  /** The field of a request at fault. */
  readonly param: string | null;
  readonly code: string | null;
}

/** Any thrown value as a message. */
export function thrownError(thrown: unknown): ThrownError {
  const { name, message } = asError(thrown);
  const { param, code } = thrown instanceof RequestError ? thrown : { param: null, code: null };
  return { name, message, param, code };
}

interface Call {
  id: number;
  method: string;
  args: unknown[];
}

interface Answer {
  id: number;
  value?: unknown;
  error?: ThrownError;
}

type Methods = Readonly<Record<string, (...args: never[]) => unknown>>;

/** Answers calls that `Remote` sends. */
export function serve(port: Port, methods: Methods): void {
  port.addEventListener("message", async ({ data }) => {
    const { id, method, args } = data as Call;
    try {
      const act = methods[method];
      if (!act) throw new InternalError(`the worker has no method '${method}'`);
      const value = await act(...(args as never[]));
      port.postMessage({ id, value } satisfies Answer, buffersOf(value));
    } catch (thrown) {
      port.postMessage({ id, error: thrownError(thrown) } satisfies Answer, []);
    }
  });
}

/** Calls methods of the other side of a port. */
export class Remote {
  private next = 0;
  private ended: Error | null = null;
  private readonly waiting = new Map<number, [(value: unknown) => void, (error: Error) => void]>();

  /** `onNotice` gets what the other side sends without being asked. */
  constructor(
    private readonly port: Port,
    onNotice: (notice: unknown) => void = () => undefined,
  ) {
    port.addEventListener("message", ({ data }) => {
      if (Object.hasOwn(data as object, "notice")) return onNotice((data as { notice: unknown }).notice);
      const { id, value, error } = data as Answer;
      const [resolve, reject] = this.waiting.get(id) ?? [];
      this.waiting.delete(id);
      if (error) reject?.(errorNamed(error.name, error.message, error.param, error.code));
      else resolve?.(value);
    });
  }

  call<T>(method: string, args: unknown[], transfer: Transferable[] = []): Promise<T> {
    if (this.ended) return Promise.reject(this.ended);
    const id = this.next++;
    return new Promise<T>((resolve, reject) => {
      this.waiting.set(id, [resolve as (value: unknown) => void, reject]);
      this.port.postMessage({ id, method, args } satisfies Call, transfer);
    });
  }

  /** Fails all calls that have no answer, and all later ones: the other side has ended. */
  end(error: Error): void {
    this.ended = error;
    for (const [, reject] of this.waiting.values()) reject(error);
    this.waiting.clear();
  }
}

/** The array buffers of tensors in a result, which move to the other thread without a copy. */
function buffersOf(value: unknown): Transferable[] {
  const found = new Set<Transferable>();
  const visit = (item: unknown): void => {
    if (ArrayBuffer.isView(item)) {
      if (item.buffer instanceof ArrayBuffer) found.add(item.buffer);
    } else if (Array.isArray(item)) item.forEach(visit);
    else if (item && typeof item === "object") Object.values(item).forEach(visit);
  };
  visit(value);
  return [...found];
}

/** The options of a load in a worker. */
export interface OpenRequest {
  readonly weights: FileSource | undefined;
  readonly cache?: boolean;
  readonly threads?: number;
  /** Whether the page wants to see the progress. */
  readonly progress: boolean;
}

/** A worker's description of its model. */
export interface Opened {
  readonly name: BackendName;
  readonly metadata: Metadata;
  readonly threads: number;
}

/** The backend of a model that `worker.ts` has loaded. */
export class RemoteBackend implements Backend {
  readonly name: BackendName;
  readonly metadata: Metadata;
  readonly threads: number;

  constructor(
    private readonly remote: Remote,
    private readonly terminate: () => void,
    { name, metadata, threads }: Opened,
  ) {
    this.name = name;
    this.metadata = metadata;
    this.threads = threads;
  }

  run(calls: readonly FunctionCall[]): Promise<RunResult[]> {
    return this.remote.call("run", [calls]);
  }

  readState(index: number): Promise<Tensor> {
    return this.remote.call("readState", [index]);
  }

  writeState(index: number, data: Uint8Array): Promise<void> {
    return this.remote.call("writeState", [index, data]);
  }

  reset(): Promise<void> {
    return this.remote.call("reset", []);
  }

  async close(): Promise<void> {
    await this.remote.call("close", []);
    this.terminate();
  }
}
