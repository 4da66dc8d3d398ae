// tilewright.mjs - runs a model that Tilewright compiled to WebAssembly, in a browser or in Node.
//
//   import { load } from "./tilewright.mjs";
//   const model = await load(await (await fetch("model.wasm")).arrayBuffer());
//   const { logits } = model.run({ x: { data: new Float32Array(8), shape: [1, 8] } });
//
// Tensors are { data: typed array, shape: array of numbers }. Results are copies and stay valid.

const ABI_VERSION = 3;
const TENSOR = 40; // bytes of a DLTensor: data, device (2), ndim, dtype, shape, strides, padding, byte_offset
const OPTIONS = 32; // abi_version, num_threads, weights, padding, weights_size, flags, weights_path
const CPU = 1;

// name: [DLPack type code, bits, array type]; 16-bit and 8-bit floats are passed as their bit patterns
const DTYPES = {
  int8: [0, 8, Int8Array], int16: [0, 16, Int16Array], int32: [0, 32, Int32Array], int64: [0, 64, BigInt64Array],
  uint8: [1, 8, Uint8Array], uint16: [1, 16, Uint16Array], uint32: [1, 32, Uint32Array],
  uint64: [1, 64, BigUint64Array], float16: [2, 16, Uint16Array], float32: [2, 32, Float32Array],
  float64: [2, 64, Float64Array], bfloat16: [4, 16, Uint16Array], bool: [6, 8, Uint8Array],
};

export class TilewrightError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.name = "TilewrightError";
    this.status = status; // tw_status of tilewright.h
  }
}

/** Loads a model. `source`: the bytes of the .wasm file, or a compiled WebAssembly.Module. `weights`: its bytes, where
 * the file does not carry them. */
export async function load(source, { weights = null } = {}) {
  const module = source instanceof WebAssembly.Module ? source : await WebAssembly.compile(source);
  const instance = await WebAssembly.instantiate(module, {});
  return new Model(instance.exports, weights);
}

export class Model {
  #exports;
  #context = 0;

