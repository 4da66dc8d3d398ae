/** The list of conversations. */

import { $, confirmed, element, iconButton } from "./dom.js";
import type { Conversation } from "./store.js";

export interface SidebarActions {
  readonly open: (conversation: Conversation) => void;
  readonly rename: (conversation: Conversation, title: string) => void;
  readonly remove: (conversation: Conversation) => void;
}

/** Shows the conversations, of which `current` is open. */
export function showConversations(
  conversations: readonly Conversation[],
  current: string,
  actions: SidebarActions,
): void {
  $("conversations").replaceChildren(
    ...conversations.map((conversation) => item(conversation, conversation.id === current, actions)),
  );
}

function item(conversation: Conversation, current: boolean, actions: SidebarActions): HTMLLIElement {
  const { title } = conversation;
  const open = element("button", "open", title);
  open.type = "button";
  open.title = title;
  open.onclick = () => actions.open(conversation);
  if (current) open.setAttribute("aria-current", "true");
  const line = element("li", current ? "current" : "");
  const rename = iconButton("rename", `Rename ${title}`, () => edit(line, conversation, actions));
  const remove = iconButton("remove", `Delete ${title}`, async () => {
    if (await confirmed(`Delete “${title}”? This cannot be undone.`)) actions.remove(conversation);
    else remove.focus();
  });
  line.append(open, rename, remove);
  return line;
}

/** Puts a field in place of the title. Enter and leaving the field keep the new title, Escape the old one. */
function edit(line: HTMLLIElement, conversation: Conversation, actions: SidebarActions): void {
  const before = [...line.childNodes];
  const field = element("input");
  field.value = conversation.title;
  field.setAttribute("aria-label", "Title");
  let ended = false;
  const end = (keep: boolean): void => {
    if (ended) return;
    ended = true;
    const title = field.value.trim();
    line.replaceChildren(...before);
    (before[1] as HTMLElement).focus();
    if (keep && title && title !== conversation.title) actions.rename(conversation, title);
  };
  field.onkeydown = (event) => {
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") {
      event.stopPropagation();
      end(false);
    }
  };
  field.onblur = () => end(true);
  line.replaceChildren(field);
  field.select();
}

/** Opens or closes the list on small screens, where it lies over the page. */
export function setMenu(open: boolean): void {
  if (document.body.classList.contains("menu-open") === open) return;
  document.body.classList.toggle("menu-open", open);
  $("menu").setAttribute("aria-expanded", String(open));
  $("chat").inert = open;
  $(open ? "new" : "menu").focus();
}
