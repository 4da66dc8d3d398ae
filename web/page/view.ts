/** Messages as the page shows them. */

import { picture } from "./attach.js";
import { $, element, iconButton } from "./dom.js";
import { renderMarkdown } from "./markdown.js";

export function showUser(text: string, images: readonly string[] = []): void {
  const shown = images.map((url, place) => picture(url, `Image ${place + 1}`));
  const box = element("article", "user", ...shown, element("div", "content", text));
  box.setAttribute("aria-label", "You");
  $("log").append(box);
  box.scrollIntoView({ block: "end" });
}

/** Milliseconds between two renderings of a reply that arrives. */
const INTERVAL = 50;

/** A reply, which grows until `finish`. */
export class ReplyView {
  private readonly content = element("div", "content waiting");
  private readonly foot = element("div", "foot");
  private readonly box = element("article", "assistant", this.content, this.foot);
  private rendered = 0;

  constructor() {
    this.box.setAttribute("aria-label", "Reply");
    this.box.setAttribute("aria-busy", "true");
    this.content.textContent = "Thinking";
    $("log").append(this.box);
    this.box.scrollIntoView({ block: "end" });
  }

  show(text: string): void {
    if (performance.now() - this.rendered < INTERVAL) return;
    this.render(text);
    this.rendered = performance.now();
  }

  /** Shows the whole text, figures, and what the user can do. `regenerate`: only for the last reply. */
  finish(text: string, note: string, regenerate?: () => void): void {
    this.render(text);
    this.box.removeAttribute("aria-busy");
    const copy = iconButton("copy", "Copy", () => {
      void navigator.clipboard?.writeText(text).then(() => {
        said.textContent = "Copied";
      });
    });
    const said = element("span");
    said.setAttribute("role", "status");
    this.foot.replaceChildren(copy);
    if (regenerate) {
      const again = iconButton("again", "Regenerate", regenerate);
      again.classList.add("again");
      this.foot.append(again);
    }
    this.foot.append(element("span", "note", note), said);
  }

  remove(): void {
    this.box.remove();
  }

  private render(text: string): void {
    const main = $("main");
    const atBottom = main.scrollHeight - main.scrollTop - main.clientHeight < 80;
    this.content.classList.remove("waiting");
    this.content.innerHTML = renderMarkdown(text);
    if (atBottom) main.scrollTop = main.scrollHeight;
  }
}

/** Shows an error below the messages. `act`: what the user can do about it. */
export function showError(
  title: string,
  text: string,
  act?: { readonly label: string; readonly run: () => void },
): void {
  const box = element("div", "card error");
  box.setAttribute("role", "alert");
  if (title) box.append(element("p", "title", title));
  box.append(element("p", "", text));
  if (act) {
    const button = element("button", "", act.label);
    button.type = "button";
    button.onclick = () => {
      box.remove();
      act.run();
    };
    box.append(element("div", "row", button));
  }
  $("log").append(box);
  box.scrollIntoView({ block: "end" });
}
