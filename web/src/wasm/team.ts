/** The threads of a module: workers, each with an instance of its own and the memory of all. */

import { InternalError } from "../errors.js";
import { Remote } from "../remote.js";
import { startThread } from "../threads.js";

/** Starts at most `count` workers for `module`; a worker that cannot start is left out. `prepare` makes room
 * for one more thread and returns its place, 0 where there is none. Returns a function that ends each. */
export async function startTeam(
  module: WebAssembly.Module,
  memory: WebAssembly.Memory,
  count: number,
  prepare: () => number,
): Promise<(() => void)[]> {
  const started = await Promise.allSettled(
    Array.from({ length: count }, async () => {
      const thread = await startThread(
        () => new Worker(new URL("./thread.js", import.meta.url), { type: "module" }),
        "./thread.js",
        import.meta.url,
      );
      const remote = new Remote(thread);
      thread.onFailure((message) => remote.end(new InternalError(`a thread failed: ${message}`)));
      try {
        await remote.call("prepare", [module, memory]);
        const place = prepare();
        if (!place) throw new InternalError("no memory for a stack");
        await remote.call("run", [place]);
      } catch (thrown) {
        thread.terminate();
        throw thrown;
      }
      thread.unref();
      return () => thread.terminate();
    }),
  );
  return started.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
}
