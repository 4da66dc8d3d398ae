/** Two compiled models beside each other: what changed, and what became slower. */

import { element } from "../page/dom.js";
import type { Context } from "./context.js";
import { bytesText, kernelTimes, type Model, percent, sizeOf, timeText } from "./data.js";
import { type Column, table } from "./table.js";

interface Row {
  name: string;
  before: number | null;
  after: number | null;
}

export function compareView(context: Context, into: HTMLElement): void {
  const other = context.other;
  if (!other) return;
  const { model } = context;
  const facts = [...new Set([...Object.keys(model.facts), ...Object.keys(other.facts)])];
  into.append(
    table(
      `${model.title} against ${other.title}`,
      [
        { title: "fact", cell: (name) => name, key: (name) => name },
        {
          title: other.title,
          cell: (name) => other.facts[name] ?? "–",
          key: (name) => other.facts[name] ?? "",
        },
        {
          title: model.title,
          cell: (name) => model.facts[name] ?? "–",
          key: (name) => model.facts[name] ?? "",
        },
      ],
      facts,
    ),
  );
  if (model.profile && other.profile) {
    const ratio = model.profile.seconds / other.profile.seconds;
    into.append(
      element(
        "p",
        "summary",
        `A call takes ${timeText(model.profile.seconds)}, ${ratio.toFixed(2)} times the ` +
          `${timeText(other.profile.seconds)} of the other.`,
      ),
    );
  }
  const timed = Boolean(model.profile && other.profile);
  const columns: Column<Row>[] = [
    { title: "kernel", cell: ({ name }) => name, key: ({ name }) => name },
    {
      title: "other",
      cell: ({ before }) => shown(before, timed),
      key: ({ before }) => before ?? 0,
      number: true,
    },
    { title: "this", cell: ({ after }) => shown(after, timed), key: ({ after }) => after ?? 0, number: true },
    { title: "difference", cell: (row) => shown(difference(row), timed), key: difference, number: true },
    {
      title: "ratio",
      cell: ({ before, after }) => (before && after ? percent(after / before) : "–"),
      key: ({ before, after }) => (before && after ? after / before : 0),
      number: true,
    },
  ];
  const rows = comparedKernels(model, other).sort((a, b) => difference(b) - difference(a));
  into.append(table(timed ? "Kernels by seconds" : "Kernels by bytes", columns, rows));
  const changes = changedOperators(model, other);
  into.append(
    element("h2", "", "Operators of the graph"),
    changes.length
      ? element("ul", "", ...changes.map((text) => element("li", "", text)))
      : element("p", "", "Both have the same operators."),
  );
}

const difference = ({ before, after }: Row): number => (after ?? 0) - (before ?? 0);

function shown(value: number | null, timed: boolean): string {
  if (value === null) return "–";
  const text = (x: number) => (timed ? timeText(x) : bytesText(x));
  return value < 0 ? `−${text(-value)}` : text(value);
}

export function comparedKernels(model: Model, other: Model): Row[] {
  const [after, before] = [costs(model), costs(other)];
  return [...new Set([...after.keys(), ...before.keys()])].map((name) => ({
    name,
    before: before.get(name) ?? null,
    after: after.get(name) ?? null,
  }));
}

/** Seconds of each kernel, or its bytes where no call was timed. */
function costs({ profile, kernels }: Model): Map<string, number> {
  if (profile) return new Map([...kernelTimes(profile)].map(([name, { seconds }]) => [name, seconds]));
  return new Map(kernels.map(({ name, bytes, launches }) => [name, sizeOf(bytes, {}) * launches]));
}

function changedOperators(model: Model, other: Model): string[] {
  const count = ({ functions }: Model) => {
    const found = new Map<string, number>();
    for (const { operators } of functions) {
      for (const { name, place } of operators) {
        const key = `${name} at ${place || "unknown"}`;
        found.set(key, (found.get(key) ?? 0) + 1);
      }
    }
    return found;
  };
  const [after, before] = [count(model), count(other)];
  return [...new Set([...after.keys(), ...before.keys()])]
    .map((key): [string, number] => [key, (after.get(key) ?? 0) - (before.get(key) ?? 0)])
    .filter(([, change]) => change)
    .slice(0, 200)
    .map(([key, change]) => `${change > 0 ? "+" : "−"}${Math.abs(change)} ${key}`);
}
