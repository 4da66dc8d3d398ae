/** `Backend` for WebAssembly in this thread. */

import { verify } from "../archive.js";
import type { Backend, FunctionCall, OpenOptions, RunResult } from "../backend.js";
import { ArtifactError, asError, MemoryError } from "../errors.js";
import { type FileSource, nameOf } from "../fetching.js";
import { type Metadata, parseMetadata } from "../metadata.js";
import type { Tensor } from "../tensors.js";
import { readWeights } from "../weights.js";
import { hasRelaxedSimd, pagesOf, sharedMemory, threadCount } from "./features.js";
import { type Exports, WasmInstance } from "./instance.js";
import { startTeam } from "./team.js";

export class WasmBackend implements Backend {
  readonly name = "wasm32";
  readonly metadata: Metadata;

  private constructor(
    private readonly instance: WasmInstance,
    private readonly exports: Exports,
    private readonly team: readonly (() => void)[],
  ) {
    this.metadata = instance.metadata;
  }

  get threads(): number {
    return this.team.length + 1;
  }

  /** Starts the module in `file`, which was read from `source`, and reads its weights. */
  static async open(file: Uint8Array, source: FileSource, options: OpenOptions): Promise<WasmBackend> {
    const where = nameOf(source);
    const { at, bytes } = await verify(file, where);
    const metadata = parseMetadata(new TextDecoder().decode(file.subarray(at, at + bytes)), where);
    const threads = threadCount(options.threads);
    const { module, exports, memory } = await instantiate(file, metadata, threads, where);
    const made = new WasmInstance(exports, memory, where);
    const team =
      memory === exports.memory
        ? []
        : await startTeam(module, memory, threads - 1, () => exports.tw_thread_prepare?.() ?? 0);
    try {
      const entry = made.metadata.weights;
      const place = entry ? made.allocate(entry.bytes) : 0;
      if (entry)
        await readWeights(
          entry,
          source,
          options.weights,
          (part, at) => made.bytes(place + at, part.length).set(part),
          options,
        );
      made.create(team.length + 1, place, entry?.bytes ?? 0);
    } catch (thrown) {
      endTeam(exports, team);
      throw thrown;
    }
    return new WasmBackend(made, exports, team);
  }

  async run(calls: readonly FunctionCall[]): Promise<RunResult[]> {
    return calls.map(({ name, inputs }) => this.instance.run(name, inputs));
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
    endTeam(this.exports, this.team);
  }
}

/** Ends the threads of a module without a context. They return first: Deno cannot end one that waits. */
function endTeam(exports: Exports, team: readonly (() => void)[]): void {
  exports.tw_thread_end?.();
  for (const end of team) end();
}

interface Started {
  readonly module: WebAssembly.Module;
  readonly exports: Exports;
  /** The memory that the module shares with its threads, or its own. */
  readonly memory: WebAssembly.Memory;
}

/** Bytes of memory beside code, weights and intermediates: small tables, inputs and outputs. */
const SPARE = 2 << 20;
/** Bytes of the stack of a thread; the first one's is part of the module's static memory. */
const STACK = (1 << 20) + 4096;

/** Compiles and starts a module with memory for a run of usual sizes, so that it need not grow. */
async function instantiate(
  file: Uint8Array,
  metadata: Metadata,
  threads: number,
  where: string,
): Promise<Started> {
  const features = metadata.target.features ?? [];
  if (features.includes("+relaxed-simd") && !hasRelaxedSimd())
    throw new ArtifactError(
      `${where}: this WebAssembly engine has no relaxed SIMD: compile the model for wasm32 too, and give ` +
        "load both files",
    );
  const room = (metadata.weights?.bytes ?? 0) + (metadata.memory?.arena_bytes ?? 0) + SPARE;
  try {
    const module = await WebAssembly.compile(file as BufferSource);
    if (WebAssembly.Module.imports(module).length) {
      const memory = sharedMemory(file.length + room + threads * STACK);
      const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
      return { module, exports: exports as Exports, memory };
    }
    const exports = (await WebAssembly.instantiate(module)).exports as Exports;
    growBy(exports.memory, room);
    return { module, exports, memory: exports.memory };
  } catch (thrown) {
    const { message } = asError(thrown);
    if (thrown instanceof RangeError) throw new MemoryError(`${where}: no memory for the model: ${message}`);
    throw new ArtifactError(`${where}: this WebAssembly engine cannot load it: ${message}`);
  }
}

function growBy(memory: WebAssembly.Memory, bytes: number): void {
  try {
    memory.grow(pagesOf(bytes));
  } catch {
    // The run may need less; an allocation that fails says so.
  }
}
