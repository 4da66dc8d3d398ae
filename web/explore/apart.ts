/** Kernels that read each other's results, and the reasons for which they were not fused. */

import { element } from "../page/dom.js";
import type { Context } from "./context.js";
import type { Apart } from "./data.js";
import { button } from "./details.js";

/** The pairs of kernels for which `wanted` holds, as a section with a title; null where there are none. */
export function apartSection(
  context: Context,
  wanted: (pair: Apart) => boolean,
  most = 12,
): HTMLElement | null {
  const { apart } = context.function;
  // Equal layers have equal pairs: each text is shown once, with its number.
  const found = new Map<string, { pair: Apart; count: number }>();
  for (const pair of apart.filter(wanted)) {
    const key = JSON.stringify([names(context, pair), pair.reasons]);
    const known = found.get(key) ?? { pair, count: 0 };
    known.count++;
    found.set(key, known);
  }
  if (!found.size) return null;
  const items = [...found.values()].slice(0, most).map(({ pair, count }) => {
    const [from, to] = names(context, pair);
    const reasons = pair.reasons.length
      ? pair.reasons.map(([rule, reason]) => element("li", "", element("span", "rule", rule), ` ${reason}`))
      : [element("li", "", "No rule has compared the two: a later pass made one of them.")];
    return element(
      "li",
      "",
      button(from, () => context.openKernel(from), "link"),
      " → ",
      button(to, () => context.openKernel(to), "link"),
      count > 1 ? ` (${count} times)` : "",
      element("ul", "reasons", ...reasons),
    );
  });
  const section = element(
    "section",
    "",
    element("h3", "", "Why not one kernel"),
    element("ul", "plain", ...items),
  );
  if (found.size > most) section.append(element("p", "quiet", `and ${found.size - most} more pairs`));
  return section;
}

function names({ function: { steps } }: Context, { from, to }: Apart): [string, string] {
  return [steps[from]?.kernel ?? "", steps[to]?.kernel ?? ""];
}
