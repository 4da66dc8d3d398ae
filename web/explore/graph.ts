/** The graph: modules that open and close, laid out by dagre, drawn on a canvas that zooms. */

import { Graph, layout } from "@dagrejs/dagre";
import { select } from "d3-selection";
import { type ZoomBehavior, type ZoomTransform, zoom, zoomIdentity } from "d3-zoom";
import { element } from "../page/dom.js";
import { apartSection } from "./apart.js";
import type { Context } from "./context.js";
import { percent, timeText, typeText } from "./data.js";
import { operatorDetails } from "./details.js";
import { layered } from "./layered.js";
import { type ModuleNode, moduleTree, openAtFirst, type Shown, shownEdges, shownNodes } from "./modules.js";

interface Box extends Shown {
  x: number;
  y: number;
  width: number;
  height: number;
  share: number;
}

interface Line {
  points: { x: number; y: number }[];
  from: number;
  to: number;
}

const HEIGHT = 46;
const RESULTS = 60;
const MOST_ROUTED = 80;
/** The least scale at which a graph is shown at first: smaller texts cannot be read. */
const READABLE = 0.55;

export function graphView(context: Context, into: HTMLElement): void {
  const { operators } = context.function;
  if (!operators.length) {
    into.append(element("p", "empty", "This artifact keeps no graph: it was made by an earlier version."));
    return;
  }
  new GraphView(context, into);
}

class GraphView {
  private readonly root: ModuleNode;
  private readonly open: Set<string>;
  private readonly seconds: Map<number, number>;
  private readonly canvas = element("canvas");
  private readonly panel = element("aside", "panel");
  private readonly results = element("ul", "results");
  private readonly zooming: ZoomBehavior<HTMLCanvasElement, unknown>;
  private transform: ZoomTransform = zoomIdentity;
  private boxes: Box[] = [];
  private lines: Line[] = [];
  private chosen: string | null = null;
  private line: Line | null = null;
  private pending = 0;

  constructor(
    private readonly context: Context,
    into: HTMLElement,
  ) {
    this.root = moduleTree(context.function.operators);
    this.open = context.openModules ?? openAtFirst(this.root);
    context.openModules = this.open;
    this.seconds = context.secondsOfOperators();
    const search = element("input");
    search.type = "search";
    search.placeholder = "Search operators, layers, lines";
    search.setAttribute("aria-label", "Search operators, layers and lines of the source");
    search.oninput = () => this.search(search.value);
    search.onkeydown = (event) => {
      if (event.key === "Enter") this.results.querySelector("button")?.click();
    };
    const tools = element(
      "div",
      "tools",
      search,
      this.button("Fit", () => this.fit()),
    );
    tools.append(
      this.button("Open all", () => this.openAll(this.root)),
      this.button("Close all", () => {
        this.open.clear();
        this.open.add("");
        this.arrange();
        this.fit();
      }),
    );
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute(
      "aria-label",
      "Graph of the model. Arrow keys move between operators, Enter opens a module, plus and minus zoom.",
    );
    this.panel.setAttribute("aria-label", "Chosen operator");
    const stage = element("div", "stage", this.canvas);
    into.append(element("div", "graph", element("div", "left", tools, this.results, stage), this.panel));
    this.zooming = zoom<HTMLCanvasElement, unknown>()
      .scaleExtent([0.02, 4])
      .on("zoom", ({ transform }) => {
        this.transform = transform;
        this.redraw();
      });
    select(this.canvas).call(this.zooming).on("dblclick.zoom", null);
    this.canvas.onclick = (event) => this.pick(event.offsetX, event.offsetY, false);
    this.canvas.ondblclick = (event) => this.pick(event.offsetX, event.offsetY, true);
    this.canvas.onkeydown = (event) => this.key(event);
    new ResizeObserver(() => this.redraw()).observe(stage);
    this.arrange();
    const wanted = context.operator;
    requestAnimationFrame(() => {
      if (wanted === null) this.fit();
      else this.reveal(wanted);
    });
    if (wanted === null) this.panel.append(element("p", "empty", "Choose an operator, or open a module."));
  }

  private button(label: string, act: () => void): HTMLButtonElement {
    const made = element("button", "", label);
    made.type = "button";
    made.onclick = act;
    return made;
  }

