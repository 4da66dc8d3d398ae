/** The functions of a compiled language model; `tilewright.llm.library` describes them. */

import type { Backend, FunctionCall } from "../backend.js";
import { ArtifactError } from "../errors.js";
import type { Metadata } from "../metadata.js";
import type { Tensor } from "../tensors.js";
import type { Sampler } from "./sampling.js";

/** A row for which the library considered too few tokens: the caller chooses from its logits. */
export const UNDECIDED = -2;

/** The description of the model in a library's metadata. */
export interface Description {
  readonly vocabulary: number;
  readonly pages: number;
  readonly context: number;
  readonly chunk: number;
  readonly max_batch: number;
  readonly rows: number;
  readonly has_state: boolean;
  readonly draws: boolean;
}

/** How a row's token is drawn. */
export interface Draw {
  readonly row: number;
  readonly sampler: Sampler;
  /** The number of the token in the output. */
  readonly step: number;
  /** The mask of the sampler's grammar. */
  readonly mask: Uint8Array | null;
}

/** What is computed from the logits of a step in the same call. */
export interface Choices {
  readonly drawn: readonly Draw[];
  /** Drawn after penalties, biases and grammars. */
  readonly adjusted: readonly Draw[];
  /** Rows whose logits are read. */
  readonly logits: readonly number[];
}

/** The most probable token of each row of a step, and what `Choices` asked for, in its order. */
export interface Chosen {
  readonly probable: Int32Array;
  readonly drawn: Int32Array;
  readonly adjusted: Int32Array;
  readonly logits: readonly Float32Array[];
}

const ints = (values: ArrayLike<number>, shape: readonly number[] = [values.length]): Tensor => ({
  data: Int32Array.from(values),
  shape,
});
const floats = (values: ArrayLike<number>): Tensor => ({
  data: Float32Array.from(values),
  shape: [values.length],
});
const scalar = (value: number): Tensor => ({ data: Int32Array.of(value), shape: [] });

export function descriptionOf(metadata: Metadata, where: string): Description {
  const description = metadata.llm as Description | undefined;
  if (!description)
    throw new ArtifactError(`${where}: no language model: compile one with 'tilewright llm compile'`);
  if (!description.draws)
    throw new ArtifactError(
      `${where}: this library leaves the choice of tokens to its caller: compile it for wasm32 or webgpu ` +
        "with this version of Tilewright",
    );
  return description;
}

export class Runner {
  readonly description: Description;

  constructor(
    readonly backend: Backend,
    where: string,
  ) {
    this.description = descriptionOf(backend.metadata, where);
  }

  /** Computes tokens of a prompt, which follow `start` tokens. */
  async prefill(
    tokens: readonly number[],
    start: number,
    pages: readonly number[],
    slot: number,
    choices: Choices,
  ): Promise<Chosen> {
    const slots = this.description.has_state ? [scalar(slot)] : [];
    return this.step("prefill", [ints(tokens), scalar(start), ints(pages), ...slots], choices);
  }

  /** Computes one token of each row. `pages`: rows of equal length. */
  decode(
    tokens: readonly number[],
    lengths: readonly number[],
    pages: readonly (readonly number[])[],
    slots: readonly number[],
    choices: Choices,
  ): Promise<Chosen> {
    const width = (pages[0] as readonly number[]).length;
    const inputs = [
      ints(tokens),
      ints(lengths),
      ints(pages.flat(), [pages.length, width]),
      ...(this.description.has_state ? [ints(slots)] : []),
    ];
    return this.step("decode", inputs, choices);
  }

  /** Runs the model and what chooses from its logits, in one call: on WebGPU that is one submission and one
   * wait for the device. */
  private async step(
    name: string,
    inputs: readonly Tensor[],
    { drawn, adjusted, logits }: Choices,
  ): Promise<Chosen> {
    const calls: FunctionCall[] = [{ name, inputs }];
    if (drawn.length) calls.push({ name: "draw", inputs: parametersOf(drawn) });
    if (adjusted.length) calls.push({ name: "draw_adjusted", inputs: this.adjustedInputs(adjusted) });
    if (logits.length) calls.push({ name: "logits", inputs: [ints(logits)] });
    const results = await this.backend.run(calls);
    const next = (some: readonly unknown[]): Tensor["data"] | undefined =>
      some.length ? results.shift()?.outputs[0]?.data : undefined;
    const tokens = (some: readonly unknown[]): Int32Array => (next(some) ?? new Int32Array()) as Int32Array;
    return {
      probable: tokens(calls),
      drawn: tokens(drawn),
      adjusted: tokens(adjusted),
      logits: this.rowsOf((next(logits) ?? new Float32Array()) as Float32Array),
    };
  }

