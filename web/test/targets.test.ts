import { afterEach, expect, test, vi } from "vitest";
import { bestOf, isSources, supportedTargets } from "../src/targets.js";
import { hasRelaxedSimd, sharedMemory, threadCount } from "../src/wasm/features.js";

afterEach(() => void vi.unstubAllGlobals());

test("modules with threads come first where memory can be shared", async () => {
  const targets = await supportedTargets();
  expect(targets[0]).toBe(hasRelaxedSimd() ? "wasm32:relaxed+threads" : "wasm32:threads");
  expect(targets.includes("wasm32:relaxed")).toBe(hasRelaxedSimd());
});

test("they come last in a page without isolation, which runs one thread", async () => {
  vi.stubGlobal("crossOriginIsolated", false);
  const targets = await supportedTargets();
  expect(targets[0]).toBe(hasRelaxedSimd() ? "wasm32:relaxed" : "wasm32");
  expect(targets.at(-1)).toBe("wasm32:threads");
  expect(threadCount(4)).toBe(1);
});

test("a page's main thread runs one thread, since it must not wait", () => {
  expect(threadCount(4)).toBe(4);
  vi.stubGlobal("document", {});
  expect(threadCount(4)).toBe(1);
});

test("half of many processors count as cores, at most eight", () => {
  for (const [processors, threads] of [
    [1, 1],
    [2, 2],
    [4, 2],
    [12, 6],
    [64, 8],
  ]) {
    vi.stubGlobal("navigator", { hardwareConcurrency: processors });
    expect(threadCount()).toBe(threads);
  }
});

test("a processor that simulates WebGPU comes after WebAssembly, a GPU before it", async () => {
  const gpu = (isFallbackAdapter: boolean) => ({
    gpu: { requestAdapter: async () => ({ info: { isFallbackAdapter }, features: new Set() }) },
  });
  vi.stubGlobal("navigator", gpu(true));
  expect((await supportedTargets()).at(-1)).toBe("webgpu");
  vi.stubGlobal("navigator", gpu(false));
  expect((await supportedTargets())[0]).toBe("webgpu");
});

test("artifacts with float16 come before others where the GPU has it", async () => {
  const adapter = { info: {}, features: new Set(["shader-f16"]) };
  vi.stubGlobal("navigator", { gpu: { requestAdapter: async () => adapter } });
  expect(await bestOf({ webgpu: "a.tar", "webgpu:f16": "b.tar" })).toBe("b.tar");
  adapter.features.clear();
  expect(await bestOf({ webgpu: "a.tar", "webgpu:f16": "b.tar" })).toBe("a.tar");
});

test("artifacts with subgroups need the GPU's and the language's", async () => {
  const features = new Set(["subgroups", "shader-f16"]);
  const gpu = {
    requestAdapter: async () => ({ info: {}, features }),
    wgslLanguageFeatures: new Set<string>(),
  };
  vi.stubGlobal("navigator", { gpu });
  const first = async (): Promise<string[]> => (await supportedTargets()).slice(0, 4);
  expect(await first()).toEqual(expect.arrayContaining(["webgpu:f16", "webgpu"]));
  expect(await first()).not.toContain("webgpu:subgroups");
  gpu.wgslLanguageFeatures.add("subgroup_id");
  expect(await first()).toEqual(["webgpu:f16+subgroups", "webgpu:f16", "webgpu:subgroups", "webgpu"]);
  features.delete("shader-f16");
  expect((await first()).slice(0, 2)).toEqual(["webgpu:subgroups", "webgpu"]);
});

test("the best of several files is taken", async () => {
  expect(await bestOf({ wasm32: "a.wasm", "wasm32:threads": "b.wasm" })).toBe("b.wasm");
  vi.stubGlobal("crossOriginIsolated", false);
  expect(await bestOf({ wasm32: "a.wasm", "wasm32:threads": "b.wasm" })).toBe("a.wasm");
  await expect(bestOf({ webgpu: "c.tar" })).rejects.toThrow("none of the given files runs here");
  await expect(bestOf({ wasm64: "d.wasm" } as object)).rejects.toThrow("'wasm64' is no target");
});

test("files by targets are told from one file", () => {
  expect(isSources({ wasm32: "a.wasm" })).toBe(true);
  for (const file of ["a.wasm", new URL("file:///a.wasm"), new Uint8Array(4), new ArrayBuffer(4), new Blob()])
    expect(isSources(file)).toBe(false);
});

test("a shared memory begins with the wanted bytes", () => {
  expect(sharedMemory(100_000).buffer.byteLength).toBe(2 * 65536);
  expect(() => sharedMemory(5e9)).toThrow(RangeError);
});
