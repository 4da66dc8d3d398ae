/** Conversations in the browser's storage (IndexedDB); in memory where the browser has none. */

export interface Message {
  readonly role: "user" | "assistant";
  readonly content: string;
  /** Images as `data:` URLs, before the content. */
  readonly images?: readonly string[];
  /** Figures of a reply. */
  readonly note?: string;
}

export interface Conversation {
  readonly id: string;
  title: string;
  /** Whether the user has chosen the title. */
  named: boolean;
  /** Time of the last change, in milliseconds. */
  changed: number;
  messages: Message[];
}

const DATABASE = "tilewright-chat";
const STORE = "conversations";

export class Conversations {
  private readonly memory = new Map<string, Conversation>();

  private constructor(private readonly database: IDBDatabase | null) {}

  static async open(): Promise<Conversations> {
    try {
      const request = indexedDB.open(DATABASE, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
      return new Conversations(await done(request));
    } catch {
      return new Conversations(null); // the browser's settings forbid it
    }
  }

  /** Whether they remain when the page is closed. */
  get kept(): boolean {
    return this.database !== null;
  }

  /** All of them, the last changed first. */
  async all(): Promise<Conversation[]> {
    const found = this.database
      ? ((await done(this.store("readonly").getAll())) as Conversation[])
      : [...this.memory.values()];
    return found.sort((a, b) => b.changed - a.changed);
  }

  async put(conversation: Conversation): Promise<void> {
    const copy = structuredClone(conversation);
    if (this.database) await done(this.store("readwrite").put(copy));
    else this.memory.set(copy.id, copy);
  }

  async remove(id: string): Promise<void> {
    if (this.database) await done(this.store("readwrite").delete(id));
    else this.memory.delete(id);
  }

  async clear(): Promise<void> {
    if (this.database) await done(this.store("readwrite").clear());
    else this.memory.clear();
  }

  private store(mode: IDBTransactionMode): IDBObjectStore {
    return (this.database as IDBDatabase).transaction(STORE, mode).objectStore(STORE);
  }
}

export function newConversation(): Conversation {
  return { id: crypto.randomUUID(), title: "New chat", named: false, changed: Date.now(), messages: [] };
}

/** A title from the first message. */
export function titleOf(text: string): string {
  const line = text.trim().split("\n")[0] as string;
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
