/** Files from the network, from the browser's storage, from disk (Node, Deno), and from memory. */

import { AbortError, ArtifactError, asError } from "./errors.js";
import { newHash } from "./hashing.js";

/** A file: its address or path, its bytes, or a File or Blob that the user chose. */
export type FileSource = string | URL | ArrayBuffer | ArrayBufferView | Blob;

export interface Progress {
  /** The file that is being read. */
  readonly file: string;
  readonly loaded: number; // bytes
  /** Bytes; 0 where the server does not tell the size. */
  readonly total: number;
  /** The bytes come from the browser's storage. */
  readonly cached: boolean;
}

export interface FetchOptions {
  readonly onProgress?: (progress: Progress) => void;
  readonly signal?: AbortSignal;
  /** Keep the file in the browser's storage. The default is true where there is a storage. */
  readonly cache?: boolean;
  /** XXH3-128 of the file from byte `from` on; another content is refused and not kept. */
  readonly identity?: string;
  readonly from?: number;
  /** The bytes that the file must have. */
  readonly bytes?: number;
}

/** Receives a part of a file that begins at byte `at`. The bytes may change after the call. */
export type Sink = (part: Uint8Array, at: number) => void | Promise<void>;

const STORAGE = "tilewright-files-1";

const isWeb = (url: URL): boolean => url.protocol === "http:" || url.protocol === "https:";

/** The address of a source: relative to the page, or in Node and Deno to the working folder. */
export function urlOf(source: string | URL): URL {
  const base = (globalThis as { location?: { href?: string } }).location?.href;
  try {
    return new URL(source, base);
  } catch {
    const path = String(source); // in Node and Deno, where pages have addresses
    return new URL(`file://${path.startsWith("/") ? "" : workingFolder()}${path}`);
  }
}

/** The folder of relative paths, with a slash at its end. */
function workingFolder(): string {
  const { process, Deno } = globalThis as {
    process?: { cwd?(): string };
    Deno?: { cwd(): string };
  };
  return `${process?.cwd?.() ?? Deno?.cwd() ?? ""}/`;
}

/** A name for messages. */
export function nameOf(source: FileSource): string {
  if (typeof source === "string") return source;
  if (source instanceof URL) return source.href;
  return (source as { name?: string }).name ?? "the artifact";
}

/** The address of the file `name` beside `source`. Throws ArtifactError where `source` has no address. */
export function beside(source: FileSource, name: string): URL {
  if (typeof source === "string" || source instanceof URL) return new URL(name, urlOf(source));
  throw new ArtifactError(`the weights of this model are in the file ${name}: pass it as 'weights'`);
}

/** The whole file in memory. */
export async function readWhole(source: FileSource, options: FetchOptions = {}): Promise<Uint8Array> {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source))
    return new Uint8Array(source.buffer as ArrayBuffer, source.byteOffset, source.byteLength);
  const parts: Uint8Array[] = [];
  let size = 0;
  await readParts(
    source,
    (part, at) => {
      if (at === 0) parts.length = size = 0; // a damaged copy in the storage is followed by the file itself
      parts.push(new Uint8Array(part)); // a copy, which slice of a Buffer of Node is not
      size += part.length;
    },
    options,
  );
  if (parts.length === 1) return parts[0] as Uint8Array;
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Reads a file part by part. A file with another content than its identity is refused at its end. */
export async function readParts(source: FileSource, sink: Sink, options: FetchOptions = {}): Promise<void> {
  options.signal?.throwIfAborted();
  try {
    if (source instanceof Blob) return await consume(source.stream(), source.size, source, sink, options);
    if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) {
      const bytes = await readWhole(source);
      return await consume(onePart(bytes), bytes.length, source, sink, options);
    }
    const url = urlOf(source);
    if (!isWeb(url)) return await readFromDisk(url, source, sink, options);
    return await readFromWeb(url, source, sink, options);
  } catch (thrown) {
    if (options.signal?.aborted) throw new AbortError(`${nameOf(source)}: reading was aborted`);
    throw thrown;
  }
}

async function* onePart(bytes: Uint8Array): AsyncIterable<Uint8Array> {
  yield bytes;
}

async function readFromDisk(url: URL, source: FileSource, sink: Sink, options: FetchOptions): Promise<void> {
  try {
    const { open } = await import("node:fs/promises");
    const file = await open(url);
    try {
      const { size } = await file.stat();
      await consume(file.createReadStream({ highWaterMark: 1 << 20 }), size, source, sink, options);
    } finally {
      await file.close().catch(() => undefined);
    }
  } catch (thrown) {
    if (thrown instanceof ArtifactError || options.signal?.aborted) throw thrown;
    throw new ArtifactError(`${nameOf(source)}: cannot be read: ${asError(thrown).message}`);
  }
}

