/** The worker of `load(source, { worker: true })`: it loads one model and runs it. */

import type { Backend, FunctionCall } from "./backend.js";
import type { FileSource } from "./fetching.js";
import { openBackend } from "./open.js";
import { type Opened, type OpenRequest, serve } from "./remote.js";
import { parentPort } from "./threads.js";

let backend: Backend;
const opening = new AbortController();
const port = parentPort();

serve(port, {
  open: async (source: FileSource, { progress, ...options }: OpenRequest): Promise<Opened> => {
    backend = await openBackend(source, {
      ...options,
      signal: opening.signal,
      ...(progress && { onProgress: (notice) => port.postMessage({ notice }, []) }),
    });
    const { name, metadata, threads } = backend;
    return { name, metadata, threads };
  },
  abort: () => opening.abort(),
  run: (calls: readonly FunctionCall[]) => backend.run(calls),
  readState: (index: number) => backend.readState(index),
  writeState: (index: number, data: Uint8Array) => backend.writeState(index, data),
  reset: () => backend.reset(),
  close: () => backend.close(),
});
