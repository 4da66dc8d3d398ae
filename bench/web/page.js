// The worker in which both engines run: they take turns, and the page gets their times.
const { model: name, engine, threads, rounds, repetitions } = JSON.parse(
  new URLSearchParams(location.search).get("run"),
);
const onGpu = engine === "webgpu";

const tilewright = await import("/tilewright/index.js");
const ort = await import(onGpu ? "/ort/ort.webgpu.min.mjs" : "/ort/ort.wasm.min.mjs");
ort.env.wasm.numThreads = threads;
ort.env.wasm.wasmPaths = "/ort/";

const arrays = { int64: BigInt64Array, float32: Float32Array };
const { inputs, expected } = await (await fetch(`/${engine}/${name}/inputs.json`)).json();
const typed = ({ type, data }) =>
  type === "int64" ? arrays[type].from(data, BigInt) : arrays[type].from(data);

const file = onGpu ? "webgpu.tar" : threads > 1 ? "wasm32-relaxed-threads.wasm" : "wasm32-relaxed.wasm";
const model = await tilewright.load(`/${engine}/${name}/${file}`, { threads, cache: false });
const session = await ort.InferenceSession.create(`/${engine}/${name}/model.onnx`, {
  executionProviders: [onGpu ? "webgpu" : "wasm"],
  graphOptimizationLevel: "all",
});
const ours = Object.fromEntries(
  Object.entries(inputs).map(([key, value]) => [key, { data: typed(value), shape: value.shape }]),
);
const theirs = Object.fromEntries(
  Object.entries(inputs).map(([key, value]) => [key, new ort.Tensor(value.type, typed(value), value.shape)]),
);
const engines = {
  tilewright: async () => Object.values(await model.run(ours))[0].data,
  onnxruntime: async () => Object.values(await session.run(theirs))[0].data,
};

const error = (data) =>
  expected.data.reduce((most, value, k) => Math.max(most, Math.abs(value - data[k])), 0);
const result = { threads: { tilewright: model.threads }, errors: {}, milliseconds: {} };
for (const [key, run] of Object.entries(engines)) {
  result.errors[key] = error(await run());
  for (let k = 0; k < (onGpu ? 0 : 3); k++) await run(); // a run on a simulated GPU takes seconds
  result.milliseconds[key] = [];
}
for (let round = 0; round < rounds; round++)
  for (const [key, run] of Object.entries(engines))
    for (let k = 0; k < repetitions; k++) {
      const start = performance.now();
      await run();
      result.milliseconds[key].push(performance.now() - start);
    }
postMessage(result);
