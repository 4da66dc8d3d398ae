/** Pages of the KV cache, and pages with the beginnings of earlier prompts (SGLang, Zheng et al. 2024). */

/** Tokens of a page. */
export const PAGE = 64;

/** A page and its tokens, which follow those of its ancestors' pages. A node with fewer tokens is a leaf. */
export class PrefixNode {
  /** The sequences that read the page; each of them also reads all ancestors. */
  users = 0;
  readonly children: PrefixNode[] = [];

  constructor(
    readonly parent: PrefixNode | null,
    readonly tokens: readonly number[],
    readonly page: number,
  ) {}
}

function common(a: readonly number[], b: readonly number[]): number {
  const most = Math.min(a.length, b.length);
  let n = 0;
  while (n < most && a[n] === b[n]) n++;
  return n;
}

/** Sequences with equal beginnings share whole pages. The least recently used idle page is evicted. */
export class PageCache {
  readonly root = new PrefixNode(null, [], -1);
  private readonly free: number[];
  /** Nodes without users, in the order of their last use; children stand before their parents. */
  private readonly idle = new Set<PrefixNode>();

  constructor(readonly count: number) {
    this.free = Array.from({ length: count }, (_, k) => count - 1 - k);
  }

  /** The pages that `take` can still return. */
  get available(): number {
    return this.free.length + this.idle.size;
  }

  /** The pages that are kept without a user. */
  get kept(): number {
    return this.idle.size;
  }

  /** A page for writing; undefined if all are in use. */
  take(): number | undefined {
    if (!this.free.length) {
      const [oldest] = this.idle;
      if (oldest) this.remove(oldest);
    }
    return this.free.pop();
  }

  giveBack(page: number): void {
    this.free.push(page);
  }

  /** The child of `node` that holds exactly these tokens, which fill a page. */
  child(node: PrefixNode, tokens: readonly number[]): PrefixNode | undefined {
    return node.children.find(
      (child) => child.tokens.length === tokens.length && common(child.tokens, tokens) === tokens.length,
    );
  }

  /** The child of `node` that shares the longest beginning with these tokens, and its length. */
  longestPart(node: PrefixNode, tokens: readonly number[]): [PrefixNode, number] | undefined {
    let best: [PrefixNode, number] | undefined;
    for (const child of node.children) {
      const length = common(child.tokens, tokens);
      if (length > (best?.[1] ?? 0)) best = [child, length];
    }
    return best;
  }

  /** Counts one more user of a node. The same user already uses its parent. */
  use(node: PrefixNode): void {
    node.users++;
    this.idle.delete(node);
  }

  /** Undoes `use` for a path of nodes, the root's child first. */
  leave(nodes: readonly PrefixNode[]): void {
    for (const node of [...nodes].reverse()) if (--node.users === 0) this.idle.add(node);
  }

  /** Puts a page that holds these tokens below `parent`, and takes ownership. Where the tokens are there
   * already, the new page is freed. The caller uses or settles the node at once. */
  insert(parent: PrefixNode, tokens: readonly number[], page: number): PrefixNode {
    const known = parent.children.find((child) => common(child.tokens, tokens) === tokens.length);
    if (known) {
      this.giveBack(page);
      return known;
    }
    const shorter = parent.children.find((child) => common(child.tokens, tokens) === child.tokens.length);
    if (shorter) this.remove(shorter); // a part of a page is copied, never used
    const node = new PrefixNode(parent, [...tokens], page);
    parent.children.push(node);
    return node;
  }

  /** Marks a node without users as the one that was used last. */
  settle(node: PrefixNode): void {
    if (node.users) return;
    this.idle.delete(node);
    this.idle.add(node);
  }

  private remove(node: PrefixNode): void {
    this.idle.delete(node);
    const siblings = (node.parent as PrefixNode).children;
    siblings.splice(siblings.indexOf(node), 1);
    this.free.push(node.page);
  }
}