  /** Lays out the nodes that are shown. */
  private arrange(): void {
    const { operators } = this.context.function;
    const shown = shownNodes(this.root, this.open, operators);
    const edges = shownEdges(shown, operators);
    const total = this.context.model.profile?.seconds ?? 0;
    this.boxes = shown.map((node) => ({
      ...node,
      x: 0,
      y: 0,
      width: Math.min(260, 24 + 7.2 * Math.max(node.label.length, Math.min(node.note.length, 34))),
      height: HEIGHT,
      share: total ? node.operators.reduce((sum, k) => sum + (this.seconds.get(k) ?? 0), 0) / total : 0,
    }));
    // The routes of dagre's edges around boxes take time that grows with the square of their lengths.
    if (this.boxes.length > MOST_ROUTED) this.layer(edges);
    else this.route(edges);
    this.redraw();
  }

  private route(edges: readonly [number, number][]): void {
    const graph = new Graph({ directed: true });
    graph.setGraph({
      rankdir: "TB",
      nodesep: 18,
      ranksep: 34,
      ranker: "tight-tree",
    });
    graph.setDefaultEdgeLabel(() => ({}));
    this.boxes.forEach((box, k) => {
      graph.setNode(String(k), { width: box.width, height: box.height });
    });
    for (const [from, to] of edges) graph.setEdge(String(from), String(to));
    layout(graph);
    this.boxes.forEach((box, k) => {
      const { x, y } = graph.node(String(k)) as { x: number; y: number };
      box.x = x;
      box.y = y;
    });
    this.lines = graph.edges().map(({ v, w }: { v: string; w: string }) => ({
      points: (graph.edge(v, w) as { points: { x: number; y: number }[] }).points,
      from: Number(v),
      to: Number(w),
    }));
  }

  private layer(edges: readonly [number, number][]): void {
    layered(this.boxes, edges);
    this.lines = edges.map(([from, to]) => {
      const [a, b] = [this.boxes[from]!, this.boxes[to]!];
      const side = a.y <= b.y ? 1 : -1;
      const ends = [
        { x: a.x, y: a.y + (side * HEIGHT) / 2 },
        { x: b.x, y: b.y - (side * HEIGHT) / 2 },
      ];
      return { points: ends, from, to };
    });
  }

