/** Errors in words for the user of the page. */

export interface Trouble {
  readonly title: string;
  readonly advice: string;
  /** Whether the model must be loaded again. */
  readonly fatal: boolean;
}

const MEMORY: Trouble = {
  title: "There is not enough memory for the model",
  advice:
    "Close other tabs and programs, and load the model again. A smaller model, or one compiled with a " +
    "smaller context, needs less.",
  fatal: true,
};

const TROUBLES: Readonly<Record<string, Trouble>> = {
  DeviceError: {
    title: "The GPU cannot run the model",
    advice:
      "Close other pages that use the GPU and load the model again. A browser without WebGPU needs a model " +
      "that was compiled for wasm32.",
    fatal: true,
  },
  MemoryError: MEMORY,
  RangeError: MEMORY, // of an array that cannot be allocated
  ArtifactError: {
    title: "The files of the model cannot be loaded",
    advice:
      "Load it again. If the error remains, the files on the server are incomplete or of different " +
      "versions: the site's owner must upload the whole folder again. The file that failed was not kept.",
    fatal: true,
  },
  AbortError: {
    title: "Loading was cancelled",
    advice: "The file that was unfinished is not kept; files that were complete are.",
    fatal: true,
  },
  context_length_exceeded: {
    title: "The chat is too long for the model",
    advice: "Shorten the message, or begin a new chat.",
    fatal: false,
  },
};

const OFFLINE: Trouble = {
  title: "There is no network",
  advice: "Some files of the model are not in the browser's storage. Connect, and load it again.",
  fatal: true,
};

const UNKNOWN: Trouble = {
  title: "The model stopped with an error",
  advice: "Load the model again, or reload the page.",
  fatal: true,
};

/** The words for an error of loading, by the name of its class. */
export function troubleOf(name: string): Trouble {
  if (name === "ArtifactError" && !navigator.onLine) return OFFLINE;
  return TROUBLES[name] ?? UNKNOWN;
}

/** The words for an error of a reply, or null where its message says enough. */
export function replyTrouble(code: string | null): Trouble | null {
  if (code === null) return null;
  return TROUBLES[code] ?? (code.endsWith("Error") ? UNKNOWN : null);
}

/** A message with a full stop, which messages of errors do not have. */
export const sentence = (message: string): string => (/[.!?]$/.test(message) ? message : `${message}.`);
