/** Reading a file of weights, which is a header and a block of bytes (`tilewright.artifact.weights`). */

import { ArtifactError } from "./errors.js";
import { beside, type FetchOptions, type FileSource, nameOf, readParts, type Sink } from "./fetching.js";
import type { WeightsEntry } from "./metadata.js";

/** Bytes of the header. */
const START = 4096;

/** A part of a file of weights in a file of its own. */
export interface Shard {
  readonly file: FileSource;
  readonly bytes: number;
  /** XXH3-128 of the shard's bytes, in hexadecimal digits. */
  readonly identity: string;
}

/** A file of weights in shards, in order. */
export interface Shards {
  /** The identity of the weights, by which the library refuses those of another compilation. */
  readonly identity: string;
  readonly shards: readonly Shard[];
}

/** A part of the file, and the byte of it from which on its identity counts. */
type Part = Shard & { readonly from: number };

/** Reads the block of weights part by part; `sink` gets positions in the block. Each shard is checked and
 * kept in the browser's storage for itself, so a download that was interrupted goes on with the shard that it
 * had begun. Throws ArtifactError where a file is missing, damaged, or of another model. */
export async function readWeights(
  entry: WeightsEntry,
  artifact: FileSource,
  weights: FileSource | Shards | undefined,
  sink: Sink,
  options: FetchOptions,
): Promise<void> {
  const { onProgress } = options;
  const total = START + entry.bytes;
  let start = 0;
  for (const { file, bytes, identity, from } of partsOf(entry, artifact, weights)) {
    const first = start;
    await readParts(
      file,
      async (part, at) => {
        const header = Math.max(0, START - first - at);
        if (part.length > header) await sink(part.subarray(header), first + at + header - START);
      },
      {
        ...options,
        identity,
        from,
        bytes,
        ...(onProgress && {
          onProgress: (progress) => onProgress({ ...progress, loaded: first + progress.loaded, total }),
        }),
      },
    );
    start += bytes;
  }
}

function partsOf(
  entry: WeightsEntry,
  artifact: FileSource,
  weights: FileSource | Shards | undefined,
): readonly Part[] {
  const total = START + entry.bytes;
  if (!isShards(weights))
    return [
      { file: weights ?? beside(artifact, entry.file), bytes: total, identity: entry.identity, from: START },
    ];
  const { identity, shards } = weights;
  if (identity !== entry.identity || shards.reduce((sum, { bytes }) => sum + bytes, 0) !== total)
    throw new ArtifactError(
      `${nameOf(artifact)}: the list of its weights belongs to another model or another compilation: put ` +
        "all files of one compilation on the server",
    );
  return shards.map((shard) => ({ ...shard, from: 0 }));
}

function isShards(weights: FileSource | Shards | undefined): weights is Shards {
  return typeof weights === "object" && "shards" in weights;
}
