/** The chat page: conversations with a model that a server runs, or that runs in this page. */

import { allowImages, images, setImages } from "./attach.js";
import { $, announce, confirmed, fillFacts, icon, input } from "./dom.js";
import { forgetOffline, keepOffline } from "./offline.js";
import { PageModel, runsOn } from "./page-model.js";
import { type Ask, contentOf, Figures, ReplyError, reply, responseError } from "./reply.js";
import { setMenu, showConversations } from "./sidebar.js";
import { type Conversation, Conversations, type Message, newConversation, titleOf } from "./store.js";
import { replyTrouble, sentence } from "./trouble.js";
import { ReplyView, showError, showUser } from "./view.js";

/** The browser stores these settings. It does not store the API key. */
const STORED = ["system", "temperature", "top_p", "max_tokens", "seed"];
const CURRENT = "tilewright-current";
/** Milliseconds between two copies of an unfinished reply in the storage. */
const SAVE_INTERVAL = 1000;

const folder = document.querySelector<HTMLMetaElement>('meta[name="tilewright-model"]')?.content ?? "";
const pageModel = folder ? new PageModel(folder, () => showState()) : null;
const ask: Ask = pageModel ? pageModel.ask : (path, request) => fetch(path, request);
const conversations = await Conversations.open();
let current = newConversation();
let running: { readonly controller: AbortController; readonly conversation: Conversation } | null = null;
const removed = new Set<string>();
let serverModel = "";
/** Whether the service worker keeps the page. */
let pageKept = false;

// Conversations.

async function save(conversation: Conversation): Promise<void> {
  if (removed.has(conversation.id)) return;
  try {
    await conversations.put(conversation);
  } catch (thrown) {
    announce(`The conversation cannot be stored: ${(thrown as Error).message}`);
  }
}

async function list(): Promise<void> {
  showConversations(await conversations.all(), current.id, {
    open: (conversation) => {
      setMenu(false);
      void open(conversation);
    },
    rename: async (conversation, title) => {
      const target = conversation.id === current.id ? current : conversation;
      Object.assign(target, { title, named: true });
      await save(target);
      await list();
    },
    remove: async (conversation) => {
      removed.add(conversation.id);
      await conversations.remove(conversation.id);
      if (conversation.id === current.id) await open(newConversation());
      else await list();
      $("new").focus();
    },
  });
}

/** Shows a conversation. A reply that is being made for another one ends. */
async function open(conversation: Conversation): Promise<void> {
  if (running && running.conversation !== conversation) {
    stop();
    setRunning(null);
  }
  current = conversation;
  sessionStorage.setItem(CURRENT, conversation.id);
  $("log").replaceChildren();
  for (const [index, { role, content, images, note }] of conversation.messages.entries())
    if (role === "user") showUser(content, images);
    else {
      const last = index === conversation.messages.length - 1;
      new ReplyView().finish(content, note ?? "", last ? regenerate : undefined);
    }
  showWelcome();
  await list();
  if (!document.body.classList.contains("menu-open")) $("text").focus();
}

function showWelcome(): void {
  $("welcome").textContent = pageModel
    ? "The model runs in this page. Nothing you type leaves it."
    : "Messages go to the server of this page; the conversations are kept in this browser.";
  $("welcome").hidden = current.messages.length > 0 || $("log").childElementCount > 0;
}

// Replies.

/** Ends the reply; it remains `running` until its last part is stored. */
function stop(): void {
  running?.controller.abort();
}

function setRunning(reply: typeof running): void {
  running = reply;
  showState();
}

const number = (id: string): number | undefined =>
  input(id).value === "" ? undefined : Number(input(id).value);

