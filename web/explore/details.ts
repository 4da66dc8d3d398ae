/** The panel of one operator: types, the user's line, its kernel, its neighbours. */

import { element, fillFacts } from "../page/dom.js";
import { apartSection } from "./apart.js";
import type { Context } from "./context.js";
import { percent, timeText, typeText, usersOf } from "./data.js";

const AROUND = 3;

export function button(label: string, act: () => void, className = ""): HTMLButtonElement {
  const made = element("button", className, label);
  made.type = "button";
  made.onclick = act;
  return made;
}

export function operatorDetails(context: Context, number: number, go: (operator: number) => void): Node[] {
  const { operators, inputs } = context.function;
  const operator = operators[number]!;
  const kernel = context.kernelOf(number);
  const facts: [string, string][] = [
    ["operator", operator.name],
    ["in the model", operator.place || "unknown"],
    ["type", operator.types.map(typeText).join(", ")],
  ];
  if (operator.attributes) facts.push(["attributes", operator.attributes]);
  if (operator.source) facts.push(["line", operator.source]);
  const seconds = context.secondsOfOperators().get(number);
  if (seconds)
    facts.push([
      "time of its launch",
      `${timeText(seconds)} (${percent(seconds / (context.model.profile?.seconds ?? seconds))})`,
    ]);
  const list = element("dl", "facts");
  fillFacts(list, facts);
  const parts: Node[] = [element("h2", "", operator.name), list];
  if (kernel) {
    parts.push(
      element("h3", "", "Kernel"),
      element(
        "p",
        "buttons",
        button(kernel, () => context.openKernel(kernel)),
      ),
    );
  }
  const excerpt = sourceExcerpt(context, operator.source);
  if (excerpt) parts.push(element("h3", "", "Source"), excerpt);
  const neighbours = (title: string, numbers: readonly number[]) => {
    if (!numbers.length) return;
    const items = numbers.slice(0, 24).map((k) => {
      const known = operators[k];
      if (!known) return element("li", "", `input ${inputs[-1 - k]?.name ?? ""}`);
      if (known.name === "constant")
        return element("li", "", `weight ${known.place} ${typeText(known.types[0] ?? "")}`);
      return element(
        "li",
        "",
        button(`${known.name} · ${known.place}`, () => go(k)),
      );
    });
    parts.push(element("h3", "", title), element("ul", "plain", ...items));
  };
  neighbours("Reads", operator.operands);
  neighbours("Read by", usersOf(operators)[number] ?? []);
  const step = context.steps[number];
  const apart = apartSection(context, ({ from, to }) => from === step || to === step);
  if (apart) parts.push(apart);
  return parts;
}

/** The lines of the user's code around a place "FILE:LINE". */
export function sourceExcerpt(context: Context, place: string, around = AROUND): HTMLElement | null {
  const { file, line } = splitPlace(place);
  const text = context.model.sources[file];
  if (text === undefined) return null;
  const lines = text.split("\n");
  const shown = element("pre", "source");
  shown.tabIndex = 0;
  for (let k = Math.max(1, line - around); k <= Math.min(lines.length, line + around); k++) {
    shown.append(element("span", k === line ? "here" : "", `${String(k).padStart(5)}  ${lines[k - 1]}\n`));
  }
  return shown;
}

export function splitPlace(place: string): { file: string; line: number } {
  const end = place.lastIndexOf(":");
  return { file: place.slice(0, Math.max(end, 0)), line: Number(place.slice(end + 1)) };
}
