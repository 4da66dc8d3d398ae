/** The folder that `tilewright llm compile MODEL --target webgpu -o folder/` writes. */

import { ArtifactError, asError } from "../errors.js";
import { isStored, readWhole, urlOf } from "../fetching.js";
import type { Shards } from "../weights.js";
import { TOKENIZER_FILES, type TokenizerFiles } from "./tokenizer.js";

/** Bytes that a model takes, by what they are for. */
export interface MemoryNeed {
  readonly weights: number;
  /** Keys and values of all sequences. */
  readonly cache: number;
  /** Values between kernels. */
  readonly working: number;
}

/** A file of weights: its name in the folder, its size in bytes, and XXH3-128 of its bytes. */
export interface WeightsFile {
  readonly file: string;
  readonly bytes: number;
  readonly identity: string;
}

/** The description of a model, which is read before anything large is loaded. */
export interface ModelInfo {
  readonly format: number;
  readonly name: string;
  readonly target: string;
  /** The file of the library. */
  readonly library: string;
  /** The files of the weights. */
  readonly weights: { readonly identity: string; readonly shards: readonly WeightsFile[] };
  /** The folder of the tokenizer's files. */
  readonly tokenizer: string;
  /** The names of these files. */
  readonly tokenizer_files: readonly string[];
  /** The most tokens of a chat. */
  readonly context: number;
  /** Bytes to download. */
  readonly download: number;
  readonly memory: MemoryNeed;
}

export const INFO_FILE = "web-model.json";
const FORMAT = 2;

/** The address of a file in a folder. */
export function inFolder(folder: string | URL, name: string): URL {
  const text = String(folder);
  return new URL(name, urlOf(text.endsWith("/") ? text : `${text}/`));
}

/** Reads what a model needs, before it is loaded. Throws ArtifactError. */
export async function modelInfo(folder: string | URL, signal?: AbortSignal): Promise<ModelInfo> {
  const url = inFolder(folder, INFO_FILE);
  const text = await readText(url, signal);
  let info: ModelInfo;
  try {
    info = JSON.parse(text);
  } catch (thrown) {
    throw new ArtifactError(
      `${url}: not JSON: ${asError(thrown).message}. Is this the folder that 'tilewright llm compile' wrote?`,
    );
  }
  if (info.format !== FORMAT)
    throw new ArtifactError(
      `${url}: its format is ${info.format}, this package reads format ${FORMAT}: use the package of the ` +
        "version that compiled the model",
    );
  return info;
}

/** The addresses of a model's weights. */
export function shardsOf(folder: string | URL, { weights }: ModelInfo): Shards {
  const { identity, shards } = weights;
  return { identity, shards: shards.map((shard) => ({ ...shard, file: inFolder(folder, shard.file) })) };
}

/** Whether the browser's storage has the weights of a model, so that loading it needs no large download. */
export async function isKept(folder: string | URL, info: ModelInfo): Promise<boolean> {
  const stored = shardsOf(folder, info).shards.map(({ file, identity }) => isStored(file as URL, identity));
  return (await Promise.all(stored)).every(Boolean);
}

/** Reads the tokenizer's files. */
export async function tokenizerFiles(
  folder: string | URL,
  info: ModelInfo,
  signal?: AbortSignal,
): Promise<TokenizerFiles> {
  const names = TOKENIZER_FILES.filter((name) => info.tokenizer_files.includes(name));
  const texts = await Promise.all(
    names.map((name) => readText(inFolder(folder, `${info.tokenizer}/${name}`), signal)),
  );
  return Object.fromEntries(names.map((name, k) => [name, texts[k]]));
}

async function readText(url: URL, signal: AbortSignal | undefined): Promise<string> {
  return new TextDecoder().decode(await readWhole(url, signal ? { signal } : {}));
}
