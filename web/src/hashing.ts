/** XXH3-128 (https://xxhash.com), by which artifacts and weights are identified. */

import { createXXHash128 } from "hash-wasm";

export interface Hash {
  update(bytes: Uint8Array): void;
  /** The value in hexadecimal digits, most significant first. */
  digest(): string;
}

export async function newHash(): Promise<Hash> {
  const hasher = await createXXHash128();
  return { update: (bytes) => void hasher.update(bytes), digest: () => hasher.digest("hex") };
}

export async function hashOf(bytes: Uint8Array): Promise<string> {
  const hash = await newHash();
  hash.update(bytes);
  return hash.digest();
}
