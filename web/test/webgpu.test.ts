import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { hashOf } from "../src/hashing.js";
import { load } from "../src/index.js";
import { openBackend } from "../src/open.js";
import { FakeDevice } from "./fake-device.js";

const TEXT = new TextEncoder();

/** A tar archive of files, and the trailer of an artifact. */
async function artifact(files: Record<string, string | Uint8Array>): Promise<Uint8Array<ArrayBuffer>> {
  const parts: Uint8Array[] = [];
  for (const [name, content] of Object.entries(files)) {
    const bytes = typeof content === "string" ? TEXT.encode(content) : content;
    const head = new Uint8Array(512);
    const put = (at: number, text: string): void => head.set(TEXT.encode(text), at);
    put(0, name);
    put(124, bytes.length.toString(8).padStart(11, "0"));
    put(156, "0");
    put(257, "ustar");
    const body = new Uint8Array(Math.ceil(bytes.length / 512) * 512);
    body.set(bytes);
    parts.push(head, body);
  }
  parts.push(new Uint8Array(1024));
  const whole = new Uint8Array(await new Blob(parts as Uint8Array<ArrayBuffer>[]).arrayBuffer());
  const file = new Uint8Array(whole.length + 64);
  file.set(whole);
  file.set(TEXT.encode("TILEWRT\x01"), whole.length);
  const view = new DataView(file.buffer, whole.length);
  view.setUint32(8, 1, true);
  view.setBigUint64(16, BigInt(whole.length), true);
  const hash = await hashOf(whole);
  for (let k = 0; k < 16; k++) view.setUint8(24 + k, Number.parseInt(hash.slice(2 * k, 2 * k + 2), 16));
  return file;
}

/** A model whose run has two kernels and a copy, with a weight beside it if `weights` describes that. */
function model(
  weights?: object,
  features: string[] = [],
  names: string[] = ["main"],
): Promise<Uint8Array<ArrayBuffer>> {
  const tensor = (name: string) => ({ name, dtype: "float32", shape: [8] });
  const dispatch = (...buffers: number[]) => ({
    kernel: "add",
    buffers,
    sizes: [32, 32, 32],
    dims: [],
    grid: [1, 1, 1],
  });
  const main = {
    inputs: [0],
    states: [],
    outputs: [1],
    buffers: [[32], [32]],
    steps: [
      { constant: 0, to: 2 },
      { alloc: 0, to: 3 },
      { alloc: 1, to: 4 },
      dispatch(0, 2, 3),
      { copy: [3, 4], size: 32 },
      dispatch(4, 2, 1),
    ],
  };
  const each = <T>(value: T): Record<string, T> => Object.fromEntries(names.map((name) => [name, value]));
  const program = {
    version: 4,
    functions: each(main),
    states: [],
    kernels: { add: { bytes: [4, 4, 4], bindings: [0, 1, 2], written: [0, 0, 1] } },
    weights: [[0, 32]],
  };
  const entry = { inputs: [tensor("x")], outputs: [tensor("y")], solver: [] };
  const metadata = {
    format: 1,
    abi: 1,
    compiler: "test",
    target: { name: "webgpu", features },
    ...entry,
    functions: each(entry),
    ...(weights && { weights }),
  };
  return artifact({
    "metadata.json": JSON.stringify(metadata),
    "program.json": JSON.stringify(program),
    "kernels/add.wgsl": "// add",
    ...(weights ? {} : { "weights.bin": new Uint8Array(32) }),
  });
}

const x = { data: new Float32Array(8), shape: [8] };

beforeEach(() => {
  vi.stubGlobal("GPUBufferUsage", {
    MAP_READ: 1,
    COPY_SRC: 4,
    COPY_DST: 8,
    UNIFORM: 64,
    STORAGE: 128,
  });
  vi.stubGlobal("GPUShaderStage", { COMPUTE: 4 });
  vi.stubGlobal("GPUMapMode", { READ: 1 });
});
afterEach(() => void vi.unstubAllGlobals());

test("a run is one submission and one read, and makes nothing anew", async () => {
  const fake = new FakeDevice();
  const loaded = await load(await model(), { device: fake.device, worker: false });
  await loaded.run({ x });
  const first = { ...fake.counts };
  expect(first.dispatches).toBe(2);
  expect(first.submissions).toBe(1);
  expect(first.reads).toBe(1);
  await loaded.run({ x });
  expect(fake.counts).toEqual({ ...first, dispatches: 4, submissions: 2, reads: 2 });
});

