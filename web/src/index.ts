/** Runs models that Tilewright compiled for `wasm32` and `webgpu`, in browsers, workers, Node and Deno. */

export type { BackendName } from "./backend.js";
export {
  type ElementArray,
  type ElementType,
  fromFloat32,
  toFloat32,
} from "./elements.js";
export {
  AbortError,
  ArtifactError,
  DeviceError,
  DivisionError,
  InternalError,
  MemoryError,
  OutOfRangeError,
  ShapeError,
  TilewrightError,
} from "./errors.js";
export { clearStorage, type FileSource, type Progress } from "./fetching.js";
export { type LoadOptions, load } from "./load.js";
export type { Formula, FunctionEntry, Metadata, TensorEntry } from "./metadata.js";
export { Model, type Results, type Signature } from "./model.js";
export { type Sources, supportedTargets, type Target } from "./targets.js";
export { type Tensor, type Tensors, tensor } from "./tensors.js";
