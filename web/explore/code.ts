/** A kernel at two levels side by side: source, graph, tensor, loop, schedule, the target's code. */

import { python } from "@codemirror/lang-python";
import { HighlightStyle, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
import { cpp } from "@codemirror/legacy-modes/mode/clike";
import { gas } from "@codemirror/legacy-modes/mode/gas";
import { Compartment, EditorState, type Extension, type StateEffect } from "@codemirror/state";
import { Decoration, EditorView } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { basicSetup } from "codemirror";
import { element } from "../page/dom.js";
import { apartSection } from "./apart.js";
import type { Context } from "./context.js";
import { button, splitPlace } from "./details.js";
import { trialsSection } from "./trials.js";

const LABELS: Record<string, string> = {
  source: "Source",
  graph: "Graph",
  tensor: "Tensor",
  loop: "Loop",
  schedule: "Schedule",
  llvm: "LLVM",
  asm: "Assembly",
};

/** The colors of the page, which have contrast in light and dark. */
const COLORS = syntaxHighlighting(
  HighlightStyle.define([
    { tag: [tags.keyword, tags.labelName, tags.definitionKeyword], color: "var(--keyword)" },
    { tag: [tags.string, tags.number, tags.bool], color: "var(--literal)" },
    { tag: [tags.comment, tags.meta], color: "var(--muted)" },
    { tag: [tags.variableName, tags.propertyName, tags.typeName, tags.className], color: "var(--name)" },
  ]),
);

interface Level {
  text: string;
  language: Extension;
  /** Lines, from 1, that belong to the kernel, with the operator of each where it is known. */
  lines: Map<number, number | null>;
}

export function codeView(context: Context, into: HTMLElement): void {
  const kernels = context.model.kernels;
  if (!kernels.length) {
    into.append(element("p", "empty", "The model has no kernels."));
    return;
  }
  context.kernel ??= [...context.times.keys()][0] ?? kernels[0]!.name;
  const choice = element("select");
  choice.setAttribute("aria-label", "Kernel");
  for (const { name } of kernels) choice.append(new Option(name, name, false, name === context.kernel));
  choice.onchange = () => context.openKernel(choice.value);
  const operators = context.operatorsOf(context.kernel);
  // The operators of the launch that was come from are first.
  const own = context.function.steps[context.steps[context.operator ?? -1] ?? -1]?.operators ?? [];
  operators.sort((a, b) => Number(own.includes(b)) - Number(own.includes(a)));
  const shown = operators.slice(0, 12).map((k) => {
    const { name, place } = context.function.operators[k]!;
    return button(`${name} · ${place}`, () => context.openOperator(k));
  });
  const links = element("p", "buttons", ...shown);
  if (operators.length > shown.length) links.append(` and ${operators.length - shown.length} more`);
  into.append(element("div", "tools", element("label", "", "Kernel ", choice)), links);
  const found = levels(context, context.kernel, operators);
  const names = [...found.keys()];
  const first = names[0]!;
  const last = ["asm", "sass", "ptx", "wgsl", "schedule"].find((name) => found.has(name)) ?? names.at(-1)!;
  into.append(
    element("div", "pair", pane(context, found, first, "Left"), pane(context, found, last, "Right")),
  );
  const { steps } = context.function;
  const name = context.model.kernels.find((k) => k.name === context.kernel)?.variant_of ?? context.kernel;
  const apart = apartSection(context, ({ from, to }) =>
    [from, to].some((step) => steps[step]?.kernel === name),
  );
  if (apart) into.append(apart);
  const trials = trialsSection(kernels.find((kernel) => kernel.name === name)?.trials ?? []);
  if (trials) into.append(trials);
}

function levels(context: Context, kernel: string, operators: readonly number[]): Map<string, Level> {
  const entry = context.model.kernels.find((k) => k.name === kernel)!;
  const found = new Map<string, Level>();
  const source = sourceLevel(context, operators);
  if (source) found.set("source", source);
  const graph = operators.map((k) => {
    const { name, place, types, attributes, operands } = context.function.operators[k]!;
    const read = operands
      .map((x) => (x < 0 ? (context.function.inputs[-1 - x]?.name ?? "input") : `%${x}`))
      .join(", ");
    const shown = attributes ? ` {${attributes}}` : "";
    return `%${k} = ${name} ${read}${shown} : ${types.join(", ")}  // ${place}`;
  });
  if (graph.length) {
    found.set("graph", {
      text: graph.join("\n"),
      language: [],
      lines: new Map(operators.map((k, n) => [n + 1, k])),
    });
  }
  for (const name of ["tensor", "loop"]) {
    if (entry.levels[name]) found.set(name, { text: entry.levels[name], language: [], lines: new Map() });
  }
  if (entry.schedule) found.set("schedule", { text: entry.schedule, language: python(), lines: new Map() });
  for (const [name, text] of Object.entries(entry.levels)) {
    if (found.has(name)) continue;
    const language =
      name === "asm" || name === "sass" || name === "ptx"
        ? StreamLanguage.define(gas)
        : name === "llvm"
          ? []
          : StreamLanguage.define(cpp);
    found.set(name, { text, language, lines: new Map() });
  }
  return found;
}

/** The file of the user's that most operators of a kernel come from, with their lines. */
function sourceLevel(context: Context, operators: readonly number[]): Level | null {
  const files = new Map<string, Map<number, number>>();
  for (const k of operators) {
    const { file, line } = splitPlace(context.function.operators[k]!.source);
    if (context.model.sources[file] === undefined) continue;
    const lines = files.get(file) ?? new Map<number, number>();
    if (!lines.has(line)) lines.set(line, k);
    files.set(file, lines);
  }
  const [file, lines] = [...files].sort((a, b) => b[1].size - a[1].size)[0] ?? [];
  if (file === undefined || !lines) return null;
  return { text: context.model.sources[file]!, language: python(), lines };
}

function pane(context: Context, found: ReadonlyMap<string, Level>, at: string, side: string): HTMLElement {
  const choice = element("select");
  choice.setAttribute("aria-label", `${side} level`);
  for (const name of found.keys()) choice.append(new Option(LABELS[name] ?? name, name, false, name === at));
  const holder = element("div", "code");
  const view = new EditorView({ parent: holder });
  view.scrollDOM.tabIndex = 0;
  const show = () => {
    const level = found.get(choice.value)!;
    const marks = new Compartment();
    view.setState(
      EditorState.create({
        doc: level.text,
        extensions: [
          basicSetup,
          COLORS,
          level.language,
          EditorState.readOnly.of(true),
          EditorView.contentAttributes.of({
            "aria-label": `${side}: ${LABELS[choice.value] ?? choice.value}`,
          }),
          EditorView.domEventHandlers({ click: (event, editor) => follow(context, level, editor, event) }),
          marks.of(highlight(level)),
        ],
      }),
    );
    const first = Math.min(...level.lines.keys());
    if (Number.isFinite(first) && choice.value === "source") {
      view.dispatch({ effects: scrollTo(view, first) });
    }
  };
  choice.onchange = show;
  show();
  return element("section", "pane", element("div", "tools", choice), holder);
}

function scrollTo(view: EditorView, line: number): StateEffect<unknown> {
  const { from } = view.state.doc.line(Math.min(line, view.state.doc.lines));
  return EditorView.scrollIntoView(from, { y: "center" });
}

/** Marks the lines of the kernel. */
function highlight(level: Level): Extension {
  return EditorView.decorations.of((view) =>
    Decoration.set(
      [...level.lines.keys()]
        .filter((line) => line >= 1 && line <= view.state.doc.lines)
        .sort((a, b) => a - b)
        .map((line) => Decoration.line({ class: "of-kernel" }).range(view.state.doc.line(line).from)),
    ),
  );
}

/** A click on a line with an operator chooses the operator in the graph. */
function follow(context: Context, level: Level, view: EditorView, event: MouseEvent): boolean {
  const position = view.posAtCoords({ x: event.clientX, y: event.clientY });
  if (position === null || !event.altKey) return false;
  const operator = level.lines.get(view.state.doc.lineAt(position).number);
  if (operator === undefined || operator === null) return false;
  context.openOperator(operator);
  return true;
}
