/** Sliders for the dynamic dimensions, which evaluate the formulas of sizes. */

import { element } from "../page/dom.js";
import type { Context } from "./context.js";

/** The sliders of the function's dimensions; nothing where all sizes are fixed, or where a call was timed. */
export function sliders(context: Context, changed: () => void): HTMLElement {
  const holder = element("div", "sliders");
  for (const [name, [low, high]] of Object.entries(context.function.symbols)) {
    const range = element("input");
    range.type = "range";
    range.min = String(low ?? 1);
    range.max = String(high ?? Math.max(4096, context.sizes[name] ?? 0));
    range.value = String(context.sizes[name] ?? range.max);
    const shown = element("output", "", range.value);
    range.oninput = () => {
      context.sizes[name] = Number(range.value);
      shown.textContent = range.value;
      changed();
    };
    holder.append(element("label", "", `${name} `, range, " ", shown));
  }
  return holder;
}
