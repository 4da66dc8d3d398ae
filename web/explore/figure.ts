/** A plot as a figure that screen readers know as one picture. */

import { element } from "../page/dom.js";

/** The width of a plot on this screen. */
export const plotWidth = (most: number): number =>
  Math.min(most, Math.max(320, document.body.clientWidth - 60));

export function pictureOf(plot: Element, label: string, caption = ""): HTMLElement {
  for (const part of plot.querySelectorAll("g[aria-label]")) part.removeAttribute("aria-label");
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", label);
  const figure = element("figure", "", plot);
  if (caption) figure.append(element("figcaption", "", caption));
  figure.tabIndex = 0;
  return figure;
}
