/** Text to tokens and back, and chats to text, from the files of a model's tokenizer. */

import { Template } from "@huggingface/jinja";
import { Tokenizer as Backend } from "@huggingface/tokenizers";
import { ArtifactError, asError, RequestError } from "../errors.js";

type Json = Record<string, unknown>;

/** The files that a tokenizer is made of; all but the first may be missing. */
export const TOKENIZER_FILES = [
  "tokenizer.json",
  "tokenizer_config.json",
  "generation_config.json",
  "config.json",
  "chat_template.jinja",
] as const;

export type TokenizerFiles = Partial<Record<(typeof TOKENIZER_FILES)[number], string>>;

export type Messages = readonly Readonly<Record<string, unknown>>[];

interface Step {
  type: string;
  decoders?: Step[];
  pattern?: { String?: string; Regex?: string };
  content?: string;
  replacement?: string;
  prefix?: string;
  suffix?: string;
}

export class Tokenizer {
  /** Tokens that end a text. */
  readonly eos: readonly number[];
  /** One more than the greatest token. */
  readonly vocabulary: number;
  /** The vocabulary's entries by token, as the tokenizer writes them. */
  readonly names: readonly string[];
  private readonly bytes: readonly Uint8Array[];
  private readonly special: ReadonlySet<number>;
  private readonly templates: ReadonlyMap<string, string>;
  private readonly variables: Json;
  private readonly backend: Backend;

  /** Throws ArtifactError where a file cannot be read. */
  constructor(files: TokenizerFiles) {
    const json = (name: keyof TokenizerFiles): Json => parsed(files[name], name);
    const tokenizer = json("tokenizer.json");
    if (!files["tokenizer.json"]) throw new ArtifactError("the model's folder has no tokenizer.json");
    const settings = json("tokenizer_config.json");
    try {
      this.backend = new Backend(tokenizer, settings);
    } catch (thrown) {
      throw new ArtifactError(`tokenizer.json cannot be used: ${asError(thrown).message}`);
    }
    const added = (tokenizer.added_tokens ?? []) as { id: number; content: string; special: boolean }[];
    const names: string[] = [];
    for (const [name, id] of vocabularyOf(tokenizer)) names[id] = name;
    const isAdded = new Set(added.map(({ id }) => id));
    for (const { id, content } of added) names[id] = content;
    for (let k = 0; k < names.length; k++) names[k] ??= "";
    this.names = names;
    this.vocabulary = names.length;
    const read = reader(tokenizer.decoder as Step | null);
    const utf8 = new TextEncoder();
    this.bytes = names.map((name, id) => (isAdded.has(id) ? utf8.encode(name) : read(name)));
    this.special = new Set(added.filter(({ special }) => special).map(({ id }) => id));
    this.variables = {};
    for (const [name, value] of Object.entries(settings))
      if (name.endsWith("_token") && value)
        this.variables[name] = typeof value === "object" ? (value as { content: string }).content : value;
    const ends = [json("generation_config.json"), json("config.json")]
      .flatMap(({ eos_token_id }) => eos_token_id as number | number[] | undefined)
      .filter((id): id is number => typeof id === "number");
    const named = this.variables.eos_token;
    if (typeof named === "string") ends.push(names.indexOf(named));
    this.eos = [...new Set(ends)].filter((id) => id >= 0);
    this.templates = templatesOf(settings.chat_template, files["chat_template.jinja"]);
  }

  encode(text: string, special: boolean): number[] {
    return this.backend.encode(text, { add_special_tokens: special }).ids;
  }

  /** The UTF-8 bytes of a token, which may be a part of a character. */
  bytesOf(token: number): Uint8Array {
    return this.bytes[token] ?? new Uint8Array();
  }

  /** Whether a text leaves the token out. */
  isSpecial(token: number): boolean {
    return this.special.has(token);
  }

  decode(tokens: readonly number[]): string {
    const decoder = new Detokenizer(this);
    return decoder.add(tokens) + decoder.finish();
  }

  get hasChatTemplate(): boolean {
    return this.templates.has("default");
  }

  /** A chat as the text format that the model was trained on; it is encoded without special tokens. Throws
   * RequestError where there is no template, or the template rejects the messages. */
  render(messages: Messages, variables: Readonly<Json> = {}): string {
    const source = this.templates.get("default");
    if (source === undefined)
      throw new RequestError("the model has no chat template: send a prompt in place of messages");
    try {
      return new Template(source).render({
        ...this.variables,
        add_generation_prompt: true,
        ...variables,
        messages: messages as Json[],
      });
    } catch (thrown) {
      throw new RequestError(`the chat template rejects the messages: ${asError(thrown).message}`);
    }
  }

