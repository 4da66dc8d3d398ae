/** Loading a model. */

import type { Backend } from "./backend.js";
import { AbortError, ArtifactError, InternalError, TilewrightError } from "./errors.js";
import { type FileSource, nameOf, type Progress, urlOf } from "./fetching.js";
import { Model, type Signature } from "./model.js";
import { openBackend } from "./open.js";
import { type Opened, type OpenRequest, Remote, RemoteBackend } from "./remote.js";
import { bestOf, isSources, type Sources } from "./targets.js";
import { startThread } from "./threads.js";

export interface LoadOptions {
  /** The file of weights, where it is not beside the artifact under the name in its metadata. */
  readonly weights?: FileSource;
  readonly onProgress?: (progress: Progress) => void;
  /** Ends loading with an AbortError. */
  readonly signal?: AbortSignal;
  /** Keep weights in the browser's storage, so that the next load needs no network. Default: true. */
  readonly cache?: boolean;
  /** Run the model in a worker, so that the page stays responsive. The default is true in a page, and false
   * in workers, Node and Deno. A given `device` needs false. */
  readonly worker?: boolean;
  /** The most threads that a module with threads runs on. The default is about the number of cores, at most
   * 8. It is one thread in a page without cross-origin isolation, and without a worker in any page. */
  readonly threads?: number;
  /** The device for an artifact for WebGPU. Default: a new one. */
  readonly device?: GPUDevice;
}

/** Loads the `.wasm` or `.tar` that Tilewright compiled for `wasm32` or `webgpu`. Of several files by their
 * targets, it loads the best that runs here: see `supportedTargets`.
 *
 * Throws ArtifactError where a file cannot be read, is damaged, of another version or no artifact,
 * DeviceError where WebGPU is missing, MemoryError, and AbortError. */
export async function load<S extends Signature = Signature>(
  sources: FileSource | Sources,
  options: LoadOptions = {},
): Promise<Model<S>> {
  if (!sources) throw new ArtifactError("load: no file is given");
  const source = isSources(sources) ? await bestOf(sources) : sources;
  if (options.signal?.aborted) throw new AbortError(`${nameOf(source)}: loading was aborted`);
  const inPage = typeof document !== "undefined" && typeof Worker !== "undefined";
  const worker = options.worker ?? (inPage && !options.device);
  if (worker && options.device) throw new TilewrightError("a given device needs the option worker: false");
  const backend = await (worker ? openInWorker(source, options) : openBackend(source, options));
  return new Model(backend, nameOf(source));
}

async function openInWorker(source: FileSource, options: LoadOptions): Promise<Backend> {
  const { weights, cache, threads, onProgress, signal } = options;
  const thread = await startThread(
    () => new Worker(new URL("./worker.js", import.meta.url), { type: "module" }),
    "./worker.js",
    import.meta.url,
  );
  const remote = new Remote(thread, (notice) => onProgress?.(notice as Progress));
  thread.onFailure((message) => remote.end(new InternalError(`the worker of the model failed: ${message}`)));
  const abort = (): void => void remote.call("abort", []).catch(() => undefined);
  signal?.addEventListener("abort", abort);
  const request: OpenRequest = {
    weights: weights && addressed(weights),
    progress: onProgress !== undefined,
    ...(cache !== undefined && { cache }),
    ...(threads !== undefined && { threads }),
  };
  try {
    const opened = await remote.call<Opened>("open", [addressed(source), request]);
    return new RemoteBackend(remote, () => thread.terminate(), opened);
  } catch (thrown) {
    thread.terminate();
    throw thrown;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

/** A source as another thread understands it: relative addresses are not relative to the worker. */
function addressed(source: FileSource): FileSource {
  return typeof source === "string" || source instanceof URL ? urlOf(source).href : source;
}
