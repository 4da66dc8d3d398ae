/** How tokens are chosen; the draws are those of `tilewright.llm.engine.sampling`. */

import { RequestError } from "../errors.js";
import type { Grammar } from "./grammar.js";

export interface SamplingParameters {
  /** 0 takes the most probable token. */
  readonly temperature: number;
  readonly topP: number;
  /** 0: from all tokens. */
  readonly topK: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly frequencyPenalty: number;
  readonly presencePenalty: number;
  /** Added to the logits of tokens. */
  readonly logitBias: ReadonlyMap<number, number>;
  /** How many log-probabilities are reported beside each token's; null: none. */
  readonly logprobs: number | null;
}

export const DEFAULTS: SamplingParameters = {
  temperature: 1,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  frequencyPenalty: 0,
  presencePenalty: 0,
  logitBias: new Map(),
  logprobs: null,
};

export interface TokenLogprob {
  readonly token: number;
  readonly logprob: number;
  readonly top: readonly (readonly [number, number])[];
}

const MASK = (1n << 64n) - 1n;

/** Hashes 64 bits (the finalizer of splitmix64, Steele et al. 2014). */
function mix(value: bigint): bigint {
  let x = (value + 0x9e3779b97f4a7c15n) & MASK;
  x = ((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  x = ((x ^ (x >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return x ^ (x >> 31n);
}

/** The seed of one of a request's choices. */
export function seedOfChoice(seed: bigint, index: number): bigint {
  return mix((mix(seed & MASK) + BigInt(index)) & MASK);
}

/** A seed for a request without one. */
export function randomSeed(): bigint {
  return crypto.getRandomValues(new BigUint64Array(1))[0] as bigint;
}

/** The state besides the logits on which a sequence's next token depends. */
export class Sampler {
  /** How often each token of prompt or output occurs in the output; null without penalties. */
  private readonly counts: Map<number, number> | null;

  constructor(
    readonly parameters: SamplingParameters,
    prompt: readonly number[],
    private readonly seed: bigint,
    readonly grammar: Grammar | null,
  ) {
    const { repetitionPenalty, frequencyPenalty, presencePenalty } = parameters;
    const penalized = repetitionPenalty !== 1 || frequencyPenalty !== 0 || presencePenalty !== 0;
    this.counts = penalized ? new Map(prompt.map((token) => [token, 0])) : null;
  }

  /** Whether logits are changed before a token is chosen. */
  get adjusts(): boolean {
    return this.counts !== null || this.parameters.logitBias.size > 0 || this.grammar !== null;
  }

  get greedy(): boolean {
    return this.parameters.temperature < 1e-5;
  }

  /** Records an output token. */
  accept(token: number): void {
    this.counts?.set(token, (this.counts.get(token) ?? 0) + 1);
    this.grammar?.accept(token);
  }

  /** The tokens that penalties see, ascending, and how often each occurs in the output. */
  occurrences(): [number, number][] {
    return [...(this.counts ?? [])].sort(([a], [b]) => a - b);
  }

  /** The random number in [0, 1) that draws output token `step`. */
  uniform(step: number): number {
    return Number(mix(this.seed ^ mix(BigInt(4 * step))) >> 11n) * 2 ** -53;
  }

  /** Applies penalties, biases and the grammar's mask to a row of logits, in place. */
  adjust(logits: Float32Array, mask: Uint8Array | null): void {
    const { repetitionPenalty, frequencyPenalty, presencePenalty, logitBias } = this.parameters;
    for (const [token, count] of this.counts ?? []) {
      const old = logits[token] as number;
      const repeated = old > 0 ? old / repetitionPenalty : old * repetitionPenalty;
      logits[token] = repeated - frequencyPenalty * count - (count > 0 ? presencePenalty : 0);
    }
    for (const [token, bias] of logitBias) logits[token] = (logits[token] as number) + bias;
    if (mask)
      for (let token = 0; token < logits.length; token++)
        if (!(((mask[token >> 3] ?? 0) >> (token & 7)) & 1)) logits[token] = Number.NEGATIVE_INFINITY;
  }

  /** Chooses a token from adjusted logits. Throws RequestError where no token is allowed. */
  choose(logits: Float32Array, step: number): number {
    const best = greatest(logits);
    const most = logits[best] as number;
    if (!Number.isFinite(most))
      throw new RequestError("no token is allowed here, or a logit is not a number");
    if (this.greedy) return best;
    const { temperature, topK, topP, minP } = this.parameters;
    const weight = (logit: number): number => Math.fround(Math.exp((logit - most) / temperature));
    let ids = Array.from(logits.keys());
    const limited = topK > 0 && topK < logits.length;
    const byLogit = (a: number, b: number): number => (logits[b] as number) - (logits[a] as number) || a - b;
    if (limited) ids = ids.sort(byLogit).slice(0, topK);
    if (minP > 0) ids = ids.filter((id) => weight(logits[id] as number) >= minP);
    if (topP < 1) {
      ids.sort(byLogit);
      const goal = topP * ids.reduce((sum, id) => sum + weight(logits[id] as number), 0);
      let sum = 0;
      const end = ids.findIndex((id) => {
        sum += weight(logits[id] as number);
        return sum >= goal;
      });
      if (end >= 0) ids.length = end + 1;
    }
    const weights = ids.map((id) => weight(logits[id] as number));
    const goal = this.uniform(step) * weights.reduce((sum, w) => sum + w, 0);
    let sum = 0;
    for (const [k, w] of weights.entries()) {
      sum += w;
      if (sum > goal) return ids[k] as number;
    }
    return ids[weights.findLastIndex((w) => w > 0)] as number;
  }
}

function greatest(values: Float32Array): number {
  let best = 0;
  for (let k = 1; k < values.length; k++) if ((values[k] as number) > (values[best] as number)) best = k;
  return best;
}

/** The log-probability of a token in a row of logits that was not adjusted, and the `top` greatest ones. */
export function logprobsOf(logits: Float32Array, token: number, top: number): TokenLogprob {
  const most = logits[greatest(logits)] as number;
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - most);
  const whole = most + Math.log(sum);
  const ids = top
    ? Array.from(logits.keys()).sort((a, b) => (logits[b] as number) - (logits[a] as number))
    : [];
  return {
    token,
    logprob: (logits[token] as number) - whole,
    top: ids.slice(0, top).map((id) => [id, (logits[id] as number) - whole] as const),
  };
}
