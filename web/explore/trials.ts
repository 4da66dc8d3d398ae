/** The trials of `tilewright tune` behind a kernel: each candidate, and the best so far. */

import * as Plot from "@observablehq/plot";
import { element } from "../page/dom.js";
import type { Trial } from "./data.js";
import { pictureOf, plotWidth } from "./figure.js";
import { table } from "./table.js";

export function trialsSection(trials: readonly Trial[]): HTMLElement | null {
  const measured = trials.filter(({ stage }) => stage === "race" || stage === "final");
  if (!measured.length) return null;
  const failed = measured.filter(({ failure }) => failure).length;
  const used = trials.find((trial) => trial.used);
  let best = 1;
  const points = measured.flatMap(({ speedup, stage, choices }, number) => {
    if (speedup === undefined) return [];
    best = Math.max(best, speedup);
    return [{ number: number + 1, speedup, best, stage, choices: choicesText(choices) }];
  });
  const figure = Plot.plot({
    width: plotWidth(860),
    height: 220,
    marginLeft: 60,
    x: { label: "trial" },
    y: { label: "default's time over the candidate's", grid: true },
    color: { legend: true },
    marks: [
      Plot.dot(points, {
        x: "number",
        y: "speedup",
        fill: "stage",
        r: 2.5,
        title: (p: { choices: string; speedup: number }) => `${p.speedup.toFixed(3)}×\n${p.choices}`,
        tip: true,
      }),
      Plot.line(points, { x: "number", y: "best", stroke: "var(--hot)", curve: "step-after" }),
    ],
  });
  const speedup = (used?.speedup ?? 1).toFixed(3);
  const verdict = used
    ? `The kernel uses ${choicesText(used.choices)}, ${speedup}× as fast as by default.`
    : "The kernel keeps its default.";
  const text = `${measured.length} trials, ${failed} failed. ${verdict}`;
  const ranked = measured
    .filter(({ speedup }) => speedup !== undefined)
    .toSorted((a, b) => (b.lower ?? b.speedup!) - (a.lower ?? a.speedup!));
  return element(
    "section",
    "",
    element("h3", "", "Tuning"),
    element("p", "", text),
    pictureOf(figure, "Speedup of each trial, and the best so far. The table lists the best ones."),
    table(
      "Best trials",
      [
        { title: "choices", cell: (x) => choicesText(x.choices), key: (x) => choicesText(x.choices) },
        { title: "stage", cell: (x) => x.stage, key: (x) => x.stage },
        { title: "speedup", cell: (x) => x.speedup!.toFixed(3), key: (x) => x.speedup!, number: true },
        {
          title: "interval",
          cell: (x) => `${x.lower?.toFixed(3) ?? "?"} to ${x.upper?.toFixed(3) ?? "?"}`,
          key: (x) => x.lower ?? 0,
          number: true,
        },
      ],
      ranked.slice(0, 12),
    ),
  );
}

const choicesText = (choices: Record<string, unknown>): string =>
  Object.entries(choices)
    .map(([name, value]) => `${name} = ${JSON.stringify(value)}`)
    .join(", ") || "the default's choices";
