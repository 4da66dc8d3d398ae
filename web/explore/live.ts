/** The page of `tw.Live`: curves and the state of a search, as server-sent events bring them. */

import * as Plot from "@observablehq/plot";
import { $, announce, element } from "../page/dom.js";
import { percent, timeText } from "./data.js";
import { pictureOf, plotWidth } from "./figure.js";
import { table } from "./table.js";

interface TunedKernel {
  kernel: string;
  share: number;
  state: string;
  trials: number;
  failures: number;
  speedup: number;
}

interface News {
  /** The points are all that there are, not only new ones. */
  all: boolean;
  curves: Record<string, [at: number, value: number][]>;
  tuning: { stage: string; elapsed: number; left: number; kernels: TunedKernel[]; notes: string[] } | null;
  ended: boolean;
}

export function followRun(title: string): void {
  $("title").textContent = title;
  $("tabs").hidden = true;
  const curves = new Map<string, [number, number][]>();
  let tuning: News["tuning"] = null;
  let pending = 0;
  const show = () => {
    pending = 0;
    $("view").replaceChildren(...content(curves, tuning));
  };
  const events = new EventSource("/events");
  events.onmessage = ({ data }) => {
    const news = JSON.parse(data as string) as News;
    if (news.all) curves.clear();
    for (const [name, points] of Object.entries(news.curves)) {
      curves.set(name, [...(curves.get(name) ?? []), ...points]);
    }
    tuning = news.tuning;
    $("facts").textContent = news.ended ? "ended" : "running";
    if (news.ended) {
      events.close();
      announce("The run has ended");
    }
    if (!pending) pending = requestAnimationFrame(show);
  };
  events.onerror = () => {
    $("facts").textContent = "no answer: the run has ended, or this page lost its connection";
  };
  show();
  document.body.dataset.ready = "true";
}

function content(curves: ReadonlyMap<string, [number, number][]>, tuning: News["tuning"]): Node[] {
  const parts: Node[] = [];
  if (tuning) {
    parts.push(
      element(
        "p",
        "summary",
        `${tuning.stage}, ${timeText(tuning.elapsed)}, about ${timeText(tuning.left)} left`,
      ),
      table(
        "Kernels",
        [
          { title: "kernel", cell: (x) => x.kernel, key: (x) => x.kernel },
          { title: "of the time", cell: (x) => percent(x.share), key: (x) => x.share, number: true },
          { title: "state", cell: (x) => x.state, key: (x) => x.state },
          { title: "candidates", cell: (x) => String(x.trials), key: (x) => x.trials, number: true },
          { title: "failed", cell: (x) => String(x.failures), key: (x) => x.failures, number: true },
          { title: "best", cell: (x) => `${x.speedup.toFixed(3)}×`, key: (x) => x.speedup, number: true },
        ],
        tuning.kernels,
      ),
    );
    for (const note of tuning.notes) parts.push(element("p", "", note));
  }
  const found = [...curves].filter(([, points]) => points.length);
  const best = found.filter(([name]) => name.startsWith("best of "));
  if (best.length) {
    parts.push(curveOf("Best so far: the default's time over the candidate's", "seconds", best));
  }
  for (const curve of found) if (!best.includes(curve)) parts.push(curveOf(curve[0], "step", [curve]));
  if (!parts.length) parts.push(element("p", "empty", "Nothing has been measured so far."));
  return parts;
}

function curveOf(title: string, axis: string, curves: [string, [number, number][]][]): HTMLElement {
  const points = curves.flatMap(([name, values]) =>
    values.map(([x, y]) => ({ name: name.replace("best of ", ""), x, y })),
  );
  const figure = Plot.plot({
    width: plotWidth(860),
    height: 280,
    marginLeft: 60,
    x: { label: axis },
    y: { label: null, grid: true },
    color: { legend: curves.length > 1 },
    marks: [Plot.line(points, { x: "x", y: "y", stroke: "name", tip: true })],
  });
  const last = curves.map(([, values]) => values.at(-1)![1]);
  const now = curves.length === 1 ? `, now ${Number(last[0]!.toPrecision(4))}` : "";
  const section = element("section", "", element("h2", "", `${title}${now}`));
  section.append(pictureOf(figure, `${title}${now}`));
  return section;
}
