/** The element types of tensors. */

import { ArtifactError } from "./errors.js";

export type ElementType =
  | "bool"
  | "int8"
  | "int16"
  | "int32"
  | "int64"
  | "uint8"
  | "uint16"
  | "uint32"
  | "uint64"
  | "float16"
  | "bfloat16"
  | "float32"
  | "float64";

/** The arrays that hold elements. Elements of float16 and bfloat16 are bit patterns, those of bool 0 or 1. */
export type ElementArray =
  | Int8Array
  | Int16Array
  | Int32Array
  | BigInt64Array
  | Uint8Array
  | Uint16Array
  | Uint32Array
  | BigUint64Array
  | Float32Array
  | Float64Array;

export interface ArrayKind {
  readonly name: string;
  readonly BYTES_PER_ELEMENT: number;
  new (length: number): ElementArray;
  new (buffer: ArrayBufferLike, offset?: number, length?: number): ElementArray;
}

export interface Element {
  /** DLPack's code of the type. */
  readonly code: number;
  readonly bits: number;
  readonly array: ArrayKind;
}

const element = (code: number, bits: number, array: unknown): Element => ({
  code,
  bits,
  array: array as ArrayKind,
});

const ELEMENTS: Readonly<Record<ElementType, Element>> = {
  bool: element(6, 8, Uint8Array),
  int8: element(0, 8, Int8Array),
  int16: element(0, 16, Int16Array),
  int32: element(0, 32, Int32Array),
  int64: element(0, 64, BigInt64Array),
  uint8: element(1, 8, Uint8Array),
  uint16: element(1, 16, Uint16Array),
  uint32: element(1, 32, Uint32Array),
  uint64: element(1, 64, BigUint64Array),
  float16: element(2, 16, Uint16Array),
  bfloat16: element(4, 16, Uint16Array),
  float32: element(2, 32, Float32Array),
  float64: element(2, 64, Float64Array),
};

/** The element type `name`. Throws ArtifactError, which names the tensor `of`, where JavaScript has no array
 * for it. */
export function elementNamed(name: string, of: string): Element {
  if (!Object.hasOwn(ELEMENTS, name))
    throw new ArtifactError(`'${of}': elements of type ${name} cannot be passed from JavaScript`);
  return ELEMENTS[name as ElementType];
}

const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

function floatOfHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : (fraction / 1024) * 2 ** -14);
}

function halfOfFloat(value: number): number {
  float[0] = value;
  const bits = word[0] as number;
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00; // the first value that rounds to infinity
  if (magnitude < 0x38800000) return sign | roundEven(Math.abs(float[0] as number) * 2 ** 24); // subnormal
  const rounded = magnitude + 0xfff + ((magnitude >>> 13) & 1);
  return sign | ((rounded - 0x38000000) >>> 13);
}

function roundEven(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}

function bfloatOfFloat(value: number): number {
  float[0] = value;
  const bits = word[0] as number;
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 0x40; // NaN stays NaN
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

/** The numbers of bit patterns of 16-bit floats. */
export function toFloat32(data: Uint16Array, type: "float16" | "bfloat16"): Float32Array {
  if (type === "float16") return Float32Array.from(data, floatOfHalf);
  const words = Uint32Array.from(data, (bits) => bits << 16);
  return new Float32Array(words.buffer);
}

/** The bit patterns of numbers as 16-bit floats, rounded to the nearest, ties to even. */
export function fromFloat32(numbers: ArrayLike<number>, type: "float16" | "bfloat16"): Uint16Array {
  return Uint16Array.from(numbers, type === "float16" ? halfOfFloat : bfloatOfFloat);
}
