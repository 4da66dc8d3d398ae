/** Elements of the page. */

export const $ = <T extends HTMLElement = HTMLElement>(id: string): T => document.getElementById(id) as T;

export const input = (id: string): HTMLInputElement => $<HTMLInputElement>(id);

/** A new element with a class, and with text or children. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** Paths in a square of 24 units. */
const ICONS = {
  menu: "M4 6h16M4 12h16M4 18h16",
  plus: "M12 5v14M5 12h14",
  settings:
    "M4 7h10M18 7h2M4 17h2M10 17h10M14 7a2 2 0 1 0 4 0a2 2 0 1 0-4 0M6 17a2 2 0 1 0 4 0a2 2 0 1 0-4 0",
  rename: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  remove: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  image: "M4 5h16v14H4zM4 16l5-5l4 4l3-3l4 4M15 9h.01",
  again: "M20 12a8 8 0 1 1-2.5-5.8M20 3v4h-4",
} as const;

export function icon(name: keyof typeof ICONS): SVGSVGElement {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows an icon; `label` is its name. */
export function iconButton(name: keyof typeof ICONS, label: string, act: () => void): HTMLButtonElement {
  const button = element("button", "icon", icon(name));
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.title = label;
  button.onclick = act;
  return button;
}

/** Tells users of screen readers. */
export function announce(text: string): void {
  $("announcement").textContent = text;
}

/** Fills a list of names and values. */
export function fillFacts(list: HTMLElement, facts: readonly (readonly [string, string])[]): void {
  list.replaceChildren(
    ...facts.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]),
  );
}

/** Bytes as people read them. */
export function size(bytes: number): string {
  const units = ["bytes", "kB", "MB", "GB"];
  let power = 0;
  for (; bytes >= 1000 && power < units.length - 1; power++) bytes /= 1000;
  return `${power && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[power]}`;
}

/** Asks the user to confirm a deletion. */
export function confirmed(text: string): Promise<boolean> {
  const dialog = $<HTMLDialogElement>("question");
  $("question-text").textContent = text;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
  });
}