  private redraw(): void {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  private draw(): void {
    const { canvas, transform } = this;
    const { clientWidth: width, clientHeight: height } = canvas.parentElement!;
    const ratio = devicePixelRatio;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const drawing = canvas.getContext("2d")!;
    const color = (name: string) => getComputedStyle(canvas).getPropertyValue(name).trim();
    const [back, soft, line, text, muted, accent, hot] = [
      "--back",
      "--soft",
      "--line",
      "--text",
      "--muted",
      "--accent",
      "--hot",
    ].map(color);
    drawing.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawing.fillStyle = back!;
    drawing.fillRect(0, 0, width, height);
    drawing.translate(transform.x, transform.y);
    drawing.scale(transform.k, transform.k);
    const [left, top] = transform.invert([0, 0]);
    const [right, bottom] = transform.invert([width, height]);
    const inside = (x: number, y: number, w: number, h: number) =>
      x + w >= left && x - w <= right && y + h >= top && y - h <= bottom;
    const chosen = this.boxes.findIndex((box) => box.id === this.chosen);
    drawing.lineWidth = 1.2 / Math.min(1, transform.k);
    for (const edge of this.lines) {
      const { points, from, to } = edge;
      const [first, last] = [points[0]!, points.at(-1)!];
      if (
        !inside(
          (first.x + last.x) / 2,
          (first.y + last.y) / 2,
          Math.abs(first.x - last.x),
          Math.abs(first.y - last.y),
        )
      ) {
        continue;
      }
      drawing.strokeStyle = from === chosen || to === chosen || edge === this.line ? accent! : line!;
      drawing.beginPath();
      drawing.moveTo(first.x, first.y);
      for (const { x, y } of points.slice(1)) drawing.lineTo(x, y);
      drawing.stroke();
    }
    const readable = transform.k > 0.3;
    for (const box of this.boxes) {
      if (!inside(box.x, box.y, box.width, box.height)) continue;
      const [x, y] = [box.x - box.width / 2, box.y - box.height / 2];
      drawing.fillStyle = box.module ? soft! : back!;
      drawing.strokeStyle = box.id === this.chosen ? accent! : line!;
      drawing.lineWidth = box.id === this.chosen ? 3 : 1.2;
      drawing.beginPath();
      drawing.roundRect(x, y, box.width, box.height, 7);
      drawing.fill();
      if (box.share > 0) {
        drawing.save();
        drawing.clip();
        drawing.fillStyle = hot!;
        drawing.fillRect(x, y + box.height - 5, box.width * Math.min(1, box.share), 5);
        drawing.restore();
      }
      drawing.stroke();
      if (!readable) continue;
      drawing.font = `${box.module ? "600 " : ""}13px system-ui, sans-serif`;
      drawing.fillStyle = text!;
      drawing.fillText(shortened(box.label, (box.width - 20) / 7.6), x + 10, y + 19, box.width - 20);
      drawing.font = "11px system-ui, sans-serif";
      drawing.fillStyle = muted!;
      drawing.fillText(shortened(box.note, (box.width - 20) / 6.2), x + 10, y + 35, box.width - 20);
    }
  }

  private fit(): void {
    if (!this.boxes.length) return;
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement!;
    const [x1, x2] = [
      Math.min(...this.boxes.map((b) => b.x - b.width / 2)),
      Math.max(...this.boxes.map((b) => b.x + b.width / 2)),
    ];
    const [y1, y2] = [
      Math.min(...this.boxes.map((b) => b.y - HEIGHT)),
      Math.max(...this.boxes.map((b) => b.y + HEIGHT)),
    ];
    const scale = Math.max(0.02, Math.min(1.2, width / (x2 - x1 + 40), height / (y2 - y1 + 40)));
    // A long chain is shown from its beginning, at a size that can be read.
    const used = Math.max(scale, READABLE, Math.min(0.7, width / (x2 - x1 + 40)));
    const y = used > scale ? -y1 * used + 12 : (height - (y1 + y2) * used) / 2;
    // Where not all fits, the first nodes are in the middle.
    const first = this.boxes.slice(0, 12);
    const middle =
      (x2 - x1 + 40) * used > width ? first.reduce((sum, b) => sum + b.x, 0) / first.length : (x1 + x2) / 2;
    this.move(zoomIdentity.translate(width / 2 - middle * used, y).scale(used));
  }

  private move(transform: ZoomTransform): void {
    select(this.canvas).call(this.zooming.transform, transform);
  }

  private center(box: Box): void {
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement!;
    const scale = Math.max(this.transform.k, 0.7);
    this.move(zoomIdentity.translate(width / 2 - box.x * scale, height / 2 - box.y * scale).scale(scale));
  }

  private pick(x: number, y: number, opens: boolean): void {
    const [at, to] = this.transform.invert([x, y]);
    const box = this.boxes.find(
      (b) => Math.abs(b.x - at) <= b.width / 2 && Math.abs(b.y - to) <= b.height / 2,
    );
    if (box) this.choose(box, opens);
    else if (!opens) this.chooseEdge(at, to);
  }

  /** Shows the edge within a few pixels of a point: what it carries, and why its ends are no one kernel. */
  private chooseEdge(x: number, y: number): void {
    const near = 7 / this.transform.k;
    let best = near;
    let found: Line | undefined;
    for (const line of this.lines) {
      for (let k = 1; k < line.points.length; k++) {
        const away = distance(x, y, line.points[k - 1]!, line.points[k]!);
        if (away < best) [best, found] = [away, line];
      }
    }
    if (!found) return;
    const [from, to] = [this.boxes[found.from]!, this.boxes[found.to]!];
    const { operators } = this.context.function;
    const [before, behind] = [new Set(from.operators), new Set(to.operators)];
    const carried = new Set(
      to.operators.flatMap((k) => operators[k]!.operands.filter((operand) => before.has(operand))),
    );
    const types = [...carried].map((k) => element("li", "", operators[k]!.types.map(typeText).join(", ")));
    const steps = (numbers: ReadonlySet<number>) => new Set([...numbers].map((k) => this.context.steps[k]));
    const [first, second] = [steps(before), steps(behind)];
    const apart = apartSection(this.context, (pair) => first.has(pair.from) && second.has(pair.to));
    const same = [...first].some((step) => step !== undefined && second.has(step));
    this.chosen = null;
    this.line = found;
    this.panel.replaceChildren(
      element("h2", "", `${from.label} → ${to.label}`),
      element("ul", "plain", ...types),
      apart ?? element("p", "", same ? "One kernel computes both." : "No reason is known for this edge."),
    );
    this.context.announce(`Edge from ${from.label} to ${to.label}`);
    this.redraw();
  }

  private choose(box: Box, opens = false): void {
    if (opens && box.module) {
      this.toggle(box.module);
      return;
    }
    this.chosen = box.id;
    this.line = null;
    this.panel.replaceChildren(
      ...(box.module ? this.moduleDetails(box.module, box.share) : this.details(box.operators[0]!)),
    );
    this.context.announce(box.module ? `Module ${box.label}, ${box.note}` : `${box.label}, ${box.note}`);
    this.redraw();
  }

  private details(operator: number): Node[] {
    this.context.choose(operator);
    const path = this.context.function.operators[operator]!.place;
    const closing = [...this.open].filter(
      (module) => module && (path.startsWith(`${module}.`) || path.startsWith(`${module}/`)),
    );
    const buttons = closing.map((module) =>
      this.button(`Close ${module}`, () => {
        this.open.delete(module);
        this.arrange();
        const box = this.boxes.find((b) => b.id === `m${module}`);
        if (box) {
          this.choose(box);
          this.center(box);
        }
      }),
    );
    return [
      ...operatorDetails(this.context, operator, (k) => this.reveal(k)),
      element("p", "buttons", ...buttons),
    ];
  }

  private moduleDetails(module: ModuleNode, share: number): Node[] {
    const seconds = module.all.reduce((sum, k) => sum + (this.seconds.get(k) ?? 0), 0);
    const list = element("ul", "plain");
    for (const k of module.all.slice(0, 200)) {
      const { name, place } = this.context.function.operators[k]!;
      list.append(
        element(
          "li",
          "",
          this.button(`${name} · ${place}`, () => this.reveal(k)),
        ),
      );
    }
    return [
      element("h2", "", module.label),
      element(
        "p",
        "",
        `${module.all.length} operators${seconds ? `, ${timeText(seconds)} (${percent(share)})` : ""}`,
      ),
      element(
        "p",
        "buttons",
        this.button("Open", () => this.toggle(module)),
      ),
      list,
    ];
  }

  private toggle(module: ModuleNode): void {
    this.open.add(module.path);
    this.arrange();
    const box = this.boxes.find((b) => b.operators[0] === module.all[0]);
    if (box) this.center(box);
  }

  private openAll(node: ModuleNode): void {
    const visit = (inner: ModuleNode) => {
      this.open.add(inner.path);
      for (const child of inner.modules.values()) visit(child);
    };
    visit(node);
    this.arrange();
    this.fit();
  }

  /** Opens the modules around an operator and shows it in the middle. */
  private reveal(operator: number): void {
    const visit = (node: ModuleNode) => {
      if (!node.all.includes(operator)) return;
      this.open.add(node.path);
      for (const child of node.modules.values()) visit(child);
    };
    const before = this.open.size;
    visit(this.root);
    if (this.open.size > before) this.arrange();
    const box = this.boxes.find((b) => b.id === `o${operator}`);
    if (box) {
      this.choose(box);
      this.center(box);
    } else this.panel.replaceChildren(...this.details(operator));
  }

  private search(text: string): void {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.results.replaceChildren();
    if (!words.length) return;
    let count = 0;
    this.context.function.operators.forEach(({ name, place, source, types }, k) => {
      const all = `${name} ${place} ${source} ${types.join(" ")}`.toLowerCase();
      if (name === "constant" || !words.every((word) => all.includes(word))) return;
      if (++count > RESULTS) return;
      const found = this.button(`${name} · ${place}`, () => {
        this.results.replaceChildren();
        this.reveal(k);
        this.canvas.focus();
      });
      this.results.append(element("li", "", found));
    });
    this.context.announce(`${count} operators found`);
    if (!count) this.results.append(element("li", "empty", "No operator, layer or line has these words."));
    if (count > RESULTS) this.results.append(element("li", "empty", `and ${count - RESULTS} more`));
  }

  private key(event: KeyboardEvent): void {
    const at = this.boxes.findIndex((box) => box.id === this.chosen);
    const next = (from: number, step: number) =>
      this.boxes[Math.min(this.boxes.length - 1, Math.max(0, from + step))];
    let box: Box | undefined;
    if (event.key === "ArrowDown" || event.key === "ArrowRight") box = next(at, 1);
    else if (event.key === "ArrowUp" || event.key === "ArrowLeft") box = next(at < 0 ? 1 : at, -1);
    else if (event.key === "Enter" && at >= 0) this.choose(this.boxes[at]!, true);
    else if (event.key === "+" || event.key === "=") select(this.canvas).call(this.zooming.scaleBy, 1.3);
    else if (event.key === "-") select(this.canvas).call(this.zooming.scaleBy, 1 / 1.3);
    else return;
    event.preventDefault();
    if (box) {
      this.choose(box);
      this.center(box);
    }
  }
}

/** The end of a text, which tells most, in at most so many characters. */
const shortened = (text: string, most: number): string =>
  text.length <= most ? text : `…${text.slice(1 - Math.floor(most))}`;

/** The distance of a point from a segment. */
function distance(x: number, y: number, a: { x: number; y: number }, b: { x: number; y: number }): number {
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const along = ((x - a.x) * dx + (y - a.y) * dy) / (dx * dx + dy * dy || 1);
  const at = Math.min(1, Math.max(0, along));
  return Math.hypot(x - a.x - at * dx, y - a.y - at * dy);
}
