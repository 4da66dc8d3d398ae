/** The form of artifacts: the signature at the end, the files of an archive, the metadata of a module. */

import { ArtifactError } from "./errors.js";
import { hashOf } from "./hashing.js";

const MAGIC = "TILEWRT\x01";
const FORMAT = 1;
const TRAILER = 64; // bytes

const ascii = (bytes: Uint8Array): string => String.fromCharCode(...bytes);

/** Where the metadata stands in a file whose trailer tells it. */
export interface Place {
  readonly at: number;
  readonly bytes: number;
}

/** Checks that a file is whole; `tilewright.artifact.trailer` describes the trailer. Throws ArtifactError. */
export async function verify(file: Uint8Array, where: string): Promise<Place> {
  const start = file.length - TRAILER;
  if (start < 0 || ascii(file.subarray(start, start + 8)) !== MAGIC)
    throw new ArtifactError(
      `${where}: not a Tilewright artifact: the signature at its end is missing. It is another file, or ` +
        "truncated, or the server changed it",
    );
  const view = new DataView(file.buffer, file.byteOffset + start, TRAILER);
  const format = view.getUint32(8, true);
  if (format !== FORMAT)
    throw new ArtifactError(
      `${where}: its format is version ${format}, this package reads version ${FORMAT}: compile the model ` +
        "again or use a matching package",
    );
  const length = Number(view.getBigUint64(16, true));
  if (length !== start)
    throw new ArtifactError(
      `${where}: damaged file: ${length} bytes expected before its end, ${start} found`,
    );
  if ((await hashOf(file.subarray(0, start))) !== hashAt(file, start + 24))
    throw new ArtifactError(`${where}: damaged file: its checksum does not match its contents`);
  return { at: Number(view.getBigUint64(40, true)), bytes: Number(view.getBigUint64(48, true)) };
}

/** A hash of 16 bytes in hexadecimal digits. */
export function hashAt(bytes: Uint8Array, at: number): string {
  return Array.from(bytes.subarray(at, at + 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function isModule(file: Uint8Array): boolean {
  return ascii(file.subarray(0, 4)) === "\0asm";
}

export function isArchive(file: Uint8Array): boolean {
  return ascii(file.subarray(257, 262)) === "ustar";
}

const RECORD = 512; // bytes of a block of a tar file

/** The files of a tar archive by name, as views of its bytes. */
export function filesOf(archive: Uint8Array, where: string): Map<string, Uint8Array> {
  const files = new Map<string, Uint8Array>();
  const decoder = new TextDecoder();
  const text = (at: number, size: number): string =>
    decoder.decode(archive.subarray(at, at + size)).replace(/\0.*$/s, "");
  let longName = "";
  for (let at = 0; at + RECORD <= archive.length && archive[at] !== 0; ) {
    const size = Number.parseInt(text(at + 124, 12).trim(), 8);
    const body = at + RECORD;
    if (!Number.isSafeInteger(size) || body + size > archive.length)
      throw new ArtifactError(`${where}: damaged file: its list of files cannot be read`);
    const kind = String.fromCharCode(archive[at + 156] as number);
    const prefix = text(at + 345, 155);
    const bytes = archive.subarray(body, body + size);
    if (kind === "L") longName = decoder.decode(bytes).replace(/\0.*$/s, "");
    else if (kind === "x") longName = /\d+ path=(.*)\n/.exec(decoder.decode(bytes))?.[1] ?? longName;
    else {
      const name = longName || (prefix ? `${prefix}/` : "") + text(at, 100);
      longName = "";
      if (kind === "0" || kind === "\0") files.set(name, bytes);
    }
    at = body + Math.ceil(size / RECORD) * RECORD;
  }
  return files;
}
