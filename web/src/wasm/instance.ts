/** A WebAssembly module of a model, by the C interface of tilewright.h. */

import type { RunResult } from "../backend.js";
import { type ElementArray, elementNamed } from "../elements.js";
import { ArtifactError, errorForStatus, InternalError, MemoryError } from "../errors.js";
import { functionsOf, type Metadata, parseMetadata, type TensorEntry } from "../metadata.js";
import { bytesOf, product, type Tensor } from "../tensors.js";

const ABI_VERSION = 3;
// Sizes in bytes of structures of tilewright.h on wasm32.
const TENSOR_SIZE = 40; // DLTensor: data, device (2 words), ndim, dtype, shape, strides, padding, byte_offset
const OPTIONS_SIZE = 32; // tw_options: abi_version, num_threads, weights, padding, weights_size, flags, path
const SKIP_VERIFY = 1; // TW_SKIP_VERIFY
const CPU = 1; // kDLCPU

export interface Exports extends WebAssembly.Exports {
  readonly memory: WebAssembly.Memory;
  tw_abi_version(): number;
  tw_metadata(): number;
  tw_last_error(): number;
  tw_create(options: number, context: number): number;
  tw_destroy(context: number): void;
  tw_alloc(bytes: number): number;
  tw_free(pointer: number): void;
  tw_function_index(name: number): number;
  tw_function_run(
    context: number,
    index: number,
    inputs: number,
    inputCount: number,
    outputs: number,
    outputCount: number,
  ): number;
  tw_state(context: number, index: number, tensor: number): number;
  tw_reset(context: number): number;
  tw_thread_prepare?(): number;
  tw_thread_end?(): void;
}

/** An instance with its memory and, after `create`, a context. Calls are synchronous. */
export class WasmInstance {
  readonly metadata: Metadata;
  private context = 0;

  constructor(
    private readonly exports: Exports,
    private readonly memory: WebAssembly.Memory,
    private readonly where: string,
  ) {
    const version = exports.tw_abi_version?.();
    if (version !== ABI_VERSION)
      throw new ArtifactError(
        `${where}: its C interface is version ${version}, this package supports version ${ABI_VERSION}: ` +
          "use the package of the version that compiled the model",
      );
    this.metadata = parseMetadata(this.text(exports.tw_metadata()), where);
  }

  /** Makes the context. The weights, if the module does not hold them, are at `weights`. */
  create(threads: number, weights = 0, weightsBytes = 0): void {
    // tw_create writes the address of the context to the 4 bytes after the options.
    const options = this.allocate(OPTIONS_SIZE + 4);
    const view = this.view();
    view.setUint32(options, ABI_VERSION, true);
    view.setInt32(options + 4, threads, true);
    view.setUint32(options + 8, weights, true);
    view.setUint32(options + 12, 0, true);
    view.setBigUint64(options + 16, BigInt(weightsBytes), true);
    view.setUint32(options + 24, weights ? SKIP_VERIFY : 0, true);
    view.setUint32(options + 28, 0, true);
    this.check(this.exports.tw_create(options, options + OPTIONS_SIZE));
    this.context = this.view().getUint32(options + OPTIONS_SIZE, true);
    this.exports.tw_free(options);
  }

  run(name: string, inputs: readonly Tensor[]): RunResult {
    const entry = functionsOf(this.metadata)[name];
    if (!entry) throw new InternalError(`${this.where}: no function '${name}'`);
    const allocated: number[] = [];
    try {
      const index = this.call("tw_function_index", this.copyIn(textBytes(name), allocated));
      const count = inputs.length;
      const size = TENSOR_SIZE * (count + entry.outputs.length);
      const tensors = this.allocate(size, allocated);
      this.bytes(tensors, size).fill(0);
      inputs.forEach((input, k) => {
        this.describe(tensors + k * TENSOR_SIZE, entry.inputs[k] as TensorEntry, input, allocated);
      });
      const results = tensors + count * TENSOR_SIZE;
      this.check(
        this.call("tw_function_run", this.context, index, tensors, count, results, entry.outputs.length),
      );
      const read = (at: number, specs: readonly TensorEntry[], k: number): Tensor =>
        this.read(at + k * TENSOR_SIZE, specs[k] as TensorEntry);
      return {
        outputs: entry.outputs.map((_, k) => read(results, entry.outputs, k)),
        updated: entry.inputs.flatMap(({ updated }, k) =>
          updated ? [[k, read(tensors, entry.inputs, k)] as const] : [],
        ),
      };
    } finally {
      for (const pointer of allocated) this.exports.tw_free(pointer);
    }
  }

