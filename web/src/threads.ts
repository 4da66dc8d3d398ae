/** Workers of browsers, of Deno and of Node behind one interface. */

import type { Port } from "./remote.js";

export interface Thread extends Port {
  terminate(): void;
  /** Lets a process of Node end while the thread runs. */
  unref(): void;
  /** Calls `listener` when the thread fails. */
  onFailure(listener: (message: string) => void): void;
}

interface NodeThreads {
  Worker: new (
    url: URL,
  ) => NodeEmitter & {
    postMessage: Port["postMessage"];
    terminate(): Promise<number>;
    unref(): void;
  };
  parentPort: NodeEmitter & { postMessage: Port["postMessage"] };
}

interface NodeEmitter {
  on(event: string, listener: (value: unknown) => void): void;
}

const nodeThreads = async (): Promise<NodeThreads> =>
  (await import(/* webpackIgnore: true */ "node:worker_threads")) as unknown as NodeThreads;

const portOf = (node: NodeEmitter & { postMessage: Port["postMessage"] }): Port => ({
  postMessage: (message, transfer) => node.postMessage(message, transfer),
  addEventListener: (_type, listener) => node.on("message", (data) => listener({ data })),
});

/** Starts the module `url` in another thread. */
export async function startThread(url: URL): Promise<Thread> {
  if (typeof Worker === "undefined") {
    const { Worker: NodeWorker } = await nodeThreads();
    const worker = new NodeWorker(url);
    return {
      ...portOf(worker),
      terminate: () => void worker.terminate(),
      unref: () => worker.unref(),
      onFailure: (listener) => worker.on("error", (error) => listener((error as Error).message)),
    };
  }
  const worker = new Worker(url, { type: "module" });
  return {
    postMessage: (message, transfer) => worker.postMessage(message, transfer),
    addEventListener: (type, listener) => worker.addEventListener(type, listener),
    terminate: () => worker.terminate(),
    unref: () => undefined,
    onFailure: (listener) =>
      worker.addEventListener("error", ({ message }) => listener(message || "its script cannot be loaded")),
  };
}

/** The port to the thread that started this one. */
export async function parentPort(): Promise<Port> {
  if (typeof (globalThis as { WorkerGlobalScope?: unknown }).WorkerGlobalScope !== "undefined")
    return globalThis as unknown as Port;
  return portOf((await nodeThreads()).parentPort);
}
