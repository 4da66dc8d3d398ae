/** Tensors as arguments and results. */

import type { ElementArray } from "./elements.js";
import { elementNamed } from "./elements.js";
import { ShapeError } from "./errors.js";
import type { TensorEntry } from "./metadata.js";

/** A dense tensor: its elements row by row, and its sizes. */
export interface Tensor<Data extends ElementArray = ElementArray> {
  readonly data: Data;
  readonly shape: readonly number[];
}

/** Arguments or results by name. */
export type Tensors = Readonly<Record<string, Tensor>>;

/** The tensor of `data`, by default with one dimension. */
export function tensor<Data extends ElementArray>(
  data: Data,
  shape: readonly number[] = [data.length],
): Tensor<Data> {
  const tensor = { data, shape: [...shape] };
  checkCount("tensor", tensor);
  return tensor;
}

export function product(sizes: readonly number[]): number {
  return sizes.reduce((count, size) => count * size, 1);
}

/** The bytes of an array. */
export function bytesOf(data: ArrayBufferView): Uint8Array<ArrayBuffer> {
  return new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
}

function checkCount(what: string, { data, shape }: Tensor): void {
  if (!shape.every((size) => Number.isSafeInteger(size) && size >= 0))
    throw new ShapeError(`${what}: [${shape}] is no shape: give whole numbers from 0 on`);
  const count = product(shape);
  if (count !== data.length)
    throw new ShapeError(`${what}: shape [${shape}] has ${count} elements, its data has ${data.length}`);
}

/** The inputs of a call in the model's order, each with the right array and rank. Throws ShapeError. */
export function argumentsOf(given: Tensors, wanted: readonly TensorEntry[]): Tensor[] {
  const known = wanted.map((spec) => `'${spec.name}'`).join(", ");
  for (const name of Object.keys(given))
    if (!wanted.some((spec) => spec.name === name))
      throw new ShapeError(`unknown input '${name}'; the inputs are ${known || "none"}`);
  const missing = wanted.filter((spec) => given[spec.name] === undefined);
  if (missing.length)
    throw new ShapeError(
      `missing input ${missing.map((spec) => `'${spec.name}'`).join(", ")}; the inputs are ${known}`,
    );
  return wanted.map((spec) => {
    const value = given[spec.name] as Tensor;
    const what = `input '${spec.name}'`;
    const { array } = elementNamed(spec.dtype, spec.name);
    if (!(value?.data instanceof array) || !Array.isArray(value.shape))
      throw new ShapeError(
        `${what}: expected { data: ${array.name}, shape: [...] } for ${spec.dtype}, got ${described(value)}`,
      );
    checkCount(what, value);
    if (value.shape.length !== spec.shape.length)
      throw new ShapeError(
        `${what}: expected ${spec.shape.length} dimensions, got ${value.shape.length} ([${value.shape}])`,
      );
    return value;
  });
}

function described(value: unknown): string {
  if (value === null || typeof value !== "object") return String(value);
  const { data, shape } = value as { data?: unknown; shape?: unknown };
  const of = data === undefined ? "nothing" : ((data as object)?.constructor?.name ?? String(data));
  return `{ data: ${of}, shape: ${Array.isArray(shape) ? `[${shape}]` : String(shape)} }`;
}
