// tilewright.mjs - loads and runs a model that Tilewright compiled to WebAssembly, in a browser or in Node.
//
//   import { load } from "./tilewright.mjs";
//   const model = await load(await (await fetch("model.wasm")).arrayBuffer());
//   const { logits } = model.run({ x: { data: new Float32Array(8), shape: [1, 8] } });
//
// A tensor is { data: typed array, shape: array of numbers }. Results are copies, so later runs do not change
// them. Errors are thrown as TilewrightError.

const ABI_VERSION = 3;
// Sizes in bytes of structures of tilewright.h on wasm32.
// DLTensor: data, device (2 words), ndim, dtype, shape, strides, padding, byte_offset
const TENSOR_SIZE = 40;
// tw_options: abi_version, num_threads, weights, padding, weights_size, flags, weights_path
const OPTIONS_SIZE = 32;
const CPU = 1; // kDLCPU

// name: [DLPack's type code, bits, array type]. float16 and bfloat16 elements are passed as bit patterns.
const DTYPES = {
  int8: [0, 8, Int8Array], int16: [0, 16, Int16Array], int32: [0, 32, Int32Array],
  int64: [0, 64, BigInt64Array],
  uint8: [1, 8, Uint8Array], uint16: [1, 16, Uint16Array], uint32: [1, 32, Uint32Array],
  uint64: [1, 64, BigUint64Array], float16: [2, 16, Uint16Array], float32: [2, 32, Float32Array],
  float64: [2, 64, Float64Array], bfloat16: [4, 16, Uint16Array], bool: [6, 8, Uint8Array],
};

export class TilewrightError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.name = "TilewrightError";
    this.status = status; // a tw_status of tilewright.h; 0: the error was found by this file
  }
}

/** Loads a model.
 *
 * `source`: the bytes of the .wasm file, or a compiled WebAssembly.Module. `weights`: the bytes of the
 * weights (an ArrayBuffer or a typed array) if they are not embedded in the file. */
export async function load(source, { weights = null } = {}) {
  const module = source instanceof WebAssembly.Module ? source : await WebAssembly.compile(source);
  const instance = await WebAssembly.instantiate(module, {});
  return new Model(instance.exports, weights);
}

/** A loaded model with its own memory and states. Runs are synchronous. `metadata` is the JSON object that
 * tw_metadata returns. */
export class Model {
  #exports;
  #context = 0;

