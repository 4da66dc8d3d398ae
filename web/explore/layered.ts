/** A layered layout for graphs of hundreds to many thousands of nodes, in time linear in nodes and edges
 * for each sweep: longest paths give the ranks, and each node moves towards its neighbours (after Sugiyama,
 * Tagawa and Toda, 1981), with the least squares of distances that keep the order and the gaps. */

export interface Node {
  x: number;
  y: number;
  readonly width: number;
  readonly height: number;
}

const [GAP, BETWEEN, SWEEPS] = [18, 34, 6];

/** Sets the places of `nodes`, which are in an order such that most edges `[from, to]` lead forward. */
export function layered(nodes: readonly Node[], edges: readonly (readonly [number, number])[]): void {
  const above: number[][] = nodes.map(() => []);
  const below: number[][] = nodes.map(() => []);
  for (const [from, to] of edges) {
    if (from >= to) continue; // closes a cycle through a collapsed module
    above[to]!.push(from);
    below[from]!.push(to);
  }
  const rank = ranks(above, below);
  const rows: number[][] = [];
  rank.forEach((r, node) => {
    rows[r] ??= [];
    rows[r].push(node);
  });
  for (let r = 0; r < rows.length; r++) rows[r] ??= [];
  for (const row of rows)
    place(
      nodes,
      row,
      row.map((_, k) => k),
    );
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    for (const row of down ? rows : rows.toReversed()) {
      const wanted = row.map((node) => {
        const near = down ? above[node]! : below[node]!;
        const known = near.length ? near : down ? below[node]! : above[node]!;
        return known.length ? mean(nodes, rank, node, known) : nodes[node]!.x;
      });
      place(nodes, row, wanted);
    }
  }
  let y = 0;
  for (const row of rows) {
    const height = Math.max(0, ...row.map((node) => nodes[node]!.height));
    for (const node of row) nodes[node]!.y = y + height / 2;
    y += height + BETWEEN;
  }
}

/** The longest path from a node without operands; such a node stands just above its first reader. */
function ranks(above: readonly number[][], below: readonly number[][]): number[] {
  const rank: number[] = [];
  above.forEach((near, node) => {
    rank[node] = near.reduce((most, other) => Math.max(most, rank[other]! + 1), 0);
  });
  above.forEach((near, node) => {
    if (near.length || !below[node]!.length) return;
    rank[node] = Math.max(
      0,
      below[node]!.reduce((least, other) => Math.min(least, rank[other]!), Infinity) - 1,
    );
  });
  return rank;
}

/** The mean place of neighbours, near ranks counting more than far ones. */
function mean(
  nodes: readonly Node[],
  rank: readonly number[],
  node: number,
  near: readonly number[],
): number {
  let [sum, weights] = [0, 0];
  for (const other of near) {
    const weight = 1 / Math.abs(rank[other]! - rank[node]!);
    sum += weight * nodes[other]!.x;
    weights += weight;
  }
  return sum / weights;
}

/** Puts the nodes of a row as near to their wanted places as gaps allow, in the order of these: the row
 * becomes sorted. Neighbours that would overlap form a block at their mean (pool adjacent violators). */
function place(nodes: readonly Node[], row: number[], wanted: readonly number[]): void {
  const places = new Map(row.map((node, k) => [node, wanted[k]!]));
  row.sort((a, b) => places.get(a)! - places.get(b)!);
  const blocks: { sum: number; count: number }[] = [];
  const offsets: number[] = [];
  let offset = 0;
  row.forEach((node, k) => {
    const { width } = nodes[node]!;
    if (k) offset += GAP + (nodes[row[k - 1]!]!.width + width) / 2;
    offsets.push(offset);
    blocks.push({ sum: places.get(node)! - offset, count: 1 });
    for (;;) {
      const [before, last] = [blocks.at(-2), blocks.at(-1)!];
      if (!before || before.sum / before.count <= last.sum / last.count) break;
      blocks.splice(-2, 2, { sum: before.sum + last.sum, count: before.count + last.count });
    }
  });
  let k = 0;
  for (const { sum, count } of blocks) {
    for (let n = 0; n < count; n++, k++) nodes[row[k]!]!.x = sum / count + offsets[k]!;
  }
}
