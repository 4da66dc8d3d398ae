/** Serves several requests to one model at the same time, as `tilewright.llm.engine` does. */

import { asError, RequestError, TilewrightError } from "../errors.js";
import { Grammars } from "./grammar.js";
import { Queue } from "./queue.js";
import { type Choices, type Chosen, type Draw, type Runner, UNDECIDED } from "./runner.js";
import { logprobsOf, randomSeed, Sampler, type SamplingParameters, seedOfChoice } from "./sampling.js";
import { Scheduler } from "./scheduler.js";
import { type Delta, Sequence } from "./sequence.js";
import type { Tokenizer } from "./tokenizer.js";

export interface EngineRequest {
  readonly prompt: readonly number[];
  readonly sampling: SamplingParameters;
  readonly stop: readonly string[];
  /** Undefined: as many as fit into the context. */
  readonly maxTokens: number | undefined;
  readonly ignoreEos: boolean;
  /** The JSON schema of the output. */
  readonly schema: object | null;
  readonly n: number;
  readonly seed: bigint | undefined;
}

export interface Statistics {
  readonly running: number;
  readonly waiting: number;
  readonly pages: number;
  readonly pagesUsed: number;
  /** Pages of earlier prompts. */
  readonly pagesKept: number;
  readonly promptTokens: number;
  readonly outputTokens: number;
}

/** A request's output. Leaving the loop over it early aborts the request. */
export interface Output extends AsyncIterable<Delta> {
  /** Prompt tokens that earlier prompts had left in the cache. */
  readonly cachedTokens: number;
  abort(): void;
}

/** How the tokens that follow a step are chosen. */
interface Plan extends Choices {
  readonly draws: readonly (Draw & { readonly sequence: Sequence })[];
  /** Sequences whose grammar failed. */
  readonly failed: readonly (readonly [Sequence, Error])[];
}

/** Plans the choice for the sequences whose next tokens a step decides, and the rows of their logits. */
async function plannedFor(ready: readonly { sequence: Sequence; row: number }[]): Promise<Plan> {
  const draws: (Draw & { sequence: Sequence })[] = [];
  const failed: [Sequence, Error][] = [];
  for (const { sequence, row } of ready) {
    const { sampler, output } = sequence;
    try {
      const mask = sampler.grammar ? await sampler.grammar.mask() : null;
      draws.push({ row, sampler, step: output, mask, sequence });
    } catch (thrown) {
      failed.push([sequence, asError(thrown)]);
    }
  }
  const withLogprobs = ({ sampler }: Draw): boolean => sampler.parameters.logprobs !== null;
  const inLibrary = draws.filter((draw) => !withLogprobs(draw));
  return {
    draws,
    failed,
    drawn: inLibrary.filter(({ sampler }) => !sampler.adjusts && !sampler.greedy),
    adjusted: inLibrary.filter(({ sampler }) => sampler.adjusts),
    logits: draws.filter(withLogprobs).map(({ row }) => row),
  };
}

/** Lets messages to this thread in between steps, which block it on WebAssembly. */
const pause = (): Promise<void> =>
  new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });

export class Engine {
  readonly grammars: Grammars;
  private readonly scheduler: Scheduler;
  private order = 0;
  private stepping: Promise<void> | null = null;
  private aborted: Sequence[] = [];
  private closed = false;
  private promptTokens = 0;
  private outputTokens = 0;

  constructor(
    readonly runner: Runner,
    readonly tokenizer: Tokenizer,
  ) {
    const { pages, max_batch, context, has_state, vocabulary } = runner.description;
    this.grammars = new Grammars(tokenizer, vocabulary);
    this.scheduler = new Scheduler(
      pages,
      max_batch,
      context,
      !has_state,
      (source, target) => runner.copyPage(source, target),
      (slot) => runner.reset(slot),
    );
  }

  /** The most tokens of prompt and output together. */
  get limit(): number {
    return this.scheduler.limit;
  }

  get statistics(): Statistics {
    const { running, waiting, cache } = this.scheduler;
    return {
      running: running.length,
      waiting: waiting.length,
      pages: cache.count,
      pagesUsed: cache.count - cache.available,
      pagesKept: cache.kept,
      promptTokens: this.promptTokens,
      outputTokens: this.outputTokens,
    };
  }