  private adjustedInputs(draws: readonly Draw[]): Tensor[] {
    const { vocabulary } = this.description;
    const occurring = draws.map(({ sampler }) => sampler.occurrences());
    const biases = draws.map(({ sampler }) => [...sampler.parameters.logitBias].sort(([a], [b]) => a - b));
    const parameter = (name: "repetitionPenalty" | "frequencyPenalty" | "presencePenalty"): Tensor =>
      floats(draws.map(({ sampler }) => sampler.parameters[name]));
    const bytes = Math.ceil(vocabulary / 8);
    const masks = draws.flatMap(({ mask }) => (mask ? [mask.subarray(0, bytes)] : []));
    const allowed = new Uint8Array(Math.max(1, masks.length) * bytes);
    masks.forEach((mask, k) => {
      allowed.set(mask, k * bytes);
    });
    let number = 0;
    return [
      ...parametersOf(draws),
      padded(occurring, 0, vocabulary, Int32Array),
      padded(occurring, 1, 0, Int32Array),
      parameter("repetitionPenalty"),
      parameter("frequencyPenalty"),
      parameter("presencePenalty"),
      padded(biases, 0, vocabulary, Int32Array),
      padded(biases, 1, 0, Float32Array),
      { data: allowed, shape: [Math.max(1, masks.length), bytes] },
      ints(draws.map(({ mask }) => (mask ? number++ : -1))),
    ];
  }

  /** The logits of rows of the last call, one after the other. */
  async logits(rows: readonly number[]): Promise<Float32Array[]> {
    return this.rowsOf((await this.one("logits", [ints(rows)])) as Float32Array);
  }

  private rowsOf(logits: Float32Array): Float32Array[] {
    const { vocabulary } = this.description;
    return Array.from({ length: logits.length / vocabulary }, (_, k) =>
      logits.slice(k * vocabulary, (k + 1) * vocabulary),
    );
  }

  async copyPage(source: number, target: number): Promise<void> {
    await this.one("copy_page", [ints([source]), ints([target])]);
  }

  /** Gives the state of a slot, where the model has one, its first value. */
  async reset(slot: number): Promise<void> {
    if (this.description.has_state) await this.one("reset", [scalar(slot)]);
  }

  async embed(tokens: readonly number[]): Promise<Float32Array> {
    return (await this.one("embed", [ints(tokens)])) as Float32Array;
  }

  /** Runs one function; returns its first output. */
  private async one(name: string, inputs: readonly Tensor[]): Promise<Tensor["data"] | undefined> {
    const [result] = await this.backend.run([{ name, inputs }]);
    return result?.outputs[0]?.data;
  }
}

/** The inputs that the functions which draw have in common. */
function parametersOf(draws: readonly Draw[]): Tensor[] {
  const parameters = draws.map(({ sampler }) => sampler.parameters);
  const words = draws.map(({ sampler, step }) => Math.floor(sampler.uniform(step) * 2 ** 32));
  return [
    ints(draws.map(({ row }) => row)),
    floats(parameters.map(({ temperature }) => temperature)),
    ints(parameters.map(({ topK }) => topK)),
    floats(parameters.map(({ topP }) => topP)),
    floats(parameters.map(({ minP }) => minP)),
    { data: Uint32Array.from(words), shape: [words.length] },
  ];
}

/** One column of rows of pairs, filled up to the longest row, at least one. */
function padded(
  rows: readonly (readonly (readonly [number, number])[])[],
  column: 0 | 1,
  rest: number,
  kind: typeof Int32Array | typeof Float32Array,
): Tensor {
  const width = Math.max(1, ...rows.map((row) => row.length));
  const data = new kind(rows.length * width).fill(rest);
  rows.forEach((row, k) => {
    row.forEach((pair, n) => {
      data[k * width + n] = pair[column];
    });
  });
  return { data, shape: [rows.length, width] };
}