  readState(index: number): Tensor {
    return this.withState(index, (at, spec) => this.read(at, spec));
  }

  writeState(index: number, data: Uint8Array): void {
    this.withState(index, (at) => {
      this.bytes(this.view().getUint32(at, true), data.length).set(data);
    });
  }

  reset(): void {
    this.check(this.call("tw_reset", this.context));
  }

  close(): void {
    if (this.context) this.call("tw_destroy", this.context);
    this.context = 0;
  }

  /** Allocates `size` bytes; appends the address to `allocated`. */
  allocate(size: number, allocated: number[] = []): number {
    const pointer = this.exports.tw_alloc(Math.max(size, 1)) >>> 0;
    if (!pointer)
      throw new MemoryError(
        `${this.where}: WebAssembly has no memory for ${size} bytes more; it has ` +
          `${this.memory.buffer.byteLength} bytes and can have at most 4 GiB`,
      );
    allocated.push(pointer);
    return pointer;
  }

  /** A view of the memory. It becomes invalid when the memory grows, so it is used at once. */
  bytes(pointer: number, size: number): Uint8Array {
    return new Uint8Array(this.memory.buffer, pointer, size);
  }

  private view(): DataView {
    return new DataView(this.memory.buffer);
  }

  private call(name: keyof Exports, ...values: number[]): number {
    try {
      return (this.exports[name] as (...values: number[]) => number)(...values);
    } catch (thrown) {
      if (!(thrown instanceof WebAssembly.RuntimeError)) throw thrown;
      throw new InternalError(`${this.where}: ${String(name)} failed inside WebAssembly: ${thrown.message}`);
    }
  }

  private withState<T>(index: number, use: (at: number, spec: TensorEntry) => T): T {
    const at = this.allocate(TENSOR_SIZE);
    try {
      this.check(this.call("tw_state", this.context, index, at));
      return use(at, this.metadata.states?.[index] as TensorEntry);
    } finally {
      this.exports.tw_free(at);
    }
  }

  /** Copies an input into the memory and writes its DLTensor to address `at`. */
  private describe(at: number, spec: TensorEntry, { data, shape }: Tensor, allocated: number[]): void {
    const { code, bits } = elementNamed(spec.dtype, spec.name);
    const elements = this.copyIn(bytesOf(data), allocated);
    const sizes = this.copyIn(bytesOf(BigInt64Array.from(shape, BigInt)), allocated);
    const view = this.view();
    for (const [k, word] of [elements, CPU, 0, shape.length].entries())
      view.setUint32(at + 4 * k, word, true);
    view.setUint8(at + 16, code);
    view.setUint8(at + 17, bits);
    view.setUint16(at + 18, 1, true);
    view.setUint32(at + 20, sizes, true);
  }

  /** A copy of the tensor whose DLTensor is at address `at`. */
  private read(at: number, { name, dtype }: TensorEntry): Tensor {
    const view = this.view();
    const [pointer, rank, sizes] = [0, 12, 20].map((offset) => view.getUint32(at + offset, true)) as [
      number,
      number,
      number,
    ];
    const shape = Array.from({ length: rank }, (_, k) => Number(view.getBigInt64(sizes + 8 * k, true)));
    const { array } = elementNamed(dtype, name);
    const data: ElementArray = new array(product(shape));
    bytesOf(data).set(this.bytes(pointer, data.byteLength));
    return { data, shape };
  }

  private copyIn(bytes: Uint8Array, allocated: number[]): number {
    const pointer = this.allocate(bytes.length, allocated);
    this.bytes(pointer, bytes.length).set(bytes);
    return pointer;
  }

  /** The UTF-8 text at `pointer`, which ends in a zero byte. */
  private text(pointer: number): string {
    const start = pointer >>> 0;
    const bytes = new Uint8Array(this.memory.buffer, start);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0))); // a copy: it may be shared memory
  }

  private check(status: number): void {
    if (status) throw errorForStatus(status, this.text(this.exports.tw_last_error()));
  }
}

function textBytes(text: string): Uint8Array {
  return new TextEncoder().encode(`${text}\0`);
}