  /** Queues a request. Throws RequestError where it can never be served. */
  async submit(request: EngineRequest): Promise<Output> {
    this.refuseClosed();
    const { prompt, sampling, n } = request;
    const { vocabulary } = this.runner.description;
    if (!prompt.length) throw new RequestError("the prompt has no tokens");
    if (prompt.length >= this.limit)
      throw new RequestError(
        `the prompt has ${prompt.length} tokens; prompt and output may have ${this.limit} together: ` +
          "shorten the prompt",
        null,
        "context_length_exceeded",
      );
    const wrong = prompt.find((token) => !(token >= 0 && token < vocabulary));
    if (wrong !== undefined)
      throw new RequestError(`the prompt has token ${wrong}; the model has 0 to ${vocabulary - 1}`);
    const seed = request.seed ?? randomSeed();
    const stopTokens = new Set(request.ignoreEos ? [] : this.tokenizer.eos);
    const limits = { maxTokens: request.maxTokens ?? this.limit, stop: request.stop, stopTokens };
    const grammars = await Promise.all(
      Array.from({ length: n }, () => request.schema && this.grammars.jsonSchema(request.schema)),
    );
    const queue = new Queue<Delta>();
    let left = n;
    const emit = (delta: Delta): void => {
      queue.push(delta);
      if (delta.finishReason && --left === 0) queue.end();
    };
    const sequences = grammars.map((grammar, index) => {
      const sampler = new Sampler(sampling, prompt, seedOfChoice(seed, index), grammar);
      return new Sequence(this.order++, index, prompt, sampler, limits, this.tokenizer, emit, (error) =>
        queue.fail(error),
      );
    });
    this.scheduler.waiting.push(...sequences);
    this.start();
    const abort = (): void => {
      this.aborted.push(...sequences);
      this.start();
    };
    return {
      get cachedTokens() {
        return sequences[0]?.cached ?? 0;
      },
      abort,
      async *[Symbol.asyncIterator]() {
        try {
          yield* queue.read();
        } finally {
          if (sequences.some(({ finished }) => !finished)) abort();
        }
      },
    };
  }

  /** The embedding of a text. */
  async embed(tokens: readonly number[]): Promise<Float32Array> {
    this.refuseClosed();
    const { context } = this.runner.description;
    if (!tokens.length || tokens.length > context)
      throw new RequestError(`the text has ${tokens.length} tokens; it must have 1 to ${context}`);
    while (this.stepping) await this.stepping;
    this.stepping = Promise.resolve();
    const result = this.runner.embed(tokens);
    this.stepping = result.then(
      () => undefined,
      () => undefined,
    );
    try {
      return await result;
    } finally {
      this.stepping = null;
      if (this.scheduler.waiting.length || this.scheduler.running.length) this.start();
    }
  }

  /** Ends all requests and frees the model's memory. */
  async dispose(): Promise<void> {
    this.closed = true;
    this.aborted.push(...this.scheduler.running, ...this.scheduler.waiting);
    await this.stepping;
    this.removeAborted();
    this.grammars.dispose();
    await this.runner.backend.close();
  }

  private refuseClosed(): void {
    if (this.closed) throw new TilewrightError("this model has been disposed of: load it again");
  }

  private start(): void {
    if (this.stepping) return;
    this.stepping = this.steps().finally(() => {
      this.stepping = null;
      // A request may have come after the last step.
      if (!this.closed && (this.scheduler.waiting.length || this.aborted.length)) this.start();
    });
  }

  private async steps(): Promise<void> {
    for (;;) {
      this.removeAborted();
      const { running, waiting } = this.scheduler;
      if (this.closed || !(running.length || waiting.length)) return;
      try {
        await this.scheduler.admit();
        await this.decode();
        await this.prefill();
      } catch (thrown) {
        // The device or the memory failed: no request can go on.
        for (const sequence of [...running, ...waiting]) {
          this.end(sequence, false);
          sequence.fail(asError(thrown));
        }
      }
      await pause();
    }
  }

