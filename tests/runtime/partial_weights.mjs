// node partial_weights.mjs TILEWRIGHT.MJS VERSION: gives a model weights that are a part of a buffer, and
// prints the bytes that the model receives and the sizes of its allocations. The model is no compiled one: it
// records what the loader passes to it.
const { Model } = await import(process.argv[2]);
const memory = new WebAssembly.Memory({ initial: 1 });
const sizes = [];
let end = 64;
let received = [];
const exports = {
  memory,
  tw_abi_version: () => Number(process.argv[3]),
  tw_metadata: () => 0,
  tw_alloc: (size) => {
    sizes.push(size);
    end += size + 8;
    return end - size - 8;
  },
  tw_free: () => {},
  tw_create: (options, context) => {
    const view = new DataView(memory.buffer);
    const at = view.getUint32(options + 8, true);
    const size = Number(view.getBigUint64(options + 16, true));
    received = [...new Uint8Array(memory.buffer, at, size)];
    view.setUint32(context, 1, true);
    return 0;
  },
};
new Uint8Array(memory.buffer).set(new TextEncoder().encode('{"inputs": [], "outputs": []}\0'));
const whole = Uint8Array.from({ length: 40 }, (_, i) => i);
const results = [whole.subarray(8, 12), whole.buffer, new Float32Array(whole.buffer, 4, 2)].map((weights) => {
  sizes.length = 0;
  new Model(exports, weights);
  return { received, allocated: sizes[0] };
});
console.log(JSON.stringify(results));
