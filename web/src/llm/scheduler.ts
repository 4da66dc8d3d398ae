/** Which sequences run, and which pages of the KV cache hold their tokens. */

import { PAGE, PageCache, type PrefixNode } from "./pages.js";
import type { Sequence } from "./sequence.js";

const pagesOf = (tokens: number): number => Math.ceil(tokens / PAGE);

/** Sequences start in the order of their arrival. Prompts alternate chunk by chunk, so that a short one never
 * waits for a whole long one. If no page is left, the last sequence gives up its pages and waits. */
export class Scheduler {
  readonly running: Sequence[] = [];
  readonly waiting: Sequence[] = [];
  readonly cache: PageCache;
  /** The most tokens of a sequence. */
  readonly limit: number;
  private readonly slots: number[];

  constructor(
    pages: number,
    slots: number,
    context: number,
    /** Whether sequences may read each other's pages. */
    private readonly share: boolean,
    private readonly copyPage: (source: number, target: number) => Promise<void>,
    private readonly reset: (slot: number) => Promise<void>,
  ) {
    this.cache = new PageCache(pages);
    this.limit = Math.min(context, pages * PAGE);
    this.slots = Array.from({ length: slots }, (_, k) => slots - 1 - k);
  }

  /** Starts waiting sequences while slots and pages last. */
  async admit(): Promise<void> {
    while (this.waiting.length && this.slots.length) {
      const sequence = this.waiting[0] as Sequence;
      const promised = this.running.reduce(
        (sum, s) => sum + pagesOf(s.tokens.length + 1) - s.table.length + 1,
        0,
      );
      const needed = pagesOf(sequence.tokens.length + 1);
      if (this.running.length && this.cache.available - promised < needed) return;
      this.waiting.shift();
      sequence.slot = this.slots.pop() as number;
      sequence.service = Math.min(...this.running.map(({ service }) => service), Number.MAX_SAFE_INTEGER);
      if (!this.running.length) sequence.service = 0;
      this.running.push(sequence);
      this.running.sort((a, b) => a.order - b.order);
      await this.reset(sequence.slot);
    }
  }

  /** The sequence whose prompt continues, and the end of its next tokens, whose pages are taken. */
  async nextPrefill(chunk: number): Promise<{ sequence: Sequence; end: number } | null> {
    for (;;) {
      const prompts = this.running.filter((s) => !s.decoding);
      if (!prompts.length) return null;
      const sequence = prompts.reduce((a, b) => (b.service < a.service ? b : a));
      await this.findPrefix(sequence);
      let end = Math.min(sequence.held + chunk, sequence.prompt.length);
      // With shared pages a sequence can continue only from the border of a page.
      if (end < sequence.prompt.length && end - (end % PAGE) > sequence.held) end -= end % PAGE;
      if (!this.grow(sequence, end)) continue;
      sequence.service += end - sequence.held;
      return { sequence, end };
    }
  }

  /** Takes pages for this many tokens; the last sequences are preempted if needed. False: `sequence` was. */
  grow(sequence: Sequence, tokens: number): boolean {
    while (sequence.table.length < pagesOf(tokens)) {
      const page = this.cache.take();
      if (page !== undefined) {
        sequence.table.push(page);
        continue;
      }
      const last = this.running[this.running.length - 1] as Sequence;
      this.stop(last);
      this.waiting.unshift(last);
      if (last === sequence) return false;
    }
    return true;
  }

  /** Records that the cache holds this many tokens of a prompt. Whole pages are shared at once. */
  recordPrefill(sequence: Sequence, tokens: number): void {
    sequence.held = tokens;
    this.publish(sequence);
  }

  /** Removes a sequence; its pages are kept for later prompts if their content is valid. */
  remove(sequence: Sequence, valid = true): void {
    if (sequence.slot >= 0) this.stop(sequence, valid);
    else {
      const at = this.waiting.indexOf(sequence);
      if (at >= 0) this.waiting.splice(at, 1);
    }
  }

  private stop(sequence: Sequence, valid = true): void {
    this.running.splice(this.running.indexOf(sequence), 1);
    if (valid && this.share) {
      this.publish(sequence);
      const done = sequence.nodes.length;
      const rest = sequence.prompt.slice(done * PAGE, Math.min(sequence.held, sequence.prompt.length));
      if (rest.length && sequence.table.length > done) {
        const [page] = sequence.table.splice(done, 1) as [number];
        this.cache.settle(this.cache.insert(sequence.lastNode(this.cache.root), rest, page));
      }
    }
    for (const page of sequence.table.slice(sequence.nodes.length)) this.cache.giveBack(page);
    this.cache.leave(sequence.nodes);
    this.slots.push(sequence.slot);
    sequence.release();
  }

  /** Shares the whole pages of a sequence's prompt. */
  private publish(sequence: Sequence): void {
    if (!this.share) return;
    const whole = Math.min(sequence.held, sequence.prompt.length);
    for (let k = sequence.nodes.length; (k + 1) * PAGE <= whole; k++) {
      const tokens = sequence.prompt.slice(k * PAGE, (k + 1) * PAGE);
      const page = sequence.table[k] as number;
      const node = this.cache.insert(sequence.lastNode(this.cache.root), tokens, page);
      sequence.table[k] = node.page;
      this.join(sequence, node);
    }
  }

  private join(sequence: Sequence, node: PrefixNode): void {
    this.cache.use(node);
    sequence.nodes.push(node);
  }

  /** Continues a prompt with pages that hold its next tokens. The last token stays, for its logits. */
  private async findPrefix(sequence: Sequence): Promise<void> {
    if (!this.share || sequence.held !== sequence.nodes.length * PAGE) return;
    const { prompt } = sequence;
    const goal = prompt.length - 1;
    while (sequence.held + PAGE <= goal) {
      const tokens = prompt.slice(sequence.held, sequence.held + PAGE);
      const node = this.cache.child(sequence.lastNode(this.cache.root), tokens);
      if (!node) break;
      this.join(sequence, node);
      sequence.table.push(node.page);
      sequence.held += PAGE;
      sequence.cached += PAGE;
    }
    const rest = prompt.slice(sequence.held, Math.min(sequence.held + PAGE, goal));
    const part = this.cache.longestPart(sequence.lastNode(this.cache.root), rest);
    if (!part || part[1] < PAGE / 4) return; // fewer tokens are computed along with the rest at no cost
    const [node, count] = part;
    this.cache.use(node); // else `take` might evict this very page
    const page = this.cache.take();
    if (page !== undefined) {
      await this.copyPage(node.page, page);
      sequence.table.push(page);
      sequence.held += count;
      sequence.cached += count;
    }
    this.cache.leave([node]);
  }
}