function headers(): Record<string, string> {
  const key = input("key").value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** Requests a reply to the last message, and shows it while it arrives. Returns whether a part arrived. */
async function answer(conversation: Conversation, controller: AbortController): Promise<boolean> {
  const view = new ReplyView();
  const figures = new Figures();
  const system = input("system").value.trim();
  const before = [...conversation.messages];
  const messages = before.map(({ role, content, images }) => ({ role, content: contentOf(content, images) }));
  const request = {
    model: pageModel?.info?.name ?? serverModel,
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    temperature: number("temperature"),
    top_p: number("top_p"),
    max_tokens: number("max_tokens"),
    seed: number("seed"),
  };
  let text = "";
  let end = "";
  let error: Error | null = null;
  let saved = performance.now();
  const keep = (note: string): void => {
    conversation.messages = [...before, { role: "assistant", content: text, ...(note && { note }) }];
    conversation.changed = Date.now();
  };
  try {
    for await (const part of reply(ask, headers(), request, figures, controller.signal)) {
      text += part;
      view.show(text);
      if (performance.now() - saved < SAVE_INTERVAL) continue;
      saved = performance.now();
      keep("unfinished");
      void save(conversation);
    }
    if (figures.finishReason === "length") end = "cut: token limit reached";
  } catch (thrown) {
    if (controller.signal.aborted) end = "stopped";
    else error = thrown as Error;
  }
  const arrived = text !== "" || figures.finishReason !== null;
  const note = [figures.describe(), end].filter(Boolean).join(" · ");
  if (arrived) keep(error ? [note, "unfinished"].filter(Boolean).join(" · ") : note);
  if (arrived) await save(conversation);
  if (conversation !== current) return arrived;
  if (arrived) view.finish(text, conversation.messages.at(-1)?.note ?? "", regenerate);
  else view.remove();
  if (error) showReplyError(error);
  else announce(end === "stopped" ? "The reply was stopped" : text);
  return arrived;
}

function showReplyError(error: Error): void {
  const trouble = replyTrouble(error instanceof ReplyError ? error.code : null);
  const text = trouble ? `${sentence(error.message)} ${trouble.advice}` : error.message;
  const restart = { label: "Load the model again", run: () => void pageModel?.restart() };
  showError(trouble?.title ?? "", text, pageModel && trouble?.fatal ? restart : undefined);
}

/** Does `act`, in which a reply to the conversation is made. Returns false while another reply is made. */
async function alone(
  conversation: Conversation,
  act: (controller: AbortController) => Promise<void>,
): Promise<boolean> {
  if (running) return false;
  const mine = { controller: new AbortController(), conversation };
  setRunning(mine);
  try {
    await act(mine.controller);
  } finally {
    if (running === mine) setRunning(null);
  }
  if (conversation !== current) return true;
  await list();
  $("text").focus();
  return true;
}

async function send(): Promise<void> {
  const field = $<HTMLTextAreaElement>("text");
  const text = field.value.trim();
  const conversation = current;
  if (!text || (pageModel && !pageModel.ready)) return;
  await alone(conversation, async (controller) => {
    if (!pageModel && !serverModel) await readServerModel();
    if ((!pageModel && !serverModel) || conversation !== current) return;
    const { messages, title } = conversation;
    const shown = images();
    field.value = "";
    setImages([]);
    for (const again of document.querySelectorAll(".again")) again.remove();
    if (!messages.length && !conversation.named) conversation.title = titleOf(text);
    const message = { role: "user", content: text, ...(shown.length && { images: shown }) } as const;
    conversation.messages = [...messages, message];
    conversation.changed = Date.now();
    showUser(text, shown);
    showWelcome();
    await save(conversation);
    await list();
    if (await answer(conversation, controller)) return;
    // A message without a reply goes back into its field, so that the next request does not send it again.
    Object.assign(conversation, { messages, title });
    if (messages.length) await save(conversation);
    else await conversations.remove(conversation.id);
    if (conversation !== current) return;
    field.value ||= text;
    if (!images().length) setImages(shown);
  });
}

async function regenerate(): Promise<void> {
  const conversation = current;
  const { messages } = conversation;
  if (messages.at(-1)?.role !== "assistant" || (pageModel && !pageModel.ready)) return;
  await alone(conversation, async (controller) => {
    conversation.messages = messages.slice(0, -1);
    for (const box of document.querySelectorAll("#log > .error, #log > .assistant:last-of-type"))
      box.remove();
    if (await answer(conversation, controller)) return;
    conversation.messages = messages;
    if (conversation !== current) return;
    const { content, note } = messages.at(-1) as Message;
    new ReplyView().finish(content, note ?? "", regenerate);
  });
}

// The model.

/** Requests the name of the server's model. */
async function readServerModel(): Promise<void> {
  try {
    const response = await ask("v1/models", { headers: headers() });
    if (!response.ok) throw await responseError(response);
    const { id, input_modalities } = (await response.json()).data[0];
    serverModel = id;
    allowImages(input_modalities?.includes("image") ?? false);
    showState();
  } catch (thrown) {
    showError("", (thrown as Error).message);
    showWelcome();
    openSettings();
  }
}

function showState(): void {
  const name = pageModel?.info?.name ?? serverModel;
  if (name) $("model").textContent = document.title = name;
  const button = $<HTMLButtonElement>("send");
  button.textContent = running ? "Stop" : "Send";
  button.disabled = pageModel !== null && !pageModel.ready && !running;
  $("log").setAttribute("aria-busy", String(running !== null));
  $("state").textContent = worksOffline() ? "Works offline" : "";
}

const worksOffline = (): boolean => pageKept && pageModel?.kept === true;

function openSettings(): void {
  const info = pageModel?.info;
  const facts: [string, string][] = [];
  if (info)
    facts.push(
      ["Model", info.name],
      ["Runs on", runsOn(info.target)],
      ["Context", `${info.context} tokens`],
      ["Without network", worksOffline() ? "works" : "not available"],
    );
  facts.push(["Conversations", conversations.kept ? "kept in this browser" : "lost when the page closes"]);
  fillFacts($("facts"), facts);
  const dialog = $<HTMLDialogElement>("settings");
  if (!dialog.open) dialog.showModal();
}

// Events.

$("form").onsubmit = (event) => {
  event.preventDefault();
  if (running) stop();
  else void send();
};
$("text").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) void send();
};
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("menu-open")) setMenu(false);
  else if (running) stop();
});
$("new").append(icon("plus"), "New chat");
$("new").onclick = () => {
  setMenu(false);
  void open(newConversation());
};
$("menu").append(icon("menu"));
$("menu").onclick = () => setMenu(true);
$("scrim").onclick = () => setMenu(false);
matchMedia("(max-width: 48rem)").addEventListener("change", () => setMenu(false));
$("open-settings").append(icon("settings"));
$("open-settings").onclick = openSettings;
document.querySelector<HTMLAnchorElement>(".skip")!.onclick = (event) => {
  event.preventDefault();
  $("text").focus();
};
for (const id of STORED) {
  input(id).value = localStorage.getItem(`tilewright-${id}`) ?? "";
  input(id).oninput = () => localStorage.setItem(`tilewright-${id}`, input(id).value);
}
input("key").onchange = () => void readServerModel();
$("remove-all").onclick = async () => {
  if (!(await confirmed("Delete all conversations? This cannot be undone."))) return;
  for (const { id } of [...(await conversations.all()), current]) removed.add(id);
  stop();
  await conversations.clear();
  await open(newConversation());
};
$("remove-model").onclick = async () => {
  if (!(await confirmed("Delete the stored model? The next visit downloads it again."))) return;
  const { clearStorage } = await import("../src/llm.js");
  await Promise.all([clearStorage(), forgetOffline()]);
  location.reload();
};
for (const part of document.querySelectorAll<HTMLElement>(pageModel ? ".of-server" : ".of-page"))
  part.hidden = true;

// The start.

const last = sessionStorage.getItem(CURRENT);
await open((await conversations.all()).find(({ id }) => id === last) ?? current);
showState();
if (pageModel) {
  void keepOffline().then((kept) => {
    pageKept = kept;
    showState();
  });
  await pageModel.start();
} else await readServerModel();
