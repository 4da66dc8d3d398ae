/** The metadata of an artifact: the JSON object that all of its readers see. */

import { elementNamed } from "./elements.js";
import { ArtifactError } from "./errors.js";

/** A number, or a formula of symbols such as "4*batch". */
export type Formula = number | string;

export interface TensorEntry {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly Formula[];
  /** The model changes this input. */
  readonly updated?: boolean;
  /** The size of this output is known only after the run. */
  readonly late?: boolean;
}

/** A step of finding the symbols from the sizes of inputs. */
export interface SolverStep {
  readonly input: number;
  readonly dim: number;
  readonly symbol?: string;
  readonly coefficient?: Formula;
  readonly offset?: Formula;
  readonly lower?: number | null;
  readonly upper?: number | null;
  readonly expr?: Formula;
}

export interface FunctionEntry {
  readonly inputs: readonly TensorEntry[];
  readonly outputs: readonly TensorEntry[];
  readonly solver: readonly SolverStep[];
  readonly symbols?: Readonly<Record<string, unknown>>;
}

export interface WeightsEntry {
  /** The file beside the artifact. */
  readonly file: string;
  /** XXH3-128 of the weights, in hexadecimal digits. */
  readonly identity: string;
  readonly bytes: number;
}

export interface Metadata extends FunctionEntry {
  readonly format: number;
  readonly abi: number;
  readonly compiler: string;
  readonly target: { readonly name: string; readonly features?: readonly string[] };
  readonly functions?: Readonly<Record<string, FunctionEntry>>;
  readonly states?: readonly TensorEntry[];
  readonly weights?: WeightsEntry;
  readonly memory?: { readonly arena_bytes?: number };
  readonly [key: string]: unknown;
}

const FORMAT = 1;

/** The metadata in a JSON text. Throws ArtifactError with the name of the file. */
export function parseMetadata(text: string, where: string): Metadata {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new ArtifactError(`${where}: damaged file: its metadata is no JSON text`);
  }
  const metadata = value as Metadata;
  if (!metadata || !Array.isArray(metadata.inputs) || !Array.isArray(metadata.outputs))
    throw new ArtifactError(`${where}: damaged file: its metadata has no inputs or outputs`);
  if (metadata.format !== FORMAT)
    throw new ArtifactError(
      `${where}: its metadata has format ${metadata.format}, this package reads format ${FORMAT}: ` +
        "use the package of the version that compiled the model",
    );
  for (const { inputs, outputs } of Object.values(functionsOf(metadata)))
    for (const { name, dtype } of [...inputs, ...outputs]) elementNamed(dtype, name);
  return metadata;
}

/** The functions of a model by name; a model with one function calls it "main". */
export function functionsOf(metadata: Metadata): Readonly<Record<string, FunctionEntry>> {
  return metadata.functions ?? { main: metadata };
}
