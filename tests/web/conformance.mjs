// Loads a model and runs it on several sets of inputs, in a page and in Node.

const ARRAYS = { int64: BigInt64Array, float32: Float32Array };

/** `cases`: inputs by name, each { dtype, shape, file }. `read` gives the bytes of a file. Returns null where
 * the engine does not support the target. */
export async function run({ load, supportedTargets }, target, source, threads, cases, read) {
  if (!(await supportedTargets()).includes(target)) return null;
  const model = await load(source, { threads, cache: false });
  const results = [];
  for (const inputs of cases) {
    const tensors = {};
    for (const [name, { dtype, shape, file }] of Object.entries(inputs))
      tensors[name] = { data: new ARRAYS[dtype](await read(file)), shape };
    const outputs = Object.values(await model.run(tensors));
    results.push(outputs.map(({ data, shape }) => ({ shape: [...shape], data: base64(data) })));
  }
  const found = { target: model.target, threads: model.threads, results };
  await model.dispose();
  return found;
}

function base64({ buffer, byteOffset, byteLength }) {
  const bytes = new Uint8Array(buffer, byteOffset, byteLength);
  let text = "";
  for (let at = 0; at < bytes.length; at += 1 << 15)
    text += String.fromCharCode(...bytes.subarray(at, at + (1 << 15)));
  return btoa(text);
}
