/** Each pass: its time, the lines that it changed, and the patterns that rewrote operations. */

import { element } from "../page/dom.js";
import type { Context } from "./context.js";
import type { Pass } from "./data.js";
import { timeText } from "./data.js";

export function passesView(context: Context, into: HTMLElement): void {
  const { passes } = context.model;
  if (!passes.length) {
    into.append(
      element(
        "p",
        "empty",
        "An artifact does not keep what the passes did. Give 'tilewright explore' the model.",
      ),
    );
    return;
  }
  const shown = element("div", "changes");
  shown.tabIndex = 0;
  shown.setAttribute("role", "region");
  shown.setAttribute("aria-label", "Changes of the pass");
  const list = element("ol", "passes");
  passes.forEach((pass, k) => {
    const rewrites = Object.values(pass.rewrites).reduce((sum, x) => sum + x.count, 0);
    const changed = pass.changes.length + pass.dropped > 0;
    const label = `${pass.name}${rewrites ? `, ${rewrites} rewrites` : changed ? "" : ", no change"}`;
    const choice = element(
      "button",
      changed ? "" : "quiet",
      label,
      element("small", "", ` ${pass.level}, ${timeText(pass.seconds)}`),
    );
    choice.type = "button";
    choice.onclick = () => {
      for (const other of list.querySelectorAll("button")) other.removeAttribute("aria-current");
      choice.setAttribute("aria-current", "true");
      shown.replaceChildren(...changesOf(pass));
      shown.scrollTop = 0;
    };
    list.append(element("li", "", choice));
    if (changed && !shown.childElementCount) {
      choice.setAttribute("aria-current", "true");
      shown.append(...changesOf(passes[k]!));
    }
  });
  into.append(element("div", "two", list, shown));
}

function changesOf(pass: Pass): Node[] {
  const parts: Node[] = [element("h2", "", pass.name)];
  parts.push(
    ...placesOf("Patterns", pass.rewrites),
    ...placesOf("Patterns that did not apply", pass.refusals),
  );
  if (!pass.changes.length) parts.push(element("p", "", "The text of the module did not change."));
  if (pass.dropped) parts.push(element("p", "", `${pass.dropped} further changed lines are not shown.`));
  for (const { before, after, lines } of pass.changes) {
    const text = element("pre", "diff");
    text.tabIndex = 0;
    for (const line of lines) {
      const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
      text.append(element("span", kind, `${line}\n`));
    }
    parts.push(element("p", "place", `line ${before} before, ${after} after`), text);
  }
  return parts;
}

/** Patterns with their number and the first places. */
function placesOf(title: string, patterns: Pass["rewrites"]): Node[] {
  const items = Object.entries(patterns)
    .sort(([, a], [, b]) => b.count - a.count)
    .map(([name, { count, at }]) => {
      const places = element("details", "", element("summary", "", `${name}: ${count}`));
      places.append(element("ul", "", ...at.map((place) => element("li", "", place))));
      return element("li", "", places);
    });
  return items.length ? [element("h3", "", title), element("ul", "plain", ...items)] : [];
}
