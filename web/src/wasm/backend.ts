/** `Backend` for WebAssembly in this thread. */

import { verify } from "../archive.js";
import type { Backend, RunResult } from "../backend.js";
import { ArtifactError, asError, MemoryError } from "../errors.js";
import { type FetchOptions, type FileSource, nameOf } from "../fetching.js";
import type { Metadata } from "../metadata.js";
import type { Tensor } from "../tensors.js";
import { readWeights } from "../weights.js";
import { type Exports, WasmInstance } from "./instance.js";

export interface WasmOptions extends FetchOptions {
  readonly weights?: FileSource | undefined;
}

export class WasmBackend implements Backend {
  readonly name = "wasm32";
  readonly threads = 1;
  readonly metadata: Metadata;

  private constructor(private readonly instance: WasmInstance) {
    this.metadata = instance.metadata;
  }

  /** Starts the module in `file`, which was read from `source`, and reads its weights. */
  static async open(file: Uint8Array, source: FileSource, options: WasmOptions): Promise<WasmBackend> {
    const where = nameOf(source);
    await verify(file, where);
    let exports: Exports;
    try {
      const { instance } = await WebAssembly.instantiate(file as BufferSource, {});
      exports = instance.exports as Exports;
    } catch (thrown) {
      const { message } = asError(thrown);
      if (thrown instanceof RangeError)
        throw new MemoryError(`${where}: no memory for the model: ${message}`);
      throw new ArtifactError(`${where}: this WebAssembly engine cannot load it: ${message}`);
    }
    const made = new WasmInstance(exports, exports.memory, where);
    const entry = made.metadata.weights;
    if (!entry) made.create(1);
    else {
      const place = made.allocate(entry.bytes);
      await readWeights(
        entry,
        source,
        options.weights,
        (part, at) => made.bytes(place + at, part.length).set(part),
        options,
      );
      made.create(1, place, entry.bytes);
    }
    return new WasmBackend(made);
  }

  async run(name: string, inputs: readonly Tensor[]): Promise<RunResult> {
    return this.instance.run(name, inputs);
  }

  async readState(index: number): Promise<Tensor> {
    return this.instance.readState(index);
  }

  async writeState(index: number, data: Uint8Array): Promise<void> {
    this.instance.writeState(index, data);
  }

  async reset(): Promise<void> {
    this.instance.reset();
  }

  async close(): Promise<void> {
    this.instance.close();
  }
}