async function readFromWeb(url: URL, source: FileSource, sink: Sink, options: FetchOptions): Promise<void> {
  const storage = options.cache === false || !options.identity ? null : await openStorage();
  const key = keyOf(url, options.identity ?? "");
  const kept = await storage?.match(key);
  if (kept?.body) {
    try {
      return await consume(kept.body, options.bytes ?? 0, source, sink, options, true);
    } catch (thrown) {
      // A damaged copy is fetched again. A reader that failed is not the storage's fault.
      if (!(thrown instanceof ArtifactError)) throw thrown;
      await storage?.delete(key);
    }
  }
  const broken = new AbortController();
  const signals = options.signal ? [options.signal, broken.signal] : [broken.signal];
  // The browser's own cache may hold a file of before, and would hold a second copy of what is stored.
  const cache = storage ? "no-store" : "no-cache";
  const response = await request(url, source, { cache, signal: AbortSignal.any(signals) }, options.signal);
  const size = Number(response.headers.get("content-length") ?? 0);
  const body = response.body as ReadableStream<Uint8Array>;
  if (!storage) return await consume(body, size, source, sink, options);
  const [mine, stored] = body.tee();
  // The entry appears when its body is complete, so a download that ends early leaves nothing.
  const keeping = storage.put(key, new Response(stored)).then(
    () => true,
    () => false, // the storage is full: the model runs all the same
  );
  try {
    await consume(mine, size, source, sink, options);
    if (await keeping) await deleteOthers(storage, key);
  } catch (thrown) {
    broken.abort();
    await keeping;
    await storage.delete(key);
    throw thrown;
  }
}

/** Deletes files that this address had before. */
async function deleteOthers(storage: Cache, key: URL): Promise<void> {
  const address = (url: string | URL): string => {
    const plain = new URL(url);
    plain.searchParams.delete("tilewright");
    return plain.href;
  };
  for (const { url } of await storage.keys(key, { ignoreSearch: true }))
    if (url !== key.href && address(url) === address(key)) await storage.delete(url);
}

async function openStorage(): Promise<Cache | null> {
  try {
    return await (globalThis as { caches?: CacheStorage }).caches!.open(STORAGE);
  } catch {
    return null; // Node, or a page without a secure context
  }
}

/** Whether the browser's storage has a file. Its content is checked when it is read. */
export async function isStored(source: string | URL, identity: string): Promise<boolean> {
  const storage = await openStorage();
  return (await storage?.match(keyOf(urlOf(source), identity))) !== undefined;
}

/** The address under which the storage has a file. */
function keyOf(url: URL, identity: string): URL {
  const key = new URL(url);
  key.hash = "";
  key.searchParams.set("tilewright", identity);
  return key;
}

/** Deletes all files that `load` has kept in the browser's storage. */
export async function clearStorage(): Promise<void> {
  await (globalThis as { caches?: CacheStorage }).caches?.delete(STORAGE);
}

async function request(
  url: URL,
  source: FileSource,
  how: RequestInit,
  caller: AbortSignal | undefined,
): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, how);
  } catch (thrown) {
    if (caller?.aborted) throw thrown;
    throw new ArtifactError(
      `${nameOf(source)}: cannot be downloaded: ${asError(thrown).message}. Is the server up, and does it ` +
        "allow this page to read the file (CORS)?",
    );
  }
  if (!response.ok || !response.body)
    throw new ArtifactError(
      `${nameOf(source)}: the server answered ${response.status} ${response.statusText}`.trimEnd(),
    );
  return response;
}

async function consume(
  stream: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>,
  total: number,
  source: FileSource,
  sink: Sink,
  options: FetchOptions,
  cached = false,
): Promise<void> {
  const name = nameOf(source);
  const hash = options.identity ? await newHash() : null;
  const from = options.from ?? 0;
  let at = 0;
  const end = (): void => {
    if (options.bytes !== undefined && at !== options.bytes)
      throw new ArtifactError(`${name}: ${options.bytes} bytes expected, ${at} received`);
    if (hash && hash.digest() !== options.identity)
      throw new ArtifactError(
        `${name}: the file is damaged or belongs to another model: its checksum is not the one that the ` +
          "model was compiled with",
      );
  };
  for await (const part of partsOf(stream, name, options.signal)) {
    hash?.update(part.subarray(Math.max(0, Math.min(part.length, from - at))));
    await sink(part, at);
    at += part.length;
    options.onProgress?.({ file: name, loaded: at, total: Math.max(total, at), cached });
  }
  end();
}

/** The parts of a stream; browsers cannot all iterate over one. */
async function* partsOf(
  stream: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>,
  name: string,
  signal: AbortSignal | undefined,
): AsyncGenerator<Uint8Array> {
  if (!("getReader" in stream)) {
    for await (const part of stream) {
      signal?.throwIfAborted();
      yield part;
    }
    return;
  }
  const reader = stream.getReader();
  let ended = false;
  try {
    for (;;) {
      signal?.throwIfAborted();
      const { done, value } = await reader.read();
      if (done) {
        ended = true;
        return;
      }
      yield value;
    }
  } catch (thrown) {
    ended = true;
    if (signal?.aborted) throw thrown;
    throw new ArtifactError(`${name}: the connection broke: ${asError(thrown).message}`);
  } finally {
    if (!ended) await reader.cancel().catch(() => undefined);
    reader.releaseLock();
  }
}
