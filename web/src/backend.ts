/** The interface of WebAssembly and WebGPU to `Model`. Another thread may stand between them. */

import type { FetchOptions, FileSource } from "./fetching.js";
import type { Metadata } from "./metadata.js";
import type { Tensor } from "./tensors.js";
import type { Shards } from "./weights.js";

export type BackendName = "wasm32" | "webgpu";

export interface Backend {
  readonly name: BackendName;
  readonly metadata: Metadata;
  /** Threads that kernels run on. */
  readonly threads: number;
  /** Runs different functions one after the other; WebGPU waits once for the results of all. */
  run(calls: readonly FunctionCall[]): Promise<RunResult[]>;
  readState(index: number): Promise<Tensor>;
  /** `data`: the bytes of the whole state. */
  writeState(index: number, data: Uint8Array): Promise<void>;
  reset(): Promise<void>;
  close(): Promise<void>;
}

/** How an artifact is opened. */
export interface OpenOptions extends FetchOptions {
  readonly weights?: FileSource | Shards | undefined;
  readonly device?: GPUDevice | undefined;
  readonly threads?: number | undefined;
}

export interface FunctionCall {
  readonly name: string;
  /** In the model's order. */
  readonly inputs: readonly Tensor[];
}

export interface RunResult {
  /** In the model's order. */
  readonly outputs: Tensor[];
  /** The new values of the inputs that the model changes, by their numbers. */
  readonly updated: readonly (readonly [number, Tensor])[];
}
