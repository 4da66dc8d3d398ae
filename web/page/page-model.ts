/** The model that runs in this page: told, loaded, and answering requests. */

import type { ChatModel, ModelInfo, Progress } from "../src/llm.js";
import { $, announce, fillFacts, size } from "./dom.js";
import type { Ask } from "./reply.js";
import { sentence, troubleOf } from "./trouble.js";

/** Bytes; the user must confirm a larger download. */
const LARGE = 5_000_000;

export class PageModel {
  info: ModelInfo | null = null;
  /** Whether the weights of the loaded model are in the browser's storage. */
  kept = false;
  private model: ChatModel | null = null;
  private cancel: AbortController | null = null;

  /** `onChange` is called when the model has become ready, or is no longer. */
  constructor(
    private readonly folder: string,
    private readonly onChange: () => void,
  ) {
    $("cancel").onclick = () => this.cancel?.abort();
  }

  get ready(): boolean {
    return this.model !== null;
  }

  readonly ask: Ask = async (path, request) => {
    const { answerRequest } = await import("../src/llm.js");
    if (!this.model) throw new Error("the model is not loaded");
    return answerRequest(this.model, new Request(new URL(path, location.href), request));
  };

  /** Tells what the model needs, and loads it where the user need not confirm that. */
  async start(): Promise<void> {
    this.show("Reading what the model needs");
    try {
      const { isKept, modelInfo } = await import("../src/llm.js");
      const info = await modelInfo(this.folder);
      this.info = info;
      this.onChange();
      const kept = await isKept(this.folder, info);
      const obstacle = await obstacleOf(info);
      if (obstacle) return this.fail(Object.assign(new Error(obstacle), { name: "DeviceError" }));
      if (kept || info.download <= LARGE) return await this.load();
      this.show(`Load ${info.name}?`);
      $("loading-text").textContent =
        "The model runs in this page, and nothing you type leaves it. The download is kept for later visits.";
      this.showNeeds(info);
      this.offer("Download and load");
    } catch (thrown) {
      this.fail(thrown);
    }
  }

  /** Loads the model again after it failed. */
  async restart(): Promise<void> {
    await this.dispose();
    await this.load();
  }

  async dispose(): Promise<void> {
    const { model } = this;
    this.model = null;
    this.onChange();
    // A device or a worker that failed may not answer any more.
    await Promise.race([
      model?.dispose().catch(() => undefined),
      new Promise((end) => setTimeout(end, 2000)),
    ]);
  }

  private async load(): Promise<void> {
    const { info } = this;
    if (!info) return this.start();
    this.show(`Loading ${info.name}`);
    announce(`Loading ${info.name}`);
    this.showNeeds(info);
    const cancel = new AbortController();
    this.cancel = cancel;
    $("cancel").hidden = $("progress-box").hidden = false;
    const received = new Map<string, number>();
    this.showProgress(0, info.download, false);
    try {
      const { isKept, loadChatModel } = await import("../src/llm.js");
      this.model = await loadChatModel(this.folder, {
        signal: cancel.signal,
        onProgress: ({ file, loaded, cached }: Progress) => {
          received.set(file, loaded);
          const sum = [...received.values()].reduce((a, b) => a + b, 0);
          this.showProgress(sum, info.download, cached);
        },
      });
      this.kept = await isKept(this.folder, info);
      $("loading").hidden = true;
      announce(`${info.name} is ready`);
      void navigator.storage?.persist?.(); // so that the browser does not drop the download
      this.onChange();
    } catch (thrown) {
      this.fail(thrown);
    } finally {
      this.cancel = null;
    }
  }

  private showProgress(loaded: number, total: number, cached: boolean): void {
    const part = Math.min(1, loaded / total);
    ($("progress") as HTMLProgressElement).value = part;
    const from = cached ? "from the browser's storage" : "downloaded";
    $("progress-text").textContent =
      `${Math.round(100 * part)} %: ${size(Math.min(loaded, total))} of ${size(total)} ${from}`;
  }

  private showNeeds({ download, memory, context, target }: ModelInfo): void {
    const sum = memory.weights + memory.cache + memory.working;
    const of = `weights ${size(memory.weights)}, chats ${size(memory.cache)}, work ${size(memory.working)}`;
    fillFacts($("needs"), [
      ["Download", size(download)],
      ["Memory", `${size(sum)} (${of})`],
      ["Context", `${context} tokens`],
      ["Runs on", runsOn(target)],
    ]);
    $("needs").hidden = false;
    const warning = memoryWarning(sum);
    $("loading-warning").textContent = warning;
    $("loading-warning").hidden = !warning;
  }

  private show(title: string): void {
    $("loading").classList.remove("error");
    $("loading-title").textContent = title;
    $("loading-text").textContent = "";
    for (const id of ["needs", "loading-warning", "progress-box", "cancel", "load"]) $(id).hidden = true;
    $("loading").hidden = false;
  }

  private offer(label: string): void {
    const button = $("load");
    button.textContent = label;
    button.onclick = () => {
      void this.load();
      $("cancel").focus(); // the button with the focus vanishes
    };
    button.hidden = false;
  }

  private fail(thrown: unknown): void {
    const { name, message } = thrown instanceof Error ? thrown : new Error(String(thrown));
    const { title, advice } = troubleOf(name);
    this.show(title);
    $("loading").classList.toggle("error", name !== "AbortError");
    $("loading-text").textContent = name === "AbortError" ? advice : `${sentence(message)} ${advice}`;
    this.offer(name === "AbortError" ? "Load the model" : "Load again");
    announce(title);
    this.onChange();
  }
}

/** The reason why the model cannot run in this browser, before anything is downloaded; empty: none known. */
async function obstacleOf({ target }: ModelInfo): Promise<string> {
  if (!target.startsWith("webgpu")) return "";
  if (!navigator.gpu) return "This browser has no WebGPU, or the page is not from https or localhost";
  const adapter = await navigator.gpu.requestAdapter().catch(() => null);
  return adapter ? "" : "This browser has WebGPU, but finds no GPU that it can use";
}

function memoryWarning(bytes: number): string {
  const { deviceMemory } = navigator as { deviceMemory?: number }; // GiB, at most 8, in some browsers
  if (!deviceMemory || bytes < deviceMemory * 2 ** 29) return "";
  return `This device has about ${deviceMemory} GB of memory, of which the model needs ${size(bytes)}.`;
}

export function runsOn(target: string): string {
  if (target.startsWith("webgpu")) return "the GPU (WebGPU)";
  if (!target.includes("threads")) return "the processor (WebAssembly), one thread";
  return crossOriginIsolated
    ? "the processor (WebAssembly), several threads"
    : "the processor (WebAssembly), one thread, as this page is not isolated from others";
}