  /** How xgrammar reads `names`. */
  get vocabularyKind(): "byte_level" | "byte_fallback" | "raw" {
    const level = new Set(byteLetters().keys());
    const plain = this.names.find((name) => /^[ĠĊ]/.test(name));
    if (plain && [...plain].every((letter) => level.has(letter))) return "byte_level";
    return this.names.includes("<0x0A>") ? "byte_fallback" : "raw";
  }
}

/** Decodes tokens that arrive one after the other; it never returns an incomplete character. */
export class Detokenizer {
  private readonly decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  constructor(private readonly tokenizer: Tokenizer) {}

  /** The text that these tokens complete. */
  add(tokens: readonly number[]): string {
    let text = "";
    for (const token of tokens)
      if (!this.tokenizer.isSpecial(token))
        text += this.decoder.decode(this.tokenizer.bytesOf(token), { stream: true });
    return text;
  }

  /** The remaining text: U+FFFD for an incomplete character. */
  finish(): string {
    return this.decoder.decode();
  }
}

function parsed(text: string | undefined, name: string): Json {
  if (text === undefined) return {};
  try {
    const value = JSON.parse(text) as unknown;
    return value && typeof value === "object" && !Array.isArray(value) ? (value as Json) : {};
  } catch (thrown) {
    throw new ArtifactError(`${name} is not JSON: ${asError(thrown).message}`);
  }
}

function vocabularyOf(tokenizer: Json): [string, number][] {
  const { vocab } = (tokenizer.model ?? {}) as { vocab?: Record<string, number> | [string, number][] };
  if (Array.isArray(vocab)) return vocab.map(([name], id) => [name, id]); // of a Unigram model, with scores
  return Object.entries(vocab ?? {});
}

function templatesOf(stored: unknown, file: string | undefined): Map<string, string> {
  const found = new Map<string, string>();
  if (Array.isArray(stored)) for (const { name, template } of stored) found.set(name, template);
  else if (typeof stored === "string") found.set("default", stored);
  if (file !== undefined) found.set("default", file);
  return found;
}

const KNOWN = new Set([
  "BPEDecoder",
  "ByteFallback",
  "ByteLevel",
  "Fuse",
  "Metaspace",
  "Replace",
  "Strip",
  "WordPiece",
]);

/** The function that maps an entry of the vocabulary to bytes, from the tokenizer's decoder. Changes at the
 * borders of a text are left out. */
function reader(decoder: Step | null): (name: string) => Uint8Array {
  const utf8 = new TextEncoder();
  if (!decoder) return (name) => utf8.encode(` ${name}`);
  const steps = decoder.decoders ?? [decoder];
  const unknown = steps.find(({ type, pattern }) => !KNOWN.has(type) || pattern?.Regex !== undefined);
  if (unknown)
    throw new ArtifactError(
      `the tokenizer's decoder has the step ${unknown.type}, which is not supported for generating text`,
    );
  if (steps.some(({ type }) => type === "ByteLevel")) {
    const letters = byteLetters();
    return (name) => {
      const bytes = [...name].map((letter) => letters.get(letter));
      return bytes.every((byte) => byte !== undefined) ? Uint8Array.from(bytes) : utf8.encode(name);
    };
  }
  const fallback = steps.some(({ type }) => type === "ByteFallback");
  const pieces = steps.find(({ type }) => type === "WordPiece");
  const suffixed = steps.find(({ type }) => type === "BPEDecoder");
  const replaced = steps.flatMap(({ type, pattern, content, replacement }): [string, string][] => {
    if (type === "Replace") return [[pattern?.String ?? "", content ?? ""]];
    return type === "Metaspace" ? [[replacement ?? "▁", " "]] : [];
  });
  return (name) => {
    const byte = fallback ? /^<0x([0-9A-Fa-f]{2})>$/.exec(name) : null;
    if (byte) return Uint8Array.of(Number.parseInt(byte[1] as string, 16));
    let text = name;
    if (pieces) {
      const prefix = pieces.prefix ?? "##";
      text = text.startsWith(prefix) ? text.slice(prefix.length) : ` ${text}`;
    }
    if (suffixed) text = text.replaceAll(suffixed.suffix ?? "</w>", " ");
    for (const [old, now] of replaced) text = text.replaceAll(old, now);
    return utf8.encode(text);
  };
}

/** The characters that represent bytes in byte-level BPE: printable ones unchanged, others from U+0100 on. */
function byteLetters(): Map<string, number> {
  const letters = new Map<string, number>();
  const plain = (byte: number): boolean =>
    (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  for (let byte = 0; byte < 256; byte++) letters.set(String.fromCharCode(plain(byte) ? byte : next++), byte);
  return letters;
}
