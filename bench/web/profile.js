// The worker that times the kernels of both engines on WebGPU: each dispatch gets a pass of its own, between
// two time stamps.
const { model: name } = JSON.parse(new URLSearchParams(location.search).get("run"));
const SLOTS = 2048;
const found = new Map(); // times in milliseconds by pipeline and grid
const modules = new WeakMap();
const names = new WeakMap(); // of pipelines
let recording = false;

const wrap = (type, method, make) => {
  const original = type.prototype[method];
  type.prototype[method] = make(original);
};
wrap(GPUAdapter, "requestDevice", (original) => function (descriptor = {}) {
  const features = [...(descriptor.requiredFeatures ?? []), "timestamp-query"];
  return original.call(this, { ...descriptor, requiredFeatures: [...new Set(features)] });
});
wrap(GPUDevice, "createShaderModule", (original) => function (descriptor) {
  const module = original.call(this, descriptor);
  modules.set(module, descriptor.label ?? "");
  return module;
});
const nameOf = ({ label, compute }) => label || modules.get(compute.module) || "?";
wrap(GPUDevice, "createComputePipeline", (original) => function (descriptor) {
  const pipeline = original.call(this, descriptor);
  names.set(pipeline, nameOf(descriptor));
  return pipeline;
});
wrap(GPUDevice, "createComputePipelineAsync", (original) => async function (descriptor) {
  const pipeline = await original.call(this, descriptor);
  names.set(pipeline, nameOf(descriptor));
  return pipeline;
});
wrap(GPUDevice, "createCommandEncoder", (original) => function (descriptor) {
  const encoder = original.call(this, descriptor);
  encoder.device = this;
  return encoder;
});

/** A pass that begins a pass of the encoder for each dispatch. */
class Passes {
  constructor(encoder, begin) {
    this.encoder = encoder;
    this.begin = begin;
    this.groups = new Map();
  }
  setPipeline(pipeline) {
    this.pipeline = pipeline;
  }
  setBindGroup(index, ...rest) {
    this.groups.set(index, rest);
  }
  dispatchWorkgroups(...grid) {
    const { device } = this.encoder;
    this.encoder.stamps ??= { set: device.createQuerySet({ type: "timestamp", count: SLOTS }), of: [] };
    const { set, of } = this.encoder.stamps;
    const at = 2 * of.length;
    of.push({ name: names.get(this.pipeline), grid });
    const pass = this.begin({
      timestampWrites: { querySet: set, beginningOfPassWriteIndex: at, endOfPassWriteIndex: at + 1 },
    });
    pass.setPipeline(this.pipeline);
    for (const [index, rest] of this.groups) pass.setBindGroup(index, ...rest);
    pass.dispatchWorkgroups(...grid);
    pass.end();
  }
  end() {}
  pushDebugGroup() {}
  popDebugGroup() {}
}
wrap(GPUCommandEncoder, "beginComputePass", (original) => function () {
  return new Passes(this, (descriptor) => original.call(this, descriptor));
});
const waiting = [];
wrap(GPUCommandEncoder, "finish", (original) => function (descriptor) {
  if (!this.stamps) return original.call(this, descriptor);
  const { set, of } = this.stamps;
  const size = 16 * of.length;
  const { device } = this;
  const usage = GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC;
  const resolved = device.createBuffer({ size, usage });
  const read = device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  this.resolveQuerySet(set, 0, 2 * of.length, resolved, 0);
  this.copyBufferToBuffer(resolved, 0, read, 0, size);
  const commands = original.call(this, descriptor);
  if (recording) waiting.push([read, of]);
  return commands;
});

async function collected() {
  for (const [read, of] of waiting.splice(0)) {
    await read.mapAsync(GPUMapMode.READ);
    const stamps = new BigInt64Array(read.getMappedRange());
    of.forEach(({ name: kernel, grid }, k) => {
      const key = `${kernel} ${grid}`;
      const entry = found.get(key) ?? { name: kernel, grid, count: 0, milliseconds: 0 };
      entry.count++;
      entry.milliseconds += Number(stamps[2 * k + 1] - stamps[2 * k]) / 1e6;
      found.set(key, entry);
    });
    read.destroy();
  }
  const kernels = [...found.values()].sort((a, b) => b.milliseconds - a.milliseconds);
  found.clear();
  return kernels;
}

const tilewright = await import("/tilewright/index.js");
const ort = await import("/ort/ort.webgpu.min.mjs");
ort.env.wasm.wasmPaths = "/ort/";
const { inputs } = await (await fetch(`/webgpu/${name}/inputs.json`)).json();
const typed = ({ type, data }) =>
  type === "int64" ? BigInt64Array.from(data, BigInt) : Float32Array.from(data);
const given = Object.entries(inputs).map(([key, value]) => [key, typed(value), value]);
const model = await tilewright.load(`/webgpu/${name}/webgpu.tar`, { cache: false, worker: false });
const session = await ort.InferenceSession.create(`/webgpu/${name}/model.onnx`, {
  executionProviders: ["webgpu"],
});
const ours = Object.fromEntries(given.map(([key, data, { shape }]) => [key, { data, shape }]));
const theirs = Object.fromEntries(
  given.map(([key, data, { type, shape }]) => [key, new ort.Tensor(type, data, shape)]),
);
const result = {};
for (const [engine, run] of [
  ["tilewright", () => model.run(ours)],
  ["onnxruntime", () => session.run(theirs)],
]) {
  await run();
  recording = true;
  await run();
  recording = false;
  result[engine] = await collected();
}
postMessage(result);
