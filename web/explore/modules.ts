/** The tree of the model's modules, and the graph of those of its nodes that are shown. */

import { type Operator, typeText } from "./data.js";

export interface ModuleNode {
  path: string;
  label: string;
  modules: Map<string, ModuleNode>;
  operators: number[];
  /** All operators inside, in order. */
  all: number[];
}

/** Operators outside of all modules that are shown beside these. More, such as the updates of the parameters
 * in a training step, are a module of their own. */
const MOST_OUTSIDE = 24;

/** The modules' path of an operator: "blocks.0.up/linear" lies in blocks, 0, up. */
function pathOf(place: string): string[] {
  const end = place.lastIndexOf("/");
  return end < 0 ? [] : place.slice(0, end).split(/[./]/).filter(Boolean);
}

export function moduleTree(operators: readonly Operator[]): ModuleNode {
  const root: ModuleNode = { path: "", label: "model", modules: new Map(), operators: [], all: [] };
  operators.forEach(({ place, name }, number) => {
    if (name === "constant") return;
    let node = root;
    node.all.push(number);
    for (const part of pathOf(place)) {
      const path = node.path ? `${node.path}.${part}` : part;
      let next = node.modules.get(part);
      if (!next) {
        next = { path, label: path, modules: new Map(), operators: [], all: [] };
        node.modules.set(part, next);
      }
      node = next;
      node.all.push(number);
    }
    node.operators.push(number);
  });
  if (root.operators.length > MOST_OUTSIDE && root.modules.size) {
    const outside = root.operators;
    const label = "outside of modules";
    root.modules.set("", { path: label, label, modules: new Map(), operators: outside, all: outside });
    root.operators = [];
  }
  return root;
}

/** A node of the shown graph: a collapsed module or an operator. */
export interface Shown {
  id: string;
  label: string;
  note: string;
  operators: number[];
  module: ModuleNode | null;
}

/** The modules that are open at first: the outermost, as long as few nodes are shown. */
export function openAtFirst(root: ModuleNode, most = 48): Set<string> {
  const open = new Set<string>([""]);
  let count = root.modules.size + root.operators.length;
  let level = [...root.modules.values()];
  while (level.length) {
    const next: ModuleNode[] = [];
    for (const node of level) {
      const more = node.modules.size + node.operators.length - 1;
      if (count + more > most) continue;
      count += more;
      open.add(node.path);
      next.push(...node.modules.values());
    }
    level = next;
  }
  return open;
}

export function shownNodes(
  root: ModuleNode,
  open: ReadonlySet<string>,
  operators: readonly Operator[],
): Shown[] {
  const shown: Shown[] = [];
  const visit = (node: ModuleNode) => {
    for (const number of node.operators) {
      const { name, types, place } = operators[number]!;
      shown.push({
        id: `o${number}`,
        label: name,
        note: [...(place.slice(place.lastIndexOf("/") + 1) === name ? [] : [place]), typeText(types[0] ?? "")]
          .join(" ")
          .trim(),
        operators: [number],
        module: null,
      });
    }
    for (const child of node.modules.values()) {
      if (open.has(child.path)) visit(child);
      else {
        shown.push({
          id: `m${child.path}`,
          label: child.label,
          note: `${child.all.length} operators`,
          operators: child.all,
          module: child,
        });
      }
    }
  };
  visit(root);
  return shown.sort((a, b) => (a.operators[0] ?? 0) - (b.operators[0] ?? 0));
}

/** Edges between shown nodes: pairs of their positions, each once. Constants are left out. */
export function shownEdges(shown: readonly Shown[], operators: readonly Operator[]): [number, number][] {
  const home = new Map<number, number>();
  shown.forEach((node, position) => {
    for (const number of node.operators) home.set(number, position);
  });
  const edges = new Map<string, [number, number]>();
  for (const [number, to] of home) {
    for (const operand of operators[number]!.operands) {
      const from = home.get(operand);
      if (from !== undefined && from !== to) edges.set(`${from} ${to}`, [from, to]);
    }
  }
  return [...edges.values()];
}