test("several functions are one submission and one read", async () => {
  const fake = new FakeDevice();
  const backend = await openBackend(await model(undefined, [], ["first", "second"]), { device: fake.device });
  const calls = ["first", "second"].map((name) => ({ name, inputs: [x] }));
  const results = await backend.run(calls);
  expect(results.map(({ outputs }) => outputs.map(({ shape }) => shape))).toEqual([[[8]], [[8]]]);
  expect(fake.counts).toMatchObject({ dispatches: 4, submissions: 1, reads: 1 });
});

test("kernels are compiled while weights arrive", async () => {
  const fake = new FakeDevice();
  const block = new Uint8Array(4096 + 32);
  const identity = await hashOf(block.subarray(4096));
  let send: (bytes: Uint8Array) => void = () => undefined;
  let close = (): void => undefined;
  const body = new ReadableStream({
    start(controller) {
      send = (bytes) => controller.enqueue(bytes);
      close = () => controller.close();
    },
  });
  vi.stubGlobal("fetch", async () => new Response(body));
  const file = await model({ file: "m.weights", identity, bytes: 32 });
  const options = { device: fake.device, worker: false, cache: false, weights: "https://x/m.weights" };
  const loading = load(file, options);
  send(block.slice(0, 100));
  await vi.waitFor(() => expect(fake.counts.pipelines).toBeGreaterThan(0));
  send(block.slice(100));
  close();
  await loading;
});

test("a lost device ends the runs that follow, with what to do", async () => {
  const fake = new FakeDevice();
  const loaded = await load(await model(), { device: fake.device, worker: false });
  fake.lose("the driver was updated");
  await expect(loaded.run({ x })).rejects.toMatchObject({
    name: "DeviceError",
    message: expect.stringMatching(/the GPU was lost \(the driver was updated\): load the model again/),
  });
});

test("a device that is lost during a run ends it", async () => {
  const fake = new FakeDevice();
  const loaded = await load(await model(), { device: fake.device, worker: false });
  fake.beforeMap = () => fake.lose("reset");
  await expect(loaded.run({ x })).rejects.toMatchObject({
    name: "DeviceError",
    message: expect.stringMatching(/the GPU was lost \(reset\)/),
  });
});

test("a lack of memory is a MemoryError, for weights and in a run", async () => {
  const fake = new FakeDevice();
  fake.memory = 16;
  const file = await model();
  const options = { device: fake.device, worker: false };
  const failure = { name: "MemoryError", message: expect.stringMatching(/no memory for the model/) };
  await expect(load(file, options)).rejects.toMatchObject(failure);
  fake.memory = 40;
  const loaded = await load(file, options);
  await expect(loaded.run({ x })).rejects.toMatchObject(failure);
});

test("a tensor beyond the device's limits is a MemoryError that states both sizes", async () => {
  const fake = new FakeDevice();
  (fake.device.limits as { maxBufferSize: number }).maxBufferSize = 16;
  await expect(load(await model(), { device: fake.device, worker: false })).rejects.toMatchObject({
    name: "MemoryError",
    message: expect.stringMatching(/has 32 bytes; this GPU allows 16/),
  });
});

test("a kernel that the GPU's compiler refuses is named", async () => {
  const fake = new FakeDevice();
  fake.refuse = "add";
  await expect(load(await model(), { device: fake.device, worker: false })).rejects.toMatchObject({
    name: "DeviceError",
    message: expect.stringMatching(/refuses kernel 'add': unknown type \(line 3\)/),
  });
});

test("a feature of the target that the device lacks is named", async () => {
  const file = await model(undefined, ["f16"]);
  const fake = new FakeDevice();
  await expect(load(file, { device: fake.device, worker: false })).rejects.toMatchObject({
    name: "DeviceError",
    message: expect.stringMatching(/needs a GPU with the feature shader-f16/),
  });
  (fake.device.features as Set<string>).add("shader-f16");
  await load(file, { device: fake.device, worker: false });
});

test("a browser without WebGPU, or without an adapter, is told what to do", async () => {
  const file = await model();
  vi.stubGlobal("navigator", {});
  await expect(load(file)).rejects.toMatchObject({
    name: "DeviceError",
    message: expect.stringMatching(/has no WebGPU.*wasm32/),
  });
  vi.stubGlobal("navigator", { gpu: { requestAdapter: async () => null } });
  await expect(load(file)).rejects.toMatchObject({
    name: "DeviceError",
    message: expect.stringMatching(/no adapter.*wasm32/),
  });
});
