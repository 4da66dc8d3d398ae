/** The host program of an archive for WebGPU; `tilewright.targets.webgpu.program` describes its steps. */

import { ArtifactError } from "../errors.js";
import type { Formula } from "../metadata.js";

/** A buffer of a function, by its number. */
type Buffer = number;

export type Step =
  | { constant: number; to: Buffer }
  | { alloc: number; to: Buffer }
  | { block: number; to: Buffer; size: Formula; keep: 0 | 1 }
  | { view: Buffer; to: Buffer; offset: Formula; sizes?: [Formula, Formula] }
  | KernelStep
  | { copy: [Buffer, Buffer]; size: Formula; late?: number }
  | ({ for: string; count: Formula } & Carried)
  | ({ while: string; condition: Buffer; limit: Buffer | null; steps_done: string } & Carried)
  | { if: Buffer; then: Step[]; else: Step[] }
  | { check: Buffer; message: string; error: "program" | "index" | "division" }
  | { bind: string; from: Buffer; bounds: [number | null, number | null]; place: string };

export interface KernelStep {
  kernel: string;
  buffers: Buffer[];
  sizes: Formula[];
  dims: string[];
  grid: [Formula, Formula, Formula];
}

export interface Carried {
  initial: Buffer[];
  args: Buffer[];
  steps: Step[];
  yield: Buffer[];
  results: Buffer[];
}

export interface ProgramFunction {
  inputs: Buffer[];
  /** Pairs of a buffer and the number of a state. */
  states: [Buffer, number][];
  outputs: Buffer[];
  /** The bytes of each planned buffer: the largest of the formulas. */
  buffers: Formula[][];
  steps: Step[];
}

export interface KernelInterface {
  /** The bytes of an element of each buffer. */
  bytes: number[];
  /** The binding of each buffer. Buffers of one binding are parts of one buffer of the device. */
  bindings: number[];
  /** Whether the kernel writes each binding. */
  written: number[];
}

export interface Program {
  version: number;
  functions: Record<string, ProgramFunction>;
  states: { bytes: Formula; first: number | null }[];
  kernels: Record<string, KernelInterface>;
  /** The first byte and the number of bytes of each weight. */
  weights: [number, number][];
}

const VERSION = 4;

export function parseProgram(text: string, where: string): Program {
  let program: Program;
  try {
    program = JSON.parse(text);
  } catch {
    throw new ArtifactError(`${where}: damaged file: its program is no JSON text`);
  }
  if (program?.version !== VERSION)
    throw new ArtifactError(
      `${where}: its program has version ${program?.version}, this package supports version ${VERSION}: ` +
        "compile the model again or use a matching package",
    );
  return program;
}
