/** The state that the views share: the model, its function, and what is chosen. */

import { announce } from "../page/dom.js";
import type { Symbols } from "../src/formulas.js";
import {
  type KernelTime,
  kernelTimes,
  largestSizes,
  type Model,
  type ModelFunction,
  stepsOf,
} from "./data.js";

export type View = "graph" | "kernels" | "code" | "time" | "memory" | "passes" | "compare" | "metadata";

export class Context {
  function: ModelFunction;
  operator: number | null = null;
  kernel: string | null = null;
  openModules: Set<string> | null = null;
  sizes: Record<string, number>;
  steps: (number | undefined)[];
  readonly times: Map<string, KernelTime>;

  constructor(
    readonly model: Model,
    readonly other: Model | null,
    private readonly show: (view: View) => void,
  ) {
    // The function that was timed, or else the first.
    const first = model.functions.find((f) => f.steps.length) ?? model.functions[0]!;
    this.function = first;
    this.sizes = { ...largestSizes(first), ...model.profile?.sizes };
    this.steps = stepsOf(first);
    this.times = model.profile ? kernelTimes(model.profile) : new Map();
  }

  setFunction(name: string): void {
    this.function = this.model.functions.find((f) => f.name === name) ?? this.function;
    this.sizes = largestSizes(this.function);
    this.steps = stepsOf(this.function);
    this.operator = null;
    this.openModules = null;
  }

  get symbols(): Symbols {
    return this.sizes;
  }

  choose(operator: number): void {
    this.operator = operator;
    this.kernel = this.kernelOf(operator) ?? this.kernel;
  }

  kernelOf(operator: number): string | undefined {
    const step = this.steps[operator];
    return step === undefined ? undefined : this.function.steps[step]?.kernel;
  }

  open(view: View): void {
    this.show(view);
  }

  openKernel(kernel: string): void {
    this.kernel = kernel;
    this.show("code");
  }

  openOperator(operator: number): void {
    this.choose(operator);
    this.show("graph");
  }

  /** The operators that a kernel computes, of all its launches. */
  operatorsOf(kernel: string): number[] {
    const base = this.model.kernels.find((k) => k.name === kernel)?.variant_of ?? kernel;
    return [
      ...new Set(this.function.steps.filter((s) => s.kernel === base).flatMap((s) => s.operators ?? [])),
    ];
  }

  /** The seconds of each operator that a launch counts for. */
  secondsOfOperators(): Map<number, number> {
    const found = new Map<number, number>();
    for (const { step, begin, end } of this.model.profile?.launches ?? []) {
      const at = step === null ? undefined : this.function.steps[step];
      const main = at?.main ?? at?.operators?.at(-1);
      if (main !== undefined) found.set(main, (found.get(main) ?? 0) + end - begin);
    }
    return found;
  }

  announce(text: string): void {
    announce(text);
  }
}
