import { describe, expect, it } from "vitest";
import { evaluate, solveSymbols } from "../src/formulas.js";

describe("evaluate", () => {
  it.each([
    ["4*batch*((seq + 31) // 32)", { batch: 2, seq: 33 }, 16],
    ["-7 // 2", {}, -4],
    ["-7 % 3", {}, 2],
    ["2**3**2", {}, 512],
    ["-2**2", {}, -4],
    ["max(1, min(n, 8)) - 1", { n: 20 }, 7],
    ["a_1+1", { a_1: 4 }, 5],
    ["10 - 3 - 2", {}, 5],
    ["7 // 2 * 2", {}, 6],
  ])("%s", (formula, symbols, expected) => {
    expect(evaluate(formula, symbols as Record<string, number>)).toBe(expected);
  });

  it.each(["1 +", "n", "2 / 1", "f(1)", "(1", "1 2", ""])("refuses '%s'", (formula) => {
    expect(() => evaluate(formula, {})).toThrow(/formula that cannot be read/);
  });
});

describe("solveSymbols", () => {
  const inputs = ["x", "y"].map((name) => ({ name, dtype: "float32", shape: [] }));
  const solver = [
    { input: 0, dim: 0, symbol: "n", coefficient: 2, offset: 1, lower: 1, upper: 8 },
    { input: 1, dim: 0, expr: "n" },
    { input: 1, dim: 1, expr: 3 },
  ];

  it("finds symbols from sizes", () => {
    expect(solveSymbols(solver, inputs, [[7], [3, 3]])).toEqual({ n: 3 });
  });

  it.each([
    [[7], [4, 3], "input 'y' has size 4 in dimension 0, but 'n' is 3 from dimension 0 of 'x'"],
    [[8], [3, 3], "input 'x' has size 8 in dimension 0, which must be a multiple of 2"],
    [[21], [10, 3], "input 'x' has size 21 in dimension 0, so 'n' is 10: it must be between 1 and 8"],
    [[7], [3, 4], "input 'y' has size 4 in dimension 1, expected 3"],
  ])("refuses %j and %j", (x, y, message) => {
    expect(() => solveSymbols(solver, inputs, [x, y])).toThrow(message);
  });
});
