import { expect, it } from "vitest";
import { fromFloat32, toFloat32 } from "../src/elements.js";

it("keeps every float16 number", () => {
  const bits = Uint16Array.from({ length: 65536 }, (_, k) => k);
  const back = fromFloat32(toFloat32(bits, "float16"), "float16");
  for (let k = 0; k < 65536; k++) {
    const isNan = (k & 0x7c00) === 0x7c00 && (k & 0x3ff) !== 0;
    if (!isNan) expect(back[k]).toBe(k);
  }
});

it("keeps every bfloat16 number", () => {
  const bits = Uint16Array.from({ length: 65536 }, (_, k) => k);
  const back = fromFloat32(toFloat32(bits, "bfloat16"), "bfloat16");
  for (let k = 0; k < 65536; k++) {
    const isNan = (k & 0x7f80) === 0x7f80 && (k & 0x7f) !== 0;
    if (!isNan) expect(back[k]).toBe(k);
  }
});

it("rounds to the nearest number, ties to even", () => {
  const round = (x: number, type: "float16" | "bfloat16"): number =>
    toFloat32(fromFloat32([x], type), type)[0] as number;
  expect(round(2049, "float16")).toBe(2048);
  expect(round(2051, "float16")).toBe(2052);
  expect(round(65519, "float16")).toBe(65504);
  expect(round(65520, "float16")).toBe(Number.POSITIVE_INFINITY);
  expect(round(2 ** -25, "float16")).toBe(0);
  expect(round(3 * 2 ** -25, "float16")).toBe(2 ** -23);
  expect(round(-(2 ** -24), "float16")).toBe(-(2 ** -24));
  expect(round(257, "bfloat16")).toBe(256);
  expect(round(259, "bfloat16")).toBe(260);
  expect(round(Number.NaN, "float16")).toBeNaN();
});
