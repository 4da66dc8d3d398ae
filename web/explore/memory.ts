/** The arena over the steps of a call: which buffer lives when, and what the peak is made of. */

import * as Plot from "@observablehq/plot";
import { element } from "../page/dom.js";
import type { Context } from "./context.js";
import { bytesText, type Storage, sizeOf } from "./data.js";
import { button } from "./details.js";
import { pictureOf, plotWidth } from "./figure.js";
import { sliders } from "./sizes.js";
import { table } from "./table.js";

interface Block {
  number: number;
  storage: Storage;
  offset: number;
  bytes: number;
  label: string;
}

export function memoryView(context: Context, into: HTMLElement): void {
  const holder = element("div");
  const fill = () => holder.replaceChildren(...content(context));
  into.append(sliders(context, fill), holder);
  fill();
}

function content(context: Context): Node[] {
  const { storages, steps } = context.function;
  const weights = context.model.metadata.memory as { weights_bytes?: number } | undefined;
  const blocks: Block[] = storages.map((storage, number) => ({
    number,
    storage,
    offset: sizeOf(storage.offset, context.symbols),
    bytes: sizeOf(storage.bytes, context.symbols),
    label: storage.buffers.map(([name, type]) => `${name || "intermediate"} ${type}`).join("; "),
  }));
  const live = steps.map((_, step) =>
    blocks.reduce((sum, b) => (b.storage.first <= step && step <= b.storage.last ? sum + b.bytes : sum), 0),
  );
  const peak = live.indexOf(Math.max(...live, 0));
  const arena = Math.max(0, ...blocks.map((b) => b.offset + b.bytes));
  const facts = [`The arena has ${bytesText(arena)}`];
  if (blocks.length)
    facts.push(
      `at most ${bytesText(live[peak] ?? 0)} of it are in use at one time, in step ${peak}` +
        stepName(context, peak),
    );
  facts.push(`weights take ${bytesText(weights?.weights_bytes ?? 0)} beside it`);
  const parts: Node[] = [element("p", "summary", `${facts.join("; ")}.`)];
  if (!blocks.length) return parts;
  const figure = Plot.plot({
    width: plotWidth(1100),
    height: 380,
    marginLeft: 70,
    x: { label: "step of the call", domain: [0, steps.length] },
    y: { label: "bytes of the arena", tickFormat: (d: number) => bytesText(d) },
    marks: [
      Plot.rect(blocks, {
        x1: (b: Block) => b.storage.first,
        x2: (b: Block) => b.storage.last + 1,
        y1: "offset",
        y2: (b: Block) => b.offset + b.bytes,
        fill: (b: Block) =>
          b.storage.first <= peak && peak <= b.storage.last ? "in use at the peak" : "other",
        stroke: "var(--back)",
        title: (b: Block) =>
          `${b.label}\n${bytesText(b.bytes)}, steps ${b.storage.first} to ${b.storage.last}`,
        tip: true,
      }),
      Plot.ruleX([peak + 0.5], { stroke: "currentColor", strokeDasharray: "4 3" }),
    ],
    color: { legend: true, domain: ["in use at the peak", "other"], range: ["var(--hot)", "var(--cool)"] },
  });
  const atPeak = blocks
    .filter((b) => b.storage.first <= peak && peak <= b.storage.last)
    .sort((a, b) => b.bytes - a.bytes);
  parts.push(
    pictureOf(figure, "The arena over the steps of a call. The table lists what is in use at the peak."),
    table(
      `In use at the peak, step ${peak}`,
      [
        { title: "buffer", cell: (b) => b.label, key: (b) => b.label },
        { title: "bytes", cell: (b) => bytesText(b.bytes), key: (b) => b.bytes, number: true },
        {
          title: "from step",
          cell: (b) => String(b.storage.first),
          key: (b) => b.storage.first,
          number: true,
        },
        { title: "to step", cell: (b) => String(b.storage.last), key: (b) => b.storage.last, number: true },
        { title: "written by", cell: (b) => writer(context, b), key: (b) => b.storage.first },
      ],
      atPeak,
    ),
  );
  return parts;
}

function stepName(context: Context, step: number): string {
  const kernel = context.function.steps[step]?.kernel;
  return kernel ? ` (${kernel})` : "";
}

function writer(context: Context, { number }: Block): Node | string {
  const kernel = context.function.steps.find((s) => s.writes?.includes(number))?.kernel;
  return kernel ? button(kernel, () => context.openKernel(kernel), "link") : "–";
}