  constructor(exports, weights) {
    this.#exports = exports;
    const version = exports.tw_abi_version?.();
    if (version !== ABI_VERSION)
      throw new TilewrightError(
        `the model has version ${version} of the interface, this loader needs ${ABI_VERSION}: ` +
          "use the tilewright.mjs of the version that compiled the model",
      );
    this.metadata = JSON.parse(this.#text(exports.tw_metadata()));
    this.functions = this.metadata.functions ?? { main: this.metadata };
    const specs = Object.values(this.functions).flatMap(({ inputs, outputs }) => [...inputs, ...outputs]);
    for (const { name, dtype } of specs)
      if (!DTYPES[dtype])
        throw new TilewrightError(`'${name}': data type ${dtype} cannot be passed from JavaScript`);
    const weightsPointer = weights
      ? this.#copyIn(new Uint8Array(weights.buffer ?? weights, weights.byteOffset ?? 0, weights.byteLength))
      : 0;
    // tw_create writes the address of the context to the 4 bytes after the options.
    const options = this.#alloc(OPTIONS_SIZE + 4);
    const view = this.#view();
    [ABI_VERSION, 1, weightsPointer, 0].forEach((word, i) => view.setUint32(options + 4 * i, word, true));
    view.setBigUint64(options + 16, BigInt(weights?.byteLength ?? 0), true);
    view.setUint32(options + 24, 0, true);
    view.setUint32(options + 28, 0, true);
    this.#check(exports.tw_create(options, options + OPTIONS_SIZE));
    this.#context = this.#view().getUint32(options + OPTIONS_SIZE, true);
    exports.tw_free(options);
  }

  /** Runs the function "main" once.
   *
   * `inputs`: an object that maps the names of the inputs to tensors. Returns an object that maps the names
   * of the outputs to tensors. Inputs that the metadata marks as "updated" are changed in place. */
  run(inputs) {
    return this.call("main", inputs);
  }

  /** `run` for the function `name`. */
  call(name, inputs) {
    if (!this.#context) throw new TilewrightError("the model is closed: load it again");
    if (!Object.hasOwn(this.functions, name))
      throw new TilewrightError(`the model has no function '${name}'`);
    const { inputs: wanted, outputs } = this.functions[name];
    for (const input of Object.keys(inputs))
      if (!wanted.some((spec) => spec.name === input))
        throw new TilewrightError(`the model has no input '${input}'`);
    const allocated = [];
    try {
      const text = this.#copyIn(new TextEncoder().encode(name + "\0"), allocated);
      const index = this.#exports.tw_function_index(text);
      const size = TENSOR_SIZE * (wanted.length + outputs.length);
      const tensors = this.#alloc(size, allocated);
      new Uint8Array(this.#exports.memory.buffer, tensors, size).fill(0);
      wanted.forEach((spec, i) => this.#write(tensors + i * TENSOR_SIZE, spec, inputs[spec.name], allocated));
      const results = tensors + wanted.length * TENSOR_SIZE;
      this.#check(
        this.#exports.tw_function_run(this.#context, index, tensors, wanted.length, results, outputs.length),
      );
      wanted.forEach((spec, i) => {
        if (spec.updated) inputs[spec.name].data.set(this.#read(tensors + i * TENSOR_SIZE, spec).data);
      });
      return Object.fromEntries(
        outputs.map((spec, i) => [spec.name, this.#read(results + i * TENSOR_SIZE, spec)]),
      );
    } finally {
      for (const pointer of allocated) this.#exports.tw_free(pointer);
    }
  }

  /** Returns a copy of the state `name` as a tensor. */
  state(name) {
    return this.#state(name, (at, spec) => this.#read(at, spec));
  }

  /** Sets the state `name`. `data`: a typed array of the state's type and number of elements. */
  setState(name, data) {
    this.#state(name, (at, { dtype }) => {
      const { data: old } = this.#read(at, { dtype });
      if (data.constructor !== old.constructor || data.length !== old.length)
        throw new TilewrightError(
          `state '${name}': expected ${old.constructor.name} of ${old.length} elements`,
        );
      const pointer = this.#view().getUint32(at, true);
      new DTYPES[dtype][2](this.#exports.memory.buffer, pointer, old.length).set(data);
    });
  }

  /** Sets all states to their initial values. */
  reset() {
    this.#check(this.#exports.tw_reset(this.#context));
  }

  /** Calls `use` with the address of the state's DLTensor and its entry in the metadata. */
  #state(name, use) {
    const index = (this.metadata.states ?? []).findIndex((spec) => spec.name === name);
    if (index < 0) throw new TilewrightError(`the model has no state '${name}'`);
    const at = this.#alloc(TENSOR_SIZE);
    try {
      this.#check(this.#exports.tw_state(this.#context, index, at));
      return use(at, this.metadata.states[index]);
    } finally {
      this.#exports.tw_free(at);
    }
  }

  /** Frees the memory of the model, which cannot run afterwards. */
  close() {
    if (this.#context) this.#exports.tw_destroy(this.#context);
    this.#context = 0;
  }

  /** Copies an input into the model's memory and writes its DLTensor to address `at`. The addresses of all
   * memory that this allocates are appended to `allocated`. */
  #write(at, { name, dtype }, tensor, allocated) {
    const [code, bits, ArrayType] = DTYPES[dtype];
    if (!tensor) throw new TilewrightError(`missing input '${name}'`);
    const { data, shape } = tensor;
    if (!(data instanceof ArrayType))
      throw new TilewrightError(
        `input '${name}': expected ${ArrayType.name} for ${dtype}, got ${data?.constructor?.name}`,
      );
    const count = shape.reduce((product, size) => product * size, 1);
    if (count !== data.length)
      throw new TilewrightError(
        `input '${name}': shape [${shape}] has ${count} elements, its data has ${data.length}`,
      );
    const bytes = this.#copyIn(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), allocated);
    const sizes = this.#copyIn(new Uint8Array(BigInt64Array.from(shape, BigInt).buffer), allocated);
    const view = this.#view();
    [bytes, CPU, 0, shape.length].forEach((word, i) => view.setUint32(at + 4 * i, word, true));
    view.setUint8(at + 16, code);
    view.setUint8(at + 17, bits);
    view.setUint16(at + 18, 1, true);
    view.setUint32(at + 20, sizes, true);
  }

  /** Copies the tensor of the DLTensor at address `at` out of the model's memory. */
  #read(at, { dtype }) {
    const view = this.#view();
    const [pointer, ndim, sizes] = [0, 12, 20].map((offset) => view.getUint32(at + offset, true));
    const shape = Array.from({ length: ndim }, (_, i) => Number(view.getBigInt64(sizes + 8 * i, true)));
    const count = shape.reduce((product, size) => product * size, 1);
    return { data: new DTYPES[dtype][2](this.#exports.memory.buffer, pointer, count).slice(), shape };
  }

  #view() {
    // Not kept: the memory gets another buffer when it grows.
    return new DataView(this.#exports.memory.buffer);
  }

  /** Allocates `size` bytes; the address is returned and appended to `allocated`. */
  #alloc(size, allocated = []) {
    const pointer = this.#exports.tw_alloc(Math.max(size, 1)) >>> 0;
    if (!pointer) throw new TilewrightError(`cannot allocate ${size} bytes in the memory of the model`);
    allocated.push(pointer);
    return pointer;
  }

  /** Copies `bytes` into the model's memory and returns the address. */
  #copyIn(bytes, allocated = []) {
    const pointer = this.#alloc(bytes.length, allocated);
    new Uint8Array(this.#exports.memory.buffer).set(bytes, pointer);
    return pointer;
  }

  /** Decodes the UTF-8 text at `pointer`, which ends in a zero byte. */
  #text(pointer) {
    const bytes = new Uint8Array(this.#exports.memory.buffer, pointer >>> 0);
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }

  /** Throws the message of tw_last_error if `status`, a tw_status, is not 0. */
  #check(status) {
    if (status) throw new TilewrightError(this.#text(this.#exports.tw_last_error()), status);
  }
}