  constructor(exports, weights) {
    this.#exports = exports;
    const version = exports.tw_abi_version?.();
    if (version !== ABI_VERSION)
      throw new TilewrightError(`the model's interface is version ${version}, this loader speaks ${ABI_VERSION}`);
    this.metadata = JSON.parse(this.#text(exports.tw_metadata()));
    this.functions = this.metadata.functions ?? { main: this.metadata };
    for (const { name, dtype } of Object.values(this.functions).flatMap(({ inputs, outputs }) => [...inputs, ...outputs]))
      if (!DTYPES[dtype]) throw new TilewrightError(`'${name}': data type ${dtype} cannot be passed from JavaScript`);
    const held = weights ? this.#place(new Uint8Array(weights.buffer ?? weights, weights.byteOffset ?? 0)) : 0;
    const options = this.#alloc(OPTIONS + 4);
    const view = this.#view();
    [ABI_VERSION, 1, held, 0].forEach((word, i) => view.setUint32(options + 4 * i, word, true));
    view.setBigUint64(options + 16, BigInt(weights?.byteLength ?? 0), true);
    view.setUint32(options + 24, 0, true);
    view.setUint32(options + 28, 0, true);
    this.#check(exports.tw_create(options, options + OPTIONS));
    this.#context = this.#view().getUint32(options + OPTIONS, true);
    exports.tw_free(options);
  }

  /** Runs the model once. `inputs`: an object from input name to tensor; returns one from output name to tensor. Inputs that the metadata calls
   * "updated" are changed in place. */
  run(inputs) {
    return this.call("main", inputs);
  }

  /** The same for one of several functions, by name. */
  call(name, inputs) {
    if (!this.#context) throw new TilewrightError("this model has been closed");
    if (!Object.hasOwn(this.functions, name)) throw new TilewrightError(`the model has no function '${name}'`);
    const { inputs: wanted, outputs } = this.functions[name];
    for (const name of Object.keys(inputs))
      if (!wanted.some((spec) => spec.name === name)) throw new TilewrightError(`the model has no input '${name}'`);
    const held = [];
    try {
      const text = this.#place(new TextEncoder().encode(name + "\0"), held);
      const number = this.#exports.tw_function_index(text);
      const tensors = this.#alloc(TENSOR * (wanted.length + outputs.length), held);
      new Uint8Array(this.#exports.memory.buffer, tensors, TENSOR * (wanted.length + outputs.length)).fill(0);
      wanted.forEach((spec, i) => this.#write(tensors + i * TENSOR, spec, inputs[spec.name], held));
      const results = tensors + wanted.length * TENSOR;
      this.#check(this.#exports.tw_function_run(this.#context, number, tensors, wanted.length, results, outputs.length));
      wanted.forEach((spec, i) => {
        if (spec.updated) inputs[spec.name].data.set(this.#read(tensors + i * TENSOR, spec).data);
      });
      return Object.fromEntries(outputs.map((spec, i) => [spec.name, this.#read(results + i * TENSOR, spec)]));
    } finally {
      for (const pointer of held) this.#exports.tw_free(pointer);
    }
  }

  /** A copy of what the model keeps between runs under a name. */
  state(name) {
    return this.#state(name, (at, spec) => this.#read(at, spec));
  }

  /** Replaces what is kept under a name. `data`: a typed array of as many elements. */
  setState(name, data) {
    this.#state(name, (at, { dtype }) => {
      const { data: old } = this.#read(at, { dtype });
      if (data.constructor !== old.constructor || data.length !== old.length)
        throw new TilewrightError(`state '${name}': expected ${old.constructor.name} of ${old.length} elements`);
      new DTYPES[dtype][2](this.#exports.memory.buffer, this.#view().getUint32(at, true), old.length).set(data);
    });
  }

  /** Gives all states their first values. */
  reset() {
    this.#check(this.#exports.tw_reset(this.#context));
  }

  #state(name, use) {
    const index = (this.metadata.states ?? []).findIndex((spec) => spec.name === name);
    if (index < 0) throw new TilewrightError(`the model has no state '${name}'`);
    const at = this.#alloc(TENSOR);
    try {
      this.#check(this.#exports.tw_state(this.#context, index, at));
      return use(at, this.metadata.states[index]);
    } finally {
      this.#exports.tw_free(at);
    }
  }

  close() {
    if (this.#context) this.#exports.tw_destroy(this.#context);
    this.#context = 0;
  }

  #write(at, { name, dtype }, tensor, held) {
    const [code, bits, ArrayType] = DTYPES[dtype];
    if (!tensor) throw new TilewrightError(`missing input '${name}'`);
    const { data, shape } = tensor;
    if (!(data instanceof ArrayType))
      throw new TilewrightError(`input '${name}': expected ${ArrayType.name} for ${dtype}, got ${data?.constructor?.name}`);
    const count = shape.reduce((product, size) => product * size, 1);
    if (count !== data.length)
      throw new TilewrightError(`input '${name}': shape [${shape}] has ${count} elements, its data has ${data.length}`);
    const bytes = this.#place(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), held);
    const sizes = this.#place(new Uint8Array(BigInt64Array.from(shape, BigInt).buffer), held);
    const view = this.#view();
    [bytes, CPU, 0, shape.length].forEach((word, i) => view.setUint32(at + 4 * i, word, true));
    view.setUint8(at + 16, code);
    view.setUint8(at + 17, bits);
    view.setUint16(at + 18, 1, true);
    view.setUint32(at + 20, sizes, true);
  }

  #read(at, { dtype }) {
    const view = this.#view();
    const [pointer, ndim, sizes] = [0, 12, 20].map((offset) => view.getUint32(at + offset, true));
    const shape = Array.from({ length: ndim }, (_, i) => Number(view.getBigInt64(sizes + 8 * i, true)));
    const count = shape.reduce((product, size) => product * size, 1);
    return { data: new DTYPES[dtype][2](this.#exports.memory.buffer, pointer, count).slice(), shape };
  }

  #view() {
    return new DataView(this.#exports.memory.buffer); // made anew: the buffer changes when the memory grows
  }

  #alloc(size, held = []) {
    const pointer = this.#exports.tw_alloc(Math.max(size, 1)) >>> 0;
    if (!pointer) throw new TilewrightError(`no memory for ${size} bytes`);
    held.push(pointer);
    return pointer;
  }

  #place(bytes, held = []) {
    const pointer = this.#alloc(bytes.length, held);
    new Uint8Array(this.#exports.memory.buffer).set(bytes, pointer);
    return pointer;
  }

  #text(pointer) {
    const bytes = new Uint8Array(this.#exports.memory.buffer, pointer >>> 0);
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }

  #check(status) {
    if (status) throw new TilewrightError(this.#text(this.#exports.tw_last_error()), status);
  }
}
