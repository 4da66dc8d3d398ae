/** The worker of one thread of a WebAssembly module: see `team.ts`. */

import { serve } from "../remote.js";
import { parentPort } from "../threads.js";

const port = parentPort();
let instance: WebAssembly.Instance;

serve(port, {
  prepare: async (module: WebAssembly.Module, memory: WebAssembly.Memory): Promise<void> => {
    instance = await WebAssembly.instantiate(module, { env: { memory } });
  },
  // The answer is sent before the call, which returns when the model's threads end.
  run: (place: number): void => {
    setTimeout(() => (instance.exports.tw_thread_run as (place: number) => void)(place));
  },
});
