/** The data of the page, as `tilewright.explore` writes it, and what the views compute from it. */

import { evaluate, type Symbols } from "../src/formulas.js";

export type Size = number | string;

export interface Operator {
  name: string;
  place: string;
  source: string;
  operands: number[];
  types: string[];
  attributes: string;
  parent: number | null;
}

export interface Step {
  kind: string;
  kernel?: string;
  operators?: number[];
  main?: number | null;
  reads?: number[];
  writes?: number[];
}

export interface Storage {
  offset: Size;
  bytes: Size;
  first: number;
  last: number;
  buffers: [string, string][];
}

export interface Tensor {
  name: string;
  dtype: string;
  shape: Size[];
}

/** Two steps of which the second reads what the first writes, with the rules that kept them apart. */
export interface Apart {
  from: number;
  to: number;
  /** Two operators of the steps, of which the second reads the first; empty where none are known. */
  operators: number[];
  reasons: [rule: string, reason: string][];
}

export interface ModelFunction {
  name: string;
  inputs: Tensor[];
  outputs: Tensor[];
  symbols: Record<string, [number | null, number | null]>;
  memory: Record<string, unknown>;
  operators: Operator[];
  steps: Step[];
  storages: Storage[];
  apart: Apart[];
}

/** A measured candidate of `tilewright tune`; times are the default's over the candidate's. */
export interface Trial {
  stage: string;
  choices: Record<string, unknown>;
  date: string;
  used: boolean;
  speedup?: number;
  lower?: number;
  upper?: number;
  failure?: string;
}

export interface Kernel {
  name: string;
  kind: string;
  launches: number;
  flops: Size;
  bytes: Size;
  operators: string[];
  locations: string[];
  slower?: string;
  variant_of?: string;
  when?: string;
  schedule: string;
  trials: Trial[];
  levels: Record<string, string>;
}

export interface Launch {
  kernel: string;
  begin: number;
  end: number;
  step: number | null;
  place: string;
  layer: string;
  source: string;
  flops: number;
  bytes: number;
  floor: number | null;
  /** The parts of threads: number, begin, end. */
  threads: [number, number, number][];
}

export interface Profile {
  seconds: number;
  /** Seconds in kernels. */
  kernels: number;
  /** Seconds of the parts of the call outside of kernels. */
  outside: Record<string, number>;
  sizes: Symbols;
  launches: Launch[];
  machine: {
    processor: string;
    threads: number;
    flops: number;
    memory: number;
    caches: [number, number][];
  } | null;
}

export interface Pass {
  name: string;
  level: string;
  seconds: number;
  lines: number;
  dropped: number;
  changes: { before: number; after: number; lines: string[] }[];
  rewrites: Record<string, { count: number; at: string[] }>;
  refusals: Record<string, { count: number; at: string[] }>;
}

export interface Model {
  title: string;
  facts: Record<string, string>;
  metadata: Record<string, unknown>;
  functions: ModelFunction[];
  states: Tensor[];
  kernels: Kernel[];
  sources: Record<string, string>;
  passes: Pass[];
  profile: Profile | null;
  /** The view that the page opens at. */
  opens?: "time";
}

export async function readData(): Promise<Model[]> {
  const text = document.getElementById("data")?.textContent ?? "";
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text()) as Model[];
}

/** One kernel's launches in the timed call. */
export interface KernelTime {
  kernel: string;
  launches: number;
  seconds: number;
  flops: number;
  bytes: number;
  /** The share of the time that the machine needs at least; null without a measured machine. */
  roofline: number | null;
}

export function kernelTimes(profile: Profile): Map<string, KernelTime> {
  const found = new Map<string, KernelTime & { floor: number | null }>();
  for (const { kernel, begin, end, flops, bytes, floor } of profile.launches) {
    const known = found.get(kernel) ?? {
      kernel,
      launches: 0,
      seconds: 0,
      flops: 0,
      bytes: 0,
      roofline: null,
      floor: 0,
    };
    known.launches++;
    known.seconds += end - begin;
    known.flops += flops;
    known.bytes += bytes;
    known.floor = floor === null || known.floor === null ? null : known.floor + floor;
    known.roofline = known.floor === null || !known.seconds ? null : Math.min(1, known.floor / known.seconds);
    found.set(kernel, known);
  }
  return new Map([...found].sort(([, a], [, b]) => b.seconds - a.seconds));
}

/** The largest sizes that a function takes: the upper bounds of its dimensions. */
export function largestSizes(found: ModelFunction): Record<string, number> {
  return Object.fromEntries(
    Object.entries(found.symbols).map(([name, [low, high]]) => [name, high ?? Math.max(low ?? 1, 1)]),
  );
}

/** The value of a size; NaN where it depends on what a run computes. */
export function sizeOf(size: Size, symbols: Symbols): number {
  try {
    return evaluate(size, symbols);
  } catch {
    return Number.NaN;
  }
}

/** Operators that read the results of each operator. */
export function usersOf(operators: readonly Operator[]): number[][] {
  const users: number[][] = operators.map(() => []);
  operators.forEach(({ operands }, number) => {
    for (const operand of new Set(operands)) users[operand]?.push(number);
  });
  return users;
}

/** The step whose kernel computes an operator: its own, or else that of the operators that read it, since a
 * change of layout or a constant is computed where it is read. */
export function stepsOf(found: ModelFunction): (number | undefined)[] {
  const steps: (number | undefined)[] = found.operators.map(() => undefined);
  found.steps.forEach(({ operators }, number) => {
    for (const operator of operators ?? []) steps[operator] ??= number;
  });
  const users = usersOf(found.operators);
  for (let k = steps.length - 1; k >= 0; k--) {
    if (steps[k] !== undefined) continue;
    steps[k] = users[k]?.map((user) => steps[user]).find((step) => step !== undefined);
  }
  return steps;
}

/** A tensor's type as people write it: `f32[batch, 384]` for `tensor<?x384xf32, "batch, 384">`. */
export function typeText(type: string): string {
  const [, sizes, dtype, names] = /^tensor<((?:[^x,>]+x)*)([^,>]+)(?:, "(.*)")?>$/.exec(type) ?? [];
  return dtype === undefined ? type : `${dtype}[${names ?? sizes!.slice(0, -1).replaceAll("x", ", ")}]`;
}

export const bytesText = (bytes: number): string => scaled(bytes, ["B", "KB", "MB", "GB", "TB"], 1000);
export const flopsText = (flops: number): string => scaled(flops, ["", "K", "M", "G", "T", "P"], 1000);

function scaled(value: number, units: readonly string[], base: number): string {
  if (!Number.isFinite(value)) return "?";
  let unit = 0;
  while (Math.abs(value) >= base && unit < units.length - 1) {
    value /= base;
    unit++;
  }
  return `${unit && value < 100 ? value.toPrecision(3) : Math.round(value)} ${units[unit]}`.trim();
}

export function timeText(seconds: number): string {
  if (seconds >= 1) return `${seconds.toPrecision(3)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toPrecision(3)} ms`;
  return `${(seconds * 1e6).toPrecision(3)} µs`;
}

export const percent = (share: number): string => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
