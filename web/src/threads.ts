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

/** Starts the module `name` beside the module `base` in another thread: by `start`, in Node by its address.
 *
 * `start` must be written as `() => new Worker(new URL("./NAME.js", import.meta.url), { type: "module" })`:
 * bundlers recognize this form, and nothing else, as a worker to include. */
export async function startThread(start: () => Worker, name: string, base: string): Promise<Thread> {
  if (typeof Worker === "undefined") {
    const { Worker: NodeWorker } = await nodeThreads();
    const worker = new NodeWorker(new URL(name, base));
    return {
      ...portOf(worker),
      terminate: () => void worker.terminate(),
      unref: () => worker.unref(),
      onFailure: (listener) => worker.on("error", (error) => listener((error as Error).message)),
    };
  }
  const worker = start();
  return {
    postMessage: (message, transfer) => worker.postMessage(message, transfer),
    addEventListener: (type, listener) => worker.addEventListener(type, listener),
    terminate: () => worker.terminate(),
    unref: () => undefined,
    onFailure: (listener) =>
      worker.addEventListener("error", ({ message }) =>
        listener(message || `its script ${name} cannot be loaded; it belongs beside the page's scripts`),
      ),
  };
}

/** The port to the thread that started this one. There is no top-level `await`: some bundlers refuse it. */
export function parentPort(): Port {
  if (typeof (globalThis as { WorkerGlobalScope?: unknown }).WorkerGlobalScope !== "undefined")
    return globalThis as unknown as Port;
  const opened = nodeThreads().then(({ parentPort }) => portOf(parentPort));
  return {
    postMessage: (message, transfer) => void opened.then((port) => port.postMessage(message, transfer)),
    addEventListener: (type, listener) => void opened.then((port) => port.addEventListener(type, listener)),
  };
}
