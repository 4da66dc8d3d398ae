// node run_model.mjs INDEX.JS MODEL.WASM: runs the affine model on x = 0, 1, 2, ... and z = 0, 1, 2.
const { load } = await import(process.argv[2]);
const model = await load(process.argv[3]);
const x = { data: Float32Array.from({ length: 24 }, (_, i) => i), shape: [3, 8] };
const z = { data: Float32Array.of(0, 1, 2), shape: [3] };
const { y, pairs } = await model.run({ x, z });
const { message } = await model
  .run({ x, z: { data: new Float32Array(2), shape: [2] } })
  .catch((error) => error);
const { functions } = model;
const recalled = functions.includes("recall") ? [...(await model.call("recall")).last.data] : [];
await model.dispose();
console.log(
  JSON.stringify({ y: [...y.data], y_shape: y.shape, pairs: [...pairs.data], message, functions, recalled }),
);
