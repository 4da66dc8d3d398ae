/** Reading a file of weights, which is a header and a block of bytes (`tilewright.artifact.weights`). */

import { beside, type FetchOptions, type FileSource, readParts, type Sink } from "./fetching.js";
import type { WeightsEntry } from "./metadata.js";

/** Bytes of the header. */
const START = 4096;

/** Reads the block of weights part by part; `sink` gets positions in the block. Throws ArtifactError where
 * the file is missing, damaged, or of another model. */
export async function readWeights(
  entry: WeightsEntry,
  artifact: FileSource,
  weights: FileSource | undefined,
  sink: Sink,
  options: FetchOptions,
): Promise<void> {
  await readParts(
    weights ?? beside(artifact, entry.file),
    async (part, at) => {
      const header = Math.max(0, START - at);
      if (part.length > header) await sink(part.subarray(header), at + header - START);
    },
    { ...options, identity: entry.identity, from: START, bytes: START + entry.bytes },
  );
}
