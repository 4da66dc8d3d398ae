/** Opening an artifact in this thread. */

import { isArchive, isModule } from "./archive.js";
import type { Backend, OpenOptions } from "./backend.js";
import { ArtifactError } from "./errors.js";
import { type FileSource, nameOf, readWhole } from "./fetching.js";

/** Opens the `.wasm` or `.tar` in `source`. */
export async function openBackend(source: FileSource, options: OpenOptions): Promise<Backend> {
  const where = nameOf(source);
  const file = await readWhole(source, options);
  if (isModule(file)) {
    const { WasmBackend } = await import("./wasm/backend.js");
    return WasmBackend.open(file, source, options);
  }
  if (isArchive(file)) {
    const { WebgpuBackend } = await import("./webgpu/backend.js");
    return WebgpuBackend.open(file, source, options);
  }
  const start = String.fromCharCode(...file.subarray(0, 15)).toLowerCase();
  if (start.startsWith("<!doctype html") || start.startsWith("<html"))
    throw new ArtifactError(`${where}: the server sent a page of HTML, so it has no such file`);
  throw new ArtifactError(
    `${where}: neither a WebAssembly module nor an archive for WebGPU; compile the model for wasm32 or ` +
      "webgpu",
  );
}
