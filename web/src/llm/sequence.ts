/** The engine's state of one choice of a request. */

import { AbortError } from "../errors.js";
import type { PrefixNode } from "./pages.js";
import type { Sampler, TokenLogprob } from "./sampling.js";
import { StopStrings } from "./stopping.js";
import { Detokenizer, type Tokenizer } from "./tokenizer.js";

export type FinishReason = "stop" | "length";

/** The output that one step adds to one choice. */
export interface Delta {
  /** The choice's number. */
  readonly index: number;
  /** May be empty while a character or a stop string is incomplete. */
  readonly text: string;
  readonly tokens: readonly number[];
  readonly logprobs: readonly TokenLogprob[];
  /** Set in a choice's last delta. */
  readonly finishReason: FinishReason | null;
}

export interface Limits {
  readonly maxTokens: number;
  readonly stop: readonly string[];
  /** Tokens that end the output. */
  readonly stopTokens: ReadonlySet<number>;
}

export class Sequence {
  readonly tokens: number[];
  /** The number of `tokens` in the cache. */
  held = 0;
  /** Prompt tokens that were found in the cache. */
  cached = 0;
  table: number[] = [];
  /** Nodes that own the first of these pages. */
  nodes: PrefixNode[] = [];
  slot = -1;
  /** Prefilled tokens; the sequence with the fewest is prefilled next. */
  service = 0;
  finished = false;
  private readonly stops: StopStrings;
  private readonly detokenizer: Detokenizer;

  constructor(
    readonly order: number,
    readonly index: number,
    readonly prompt: readonly number[],
    readonly sampler: Sampler,
    private readonly limits: Limits,
    tokenizer: Tokenizer,
    private readonly emit: (delta: Delta) => void,
    private readonly fails: (error: Error) => void,
  ) {
    this.tokens = [...prompt];
    this.stops = new StopStrings(limits.stop);
    this.detokenizer = new Detokenizer(tokenizer);
  }

  /** The number of chosen tokens. */
  get output(): number {
    return this.tokens.length - this.prompt.length;
  }

  /** Whether the prompt is computed. */
  get decoding(): boolean {
    return this.held >= this.prompt.length;
  }

  lastNode(root: PrefixNode): PrefixNode {
    return this.nodes.at(-1) ?? root;
  }

  /** Forgets slot and pages, which the scheduler has taken back. */
  release(): void {
    this.slot = -1;
    this.held = 0;
    this.table = [];
    this.nodes = [];
  }

  /** Adds a chosen token; sets `finished` where the output ends. `limit`: the most tokens of a sequence. */
  accept(token: number, logprob: TokenLogprob | null, limit: number): void {
    const ends = this.limits.stopTokens.has(token);
    this.sampler.accept(token);
    this.tokens.push(token);
    let { text, ended } = ends ? { text: "", ended: true } : this.stops.add(this.detokenizer.add([token]));
    ended ||= this.sampler.grammar?.complete ?? false;
    const full = this.output >= this.limits.maxTokens || this.tokens.length >= limit;
    if (ends || ((ended || full) && !this.finished)) {
      const rest = ended && !ends ? { text: "", ended } : this.stops.finish(this.detokenizer.finish());
      text += rest.text;
      ended ||= rest.ended;
    }
    this.finished = ended || full;
    let finishReason: FinishReason | null = null;
    if (this.finished) finishReason = ended ? "stop" : "length";
    this.emit({
      index: this.index,
      text,
      tokens: [token],
      logprobs: logprob ? [logprob] : [],
      finishReason,
    });
  }

  fail(error: Error): void {
    this.finished = true;
    this.fails(error);
  }

  abort(): void {
    this.fail(new AbortError("the request was aborted"));
  }
}
