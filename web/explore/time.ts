/** A timed call: its launches in time, and its layers by their share (an icicle, as in a flame graph). */

import * as Plot from "@observablehq/plot";
import { hierarchy, partition } from "d3-hierarchy";
import { element } from "../page/dom.js";
import type { Context } from "./context.js";
import { type Launch, type Profile, percent, timeText } from "./data.js";
import { button } from "./details.js";
import { pictureOf, plotWidth } from "./figure.js";
import { table } from "./table.js";

interface Part {
  name: string;
  path: string;
  seconds: number;
  children: Map<string, Part>;
}

export function timeView(context: Context, into: HTMLElement): void {
  const { profile } = context.model;
  if (!profile) {
    into.append(
      element("p", "empty", "No call was timed. 'tilewright explore MODEL' without --no-times measures one."),
    );
    return;
  }
  const width = plotWidth(1100);
  const took = `A call took ${timeText(profile.seconds)} in ${profile.launches.length} launches.`;
  into.append(
    element("p", "summary", took + threadsText(profile)),
    element("p", "summary", partsText(profile)),
    element("h2", "", "Launches"),
    lanes(profile.launches, width),
    element("h2", "", "Layers"),
    icicle(profile.launches, profile.seconds, width),
    byLine(context),
  );
}

/** The share of the threads' time in which they computed. */
function threadsText({ launches, seconds }: Profile): string {
  const parts = launches.flatMap(({ threads }) => threads);
  const count = new Set(parts.map(([thread]) => thread)).size;
  if (count < 2) return "";
  const busy = parts.reduce((sum, [, begin, end]) => sum + end - begin, 0);
  return ` ${count} threads computed for ${percent(busy / (count * seconds))} of it.`;
}

/** The parts of the call, in kernels and outside of them. */
function partsText({ kernels, outside, seconds }: Profile): string {
  const parts = Object.entries({ kernels, ...outside });
  return `${parts.map(([name, part]) => `${name} ${percent(part / seconds)}`).join(", ")}.`;
}

/** The launches on a time line: a lane for each thread, or where no threads were measured, such as on a
 * device, for each outermost module. */
function lanes(launches: readonly Launch[], width: number): HTMLElement {
  const threaded = launches.some(({ threads }) => threads.length);
  const parts = threaded
    ? launches.flatMap((launch) =>
        launch.threads.map(([thread, begin, end]) => ({ launch, lane: `thread ${thread}`, begin, end })),
      )
    : launches.map((launch) => ({
        launch,
        lane: launch.layer.split(".")[0] || "outside of modules",
        begin: launch.begin,
        end: launch.end,
      }));
  // A part of less than a third of a pixel is drawn only where a third of a pixel before it is free.
  const last = Math.max(...launches.map(({ end }) => end));
  const drawn = new Map<string, number>();
  const shown = parts.filter(({ lane, end }) => {
    if (end - (drawn.get(lane) ?? 0) < last / (3 * width)) return false;
    drawn.set(lane, end);
    return true;
  });
  const figure = Plot.plot({
    width,
    height: Math.min(420, 60 + 26 * new Set(shown.map(({ lane }) => lane)).size),
    marginLeft: 120,
    x: { label: "milliseconds" },
    y: { label: null },
    marks: [
      Plot.barX(shown, {
        x1: ({ begin }) => begin * 1e3,
        x2: ({ end }) => end * 1e3,
        y: "lane",
        fill: ({ launch }) => launch.kernel,
        title: ({ launch, begin, end }) =>
          `${launch.kernel}\n${launch.place}\n${launch.source}\n${timeText(end - begin)}`,
        tip: true,
      }),
    ],
  });
  return pictureOf(figure, `Launches in time, a lane for each ${threaded ? "thread" : "outermost module"}.`);
}

/** The tree of modules with the seconds of the launches inside. */
export function layerTree(launches: readonly Launch[]): Part {
  const root: Part = { name: "call", path: "", seconds: 0, children: new Map() };
  for (const { layer, kernel, begin, end } of launches) {
    let node = root;
    node.seconds += end - begin;
    for (const name of [...layer.split(".").filter(Boolean), kernel]) {
      const path = node.path ? `${node.path}.${name}` : name;
      const next: Part = node.children.get(name) ?? { name, path, seconds: 0, children: new Map() };
      next.seconds += end - begin;
      node.children.set(name, next);
      node = next;
    }
  }
  return root;
}

