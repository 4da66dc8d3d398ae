/** Checks JSON schemas before the library of grammars gets them. */

import { InternalError, RequestError } from "../errors.js";
import { Remote } from "../remote.js";
import { startThread, type Thread } from "../threads.js";

/** The most schemas that are remembered as valid. */
const KEPT = 256;

/** xgrammar aborts at a wrong schema: its module then keeps what it had allocated, and its stack. A worker
 * with a module of its own tries each new schema first, and is replaced after a wrong one. */
export class SchemaChecker {
  private readonly valid = new Set<string>();
  private worker: Promise<{ thread: Thread; remote: Remote } | null> | null = null;
  private checks: Promise<unknown> = Promise.resolve();

  /** Throws RequestError for a schema that xgrammar does not convert. */
  check(schema: string): Promise<void> {
    if (this.valid.has(schema)) return Promise.resolve();
    const checked = this.checks.then(() => this.checkNow(schema));
    this.checks = checked.catch(() => undefined);
    return checked;
  }

  dispose(): void {
    const worker = this.worker;
    this.worker = null;
    void worker?.then((started) => started?.thread.terminate());
  }

  private async checkNow(schema: string): Promise<void> {
    this.worker ??= this.start();
    const started = await this.worker;
    if (!started) return; // a service worker cannot start workers
    try {
      await started.remote.call("check", [schema]);
    } catch (thrown) {
      this.dispose();
      if (!(thrown instanceof RequestError))
        throw new InternalError(`checking the JSON schema failed: ${thrown}`);
      throw thrown;
    }
    if (this.valid.size >= KEPT) this.valid.clear();
    this.valid.add(schema);
  }

  private async start(): Promise<{ thread: Thread; remote: Remote } | null> {
    let thread: Thread;
    try {
      thread = await startThread(
        () => new Worker(new URL("./schema-worker.js", import.meta.url), { type: "module" }),
        "./schema-worker.js",
        import.meta.url,
      );
    } catch {
      return null;
    }
    const remote = new Remote(thread);
    thread.onFailure((message) => remote.end(new InternalError(message)));
    return { thread, remote };
  }
}
