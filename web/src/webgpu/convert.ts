/** Elements in JavaScript and on the device, where 64-bit integers take 32 bits. */

import { type Element, type ElementArray, elementNamed } from "../elements.js";
import { ShapeError } from "../errors.js";
import { bytesOf } from "../tensors.js";

const MOST = 2147483647n;

/** The bytes of an element on the device. */
export function storedBytes(element: Element): number {
  return Math.min(element.bits / 8, 4);
}

/** The memory of an array on the device: whole words. Integers beyond 32 bits are bounds such as "to the
 * end", not data: they become the largest ones. */
export function onDevice(data: ElementArray): Uint8Array<ArrayBuffer> {
  if (data instanceof BigInt64Array || data instanceof BigUint64Array)
    return bytesOf(
      Int32Array.from(data as BigInt64Array, (value) =>
        Number(value > MOST ? MOST : value < -MOST - 1n ? -MOST - 1n : value),
      ),
    );
  if (data instanceof Float64Array)
    throw new ShapeError("WebGPU has no float64: compile the model in float32, or for wasm32");
  const bytes = bytesOf(data);
  if (bytes.length % 4 === 0) return bytes;
  const padded = new Uint8Array(Math.ceil(bytes.length / 4) * 4);
  padded.set(bytes);
  return padded;
}

/** The array of a tensor whose bytes on the device are `bytes`, which begin at a multiple of 4 bytes. */
export function fromDevice(bytes: Uint8Array<ArrayBuffer>, dtype: string, name: string): ElementArray {
  const { array, bits } = elementNamed(dtype, name);
  if (bits < 64) return new array(bytes.buffer, bytes.byteOffset, bytes.length / (bits / 8));
  const narrow = new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  return BigInt64Array.from(narrow as unknown as ArrayLike<bigint>, (value) => BigInt(value));
}
