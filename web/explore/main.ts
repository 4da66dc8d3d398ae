/** The page of `tilewright explore`. */

import { $, element } from "../page/dom.js";
import { codeView } from "./code.js";
import { compareView } from "./compare.js";
import { Context, type View } from "./context.js";
import { readData } from "./data.js";
import { graphView } from "./graph.js";
import { kernelsView } from "./kernels.js";
import { followRun } from "./live.js";
import { memoryView } from "./memory.js";
import { passesView } from "./passes.js";
import { timeView } from "./time.js";

const VIEWS: Record<View, [string, (context: Context, into: HTMLElement) => void]> = {
  graph: ["Graph", graphView],
  kernels: ["Kernels", kernelsView],
  code: ["Code", codeView],
  time: ["Time", timeView],
  memory: ["Memory", memoryView],
  passes: ["Passes", passesView],
  compare: ["Compare", compareView],
  metadata: ["Metadata", metadataView],
};

async function start(): Promise<void> {
  if (document.body.dataset.live !== undefined) {
    followRun(document.body.dataset.live);
    return;
  }
  const [model, other] = await readData();
  if (!model) throw new Error("the page holds no model");
  const context = new Context(model, other ?? null, (view) => {
    location.hash = view;
    show(view);
  });
  $("title").textContent = model.title;
  const shown = ["target", "precision", "kernels after fusion"];
  $("facts").textContent = shown
    .filter((name) => model.facts[name])
    .map((name) => `${name}: ${model.facts[name]}`)
    .join(" · ");
  const views = (Object.keys(VIEWS) as View[]).filter((view) => view !== "compare" || other);
  const tabs = $("tabs");
  for (const view of views) {
    const tab = element("button", "", VIEWS[view][0]);
    tab.type = "button";
    tab.id = `tab-${view}`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", "view");
    tab.onclick = () => context.open(view);
    tabs.append(tab);
  }
  tabs.onkeydown = ({ key }) => {
    const step = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0;
    const at = views.findIndex((view) => $(`tab-${view}`) === document.activeElement);
    const next = step && at >= 0 ? views[(at + step + views.length) % views.length] : undefined;
    if (next) {
      context.open(next);
      $(`tab-${next}`).focus();
    }
  };
  const functions = $<HTMLSelectElement>("function");
  for (const { name } of model.functions)
    functions.append(new Option(name, name, false, name === context.function.name));
  $("function-label").hidden = model.functions.length < 2;
  functions.onchange = () => {
    context.setFunction(functions.value);
    show(current);
  };
  let current: View = "graph";
  const show = (view: View) => {
    current = view;
    for (const name of views) {
      const chosen = name === view;
      $(`tab-${name}`).setAttribute("aria-selected", String(chosen));
      $(`tab-${name}`).tabIndex = chosen ? 0 : -1;
    }
    const into = $("view");
    into.replaceChildren();
    into.setAttribute("aria-labelledby", `tab-${view}`);
    into.className = view;
    VIEWS[view][1](context, into);
  };
  const wanted = () => {
    const name = location.hash.slice(1) as View;
    return views.includes(name) ? name : (model.opens ?? "graph");
  };
  addEventListener("hashchange", () => {
    if (wanted() !== current) show(wanted());
  });
  show(wanted());
  document.body.dataset.ready = "true";
}

function metadataView(context: Context, into: HTMLElement): void {
  const text = element("pre", "source", JSON.stringify(context.model.metadata, null, 2));
  text.tabIndex = 0;
  into.append(text);
}

start().catch((error: unknown) => {
  $("view").append(
    element("p", "trouble", `This page cannot be shown: ${error instanceof Error ? error.message : error}`),
  );
});
