/** Kernels by time, bytes and operations, and their place under the machine's roofline. */

import * as Plot from "@observablehq/plot";
import { element } from "../page/dom.js";
import type { Context } from "./context.js";
import { bytesText, flopsText, type Kernel, type KernelTime, percent, sizeOf, timeText } from "./data.js";
import { button } from "./details.js";
import { pictureOf, plotWidth } from "./figure.js";
import { sliders } from "./sizes.js";
import { type Column, table } from "./table.js";

interface Row {
  kernel: Kernel;
  time: KernelTime | undefined;
  flops: number;
  bytes: number;
  launches: number;
}

export function kernelsView(context: Context, into: HTMLElement): void {
  const holder = element("div");
  into.append(
    sliders(context, () => fill()),
    holder,
  );
  const fill = () => holder.replaceChildren(...content(context));
  fill();
}

function content(context: Context): Node[] {
  const { profile, kernels } = context.model;
  const rows: Row[] = kernels.map((kernel) => {
    const time = context.times.get(kernel.name);
    const launches = time?.launches ?? kernel.launches;
    return {
      kernel,
      time,
      launches,
      flops: time?.flops ?? sizeOf(kernel.flops, context.symbols) * launches,
      bytes: time?.bytes ?? sizeOf(kernel.bytes, context.symbols) * launches,
    };
  });
  const total = profile?.seconds ?? 0;
  const columns: Column<Row>[] = [
    {
      title: "kernel",
      cell: ({ kernel }) => button(kernel.name, () => context.openKernel(kernel.name), "link"),
      key: ({ kernel }) => kernel.name,
    },
    { title: "kind", cell: ({ kernel }) => kernel.kind, key: ({ kernel }) => kernel.kind },
    {
      title: "launches",
      cell: ({ launches }) => String(launches),
      key: ({ launches }) => launches,
      number: true,
    },
  ];
  if (profile) {
    columns.push(
      {
        title: "time",
        cell: ({ time }) => (time ? timeText(time.seconds) : "–"),
        key: ({ time }) => time?.seconds ?? 0,
        number: true,
      },
      {
        title: "share",
        cell: ({ time }) => (time ? percent(time.seconds / total) : "–"),
        key: ({ time }) => time?.seconds ?? 0,
        number: true,
      },
    );
  }
  columns.push(
    { title: "bytes", cell: ({ bytes }) => bytesText(bytes), key: ({ bytes }) => bytes, number: true },
    { title: "operations", cell: ({ flops }) => flopsText(flops), key: ({ flops }) => flops, number: true },
  );
  if (profile?.machine) {
    columns.push({
      title: "of roofline",
      cell: ({ time }) => (time?.roofline == null ? "–" : percent(time.roofline)),
      key: ({ time }) => time?.roofline ?? 0,
      number: true,
    });
  }
  columns.push({
    title: "lines",
    cell: ({ kernel }) => kernel.locations.slice(0, 2).join(", "),
    key: ({ kernel }) => kernel.locations[0] ?? "",
  });
  const sorted = rows.toSorted(
    (a, b) => (b.time?.seconds ?? 0) - (a.time?.seconds ?? 0) || b.bytes - a.bytes,
  );
  const parts: Node[] = [];
  if (profile) {
    parts.push(
      element(
        "p",
        "",
        `A call took ${timeText(profile.seconds)}, of which ${timeText(profile.kernels)} ` +
          `(${percent(profile.kernels / profile.seconds)}) in kernels.`,
      ),
    );
  }
  const plot = roofline(context, rows);
  if (plot) parts.push(plot);
  const slower = kernels.filter((k) => k.slower);
  if (slower.length) {
    parts.push(
      element("h2", "", "Slower forms"),
      element("ul", "", ...slower.map((k) => element("li", "", `${k.name}: ${k.slower}`))),
    );
  }
  return [...parts, table("Kernels", columns, sorted)];
}

/** Operations per second over operations per byte, with the bounds of arithmetic, memory and caches. */
function roofline(context: Context, rows: readonly Row[]): HTMLElement | null {
  const machine = context.model.profile?.machine;
  const points = rows
    .filter(({ time, flops, bytes }) => time && flops > 0 && bytes > 0)
    .map(({ kernel, time, flops, bytes }) => ({
      kernel: kernel.name,
      intensity: flops / bytes,
      rate: flops / time!.seconds,
      seconds: time!.seconds,
    }));
  if (!machine || !points.length) return null;
  const intensities = points.map((p) => p.intensity);
  const [low, high] = [
    Math.min(0.05, ...intensities) / 2,
    Math.max(machine.flops / machine.memory, ...intensities) * 3,
  ];
  const bandwidths: [string, number][] = [
    ["memory", machine.memory],
    ...machine.caches
      .filter((_, k) => k % 2 === 0)
      .map(([size, rate]): [string, number] => [`caches, ${bytesText(size)}`, rate]),
  ];
  const roofs = bandwidths.flatMap(([name, rate]) =>
    [low, machine.flops / rate, high].map((x) => ({ name, x, y: Math.min(machine.flops, x * rate) })),
  );
  const figure = Plot.plot({
    width: plotWidth(860),
    height: 340,
    marginLeft: 60,
    x: { type: "log", label: "operations per byte", tickFormat: (d: number) => String(d) },
    y: { type: "log", label: "operations per second", tickFormat: (d: number) => flopsText(d) },
    color: { legend: true },
    marks: [
      Plot.line(roofs, { x: "x", y: "y", stroke: "name" }),
      Plot.dot(points, {
        x: "intensity",
        y: "rate",
        r: "seconds",
        fill: "currentColor",
        fillOpacity: 0.55,
        title: "kernel",
        channels: { kernel: "kernel" },
        tip: true,
      }),
      Plot.text(points.toSorted((a, b) => b.seconds - a.seconds).slice(0, 6), {
        x: "intensity",
        y: "rate",
        text: "kernel",
        textAnchor: "start",
        dx: 10,
        fill: "currentColor",
        stroke: "var(--back)",
      }),
    ],
  });
  return pictureOf(
    figure,
    "Roofline: operations per second over operations per byte. The table has the figures.",
    `Roofline of ${machine.processor}, ${machine.threads} threads: ${flopsText(machine.flops)}flop/s, ` +
      `${bytesText(machine.memory)}/s from memory.`,
  );
}