/** The same tree with each part that has a single child in one with it: `encoder.layer`. */
function withoutChains(part: Part): Part {
  let inner = part;
  let name = part.path ? part.name : "";
  while (inner.children.size === 1) {
    const [child] = inner.children.values();
    if (!child!.children.size) break;
    inner = child!;
    name = name ? `${name}.${inner.name}` : inner.name;
  }
  const children = [...inner.children].map(([key, child]): [string, Part] => [key, withoutChains(child)]);
  return { ...inner, name: part.path ? name : part.name, children: new Map(children) };
}

function icicle(launches: readonly Launch[], seconds: number, width: number): HTMLElement {
  const root = withoutChains(layerTree(launches));
  const tree = hierarchy<Part>(root, (part) => [...part.children.values()]).sum((part) =>
    part.children.size ? 0 : part.seconds,
  );
  const branching = root.children.size > 1 ? -2 : -3; // the level whose parts have colors of their own
  const nodes = partition<Part>().size([1, 1])(tree).descendants();
  const shown = nodes.filter((node) => node.x1 - node.x0 > 0.0015);
  const figure = Plot.plot({
    width,
    height: 60 + 26 * (tree.height + 1),
    axis: null,
    margin: 4,
    y: { reverse: true },
    color: { scheme: "tableau10" },
    marks: [
      Plot.rect(shown, {
        x1: "x0",
        x2: "x1",
        y1: "depth",
        y2: (node: { depth: number }) => node.depth + 1,
        fill: (node: { data: Part; ancestors: () => { data: Part }[] }) =>
          node.ancestors().at(branching)?.data.path ?? "call",
        fillOpacity: 0.45,
        stroke: "var(--back)",
        title: (node: { data: Part }) =>
          `${node.data.path || "call"}\n${timeText(node.data.seconds)} ` +
          `(${percent(node.data.seconds / seconds)})`,
        tip: true,
      }),
      Plot.text(
        shown.filter((node) => (node.x1 - node.x0) * width > 7.5 * node.data.name.length + 8),
        {
          x: (node) => (node.x0 + node.x1) / 2,
          y: (node: { depth: number }) => node.depth + 0.5,
          text: (node: { data: Part }) => node.data.name,
          fill: "currentColor",
        },
      ),
    ],
  });
  return pictureOf(figure, "Share of each layer in the time of a call. The table below lists lines.");
}

function byLine(context: Context): HTMLElement {
  const profile = context.model.profile!;
  const lines = new Map<string, { source: string; seconds: number; launches: number; kernel: string }>();
  for (const { source, begin, end, kernel } of profile.launches) {
    const known = lines.get(source) ?? { source, seconds: 0, launches: 0, kernel };
    known.seconds += end - begin;
    known.launches++;
    lines.set(source, known);
  }
  const text = (place: string) => {
    const end = place.lastIndexOf(":");
    return (
      context.model.sources[place.slice(0, Math.max(end, 0))]
        ?.split("\n")
        [Number(place.slice(end + 1)) - 1]?.trim() ?? ""
    );
  };
  return table(
    "Lines of the source",
    [
      { title: "line", cell: (x) => x.source || "unknown", key: (x) => x.source },
      { title: "code", cell: (x) => element("code", "", text(x.source)), key: (x) => text(x.source) },
      { title: "launches", cell: (x) => String(x.launches), key: (x) => x.launches, number: true },
      { title: "time", cell: (x) => timeText(x.seconds), key: (x) => x.seconds, number: true },
      {
        title: "share",
        cell: (x) => percent(x.seconds / profile.seconds),
        key: (x) => x.seconds,
        number: true,
      },
      {
        title: "first kernel",
        cell: (x) => button(x.kernel, () => context.openKernel(x.kernel), "link"),
        key: (x) => x.kernel,
      },
    ],
    [...lines.values()].sort((a, b) => b.seconds - a.seconds),
  );
}
