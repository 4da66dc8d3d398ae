// node run_model.mjs TILEWRIGHT.MJS MODEL.WASM: runs the affine model on x = 0, 1, 2, ... and z = 0, 1, 2.
import { readFile } from "node:fs/promises";

const { load } = await import(process.argv[2]);
const model = await load(await readFile(process.argv[3]));
const x = { data: Float32Array.from({ length: 24 }, (_, i) => i), shape: [3, 8] };
const z = { data: Float32Array.of(0, 1, 2), shape: [3] };
const { y, pairs } = model.run({ x, z });
let message = "";
try {
  model.run({ x, z: { data: new Float32Array(2), shape: [2] } });
} catch (error) {
  message = error.message;
}
const functions = Object.keys(model.functions);
const recalled = functions.includes("recall") ? [...model.call("recall", {}).last.data] : [];
model.close();
console.log(
  JSON.stringify({ y: [...y.data], y_shape: y.shape, pairs: [...pairs.data], message, functions, recalled }),
);