  private removeAborted(): void {
    for (const sequence of this.aborted.splice(0)) {
      if (sequence.finished) continue;
      this.end(sequence);
      sequence.abort();
    }
  }

  private end(sequence: Sequence, valid = true): void {
    this.scheduler.remove(sequence, valid);
    sequence.sampler.grammar?.dispose();
  }

  /** Computes a chunk of one prompt. */
  private async prefill(): Promise<void> {
    const work = await this.scheduler.nextPrefill(this.runner.description.chunk);
    if (!work) return;
    const { sequence, end } = work;
    const tokens = sequence.prompt.slice(sequence.held, end);
    const plan = await plannedFor(end === sequence.tokens.length ? [{ sequence, row: 0 }] : []);
    const chosen = await this.runner.prefill(tokens, sequence.held, sequence.table, sequence.slot, plan);
    this.promptTokens += tokens.length;
    this.scheduler.recordPrefill(sequence, end);
    await this.choose(plan, chosen);
  }

  /** Computes the next token of every sequence whose prompt is computed. A sequence that was preempted feeds
   * the tokens that were chosen before. */
  private async decode(): Promise<void> {
    const { running } = this.scheduler;
    for (const sequence of running.filter((s) => s.decoding))
      if (sequence.slot >= 0) this.scheduler.grow(sequence, sequence.held + 1);
    const sequences = running.filter((s) => s.decoding);
    if (!sequences.length) return;
    const ready = sequences.flatMap((sequence, row) =>
      sequence.held + 1 === sequence.tokens.length ? [{ sequence, row }] : [],
    );
    const plan = await plannedFor(ready);
    const width = Math.max(...sequences.map(({ table }) => table.length));
    const chosen = await this.runner.decode(
      sequences.map(({ tokens, held }) => tokens[held] as number),
      sequences.map(({ held }) => held),
      sequences.map(({ table }) => [...table, ...Array(width - table.length).fill(-1)]),
      sequences.map(({ slot }) => slot),
      plan,
    );
    for (const sequence of sequences) sequence.held++;
    await this.choose(plan, chosen);
  }

  /** Gives the sequences of a step their next tokens. Logits of rows that the library left undecided are
   * read now. */
  private async choose(plan: Plan, chosen: Chosen): Promise<void> {
    for (const [sequence, error] of plan.failed) {
      this.end(sequence);
      sequence.fail(error);
    }
    const tokens = new Map<Draw, number>(plan.draws.map((d) => [d, chosen.probable[d.row] as number]));
    plan.drawn.forEach((draw, k) => void tokens.set(draw, chosen.drawn[k] as number));
    plan.adjusted.forEach((draw, k) => void tokens.set(draw, chosen.adjusted[k] as number));
    const logits = new Map(plan.logits.map((row, k) => [row, chosen.logits[k] as Float32Array]));
    const undecided = plan.draws.filter((draw) => !logits.has(draw.row) && tokens.get(draw) === UNDECIDED);
    if (undecided.length) {
      const rows = undecided.map(({ row }) => row);
      for (const [k, values] of (await this.runner.logits(rows)).entries())
        logits.set(rows[k] as number, values);
    }
    for (const draw of plan.draws)
      this.accept(draw, draw.sequence, tokens.get(draw) as number, logits.get(draw.row));
  }

  /** Adds a sequence's token: the one that the library chose, or one from `logits`. */
  private accept(draw: Draw, sequence: Sequence, drawn: number, logits: Float32Array | undefined): void {
    const { sampler } = sequence;
    try {
      let token = drawn;
      let logprob = null;
      if (logits) {
        const adjusted = logits.slice();
        sampler.adjust(adjusted, draw.mask);
        token = sampler.choose(adjusted, draw.step);
        const top = sampler.parameters.logprobs;
        if (top !== null) logprob = logprobsOf(logits, token, top);
      }
      if (token < 0) throw new RequestError("no token is allowed here, or a logit is not a number");
      sequence.accept(token, logprob, this.limit);
      this.outputTokens++;
      if (sequence.finished) this.end(sequence);
    } catch (thrown) {
      this.end(sequence);
      sequence.fail(asError(thrown));
    }
  }
}
