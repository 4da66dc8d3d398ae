/** The errors that this package throws. Their names and messages are those of Tilewright in Python. */

export class TilewrightError extends Error {
  override name = "TilewrightError";
}

/** A name, a rank, a size or an element type of an argument does not fit the model. */
export class ShapeError extends TilewrightError {
  override name = "ShapeError";
}

/** A file cannot be read or run here: it is missing, damaged, of another version, or of another model. */
export class ArtifactError extends TilewrightError {
  override name = "ArtifactError";
}

/** WebGPU is missing, has no adapter, lost its device, or reports an error. */
export class DeviceError extends TilewrightError {
  override name = "DeviceError";
}

/** An index in a run of a model lies outside of its dimension. */
export class OutOfRangeError extends TilewrightError {
  override name = "OutOfRangeError";
}

/** A run of a model divided an integer by zero. */
export class DivisionError extends TilewrightError {
  override name = "DivisionError";
}

/** There is not as much memory as the model needs. */
export class MemoryError extends TilewrightError {
  override name = "MemoryError";
}

/** The caller's `AbortSignal` ended a download or a run. */
export class AbortError extends TilewrightError {
  override name = "AbortError";
}

/** A request to a language model is not valid; `param` names the field at fault, `code` is for programs. */
export class RequestError extends TilewrightError {
  override name = "RequestError";

  constructor(
    message: string,
    readonly param: string | null = null,
    readonly code: string | null = null,
  ) {
    super(message);
  }
}

/** A bug of the compiler or of this package. */
export class InternalError extends TilewrightError {
  override name = "InternalError";
}

type Kind = new (message: string) => TilewrightError;

// Minifiers rename classes, so the names stand here as text.
const KINDS: Readonly<Record<string, Kind>> = {
  TilewrightError,
  ShapeError,
  ArtifactError,
  DeviceError,
  OutOfRangeError,
  DivisionError,
  MemoryError,
  AbortError,
  RequestError,
  InternalError,
};

/** The classes for the values of `tw_status` in tilewright.h. */
const STATUSES: Readonly<Record<number, Kind>> = {
  1: ShapeError,
  2: ShapeError,
  3: MemoryError,
  4: ArtifactError,
  5: ArtifactError,
  6: ArtifactError,
  7: TilewrightError,
  8: TilewrightError,
  9: ArtifactError,
  10: OutOfRangeError,
  11: DivisionError,
  12: DeviceError,
};

/** The error for a `tw_status` and the message of `tw_last_error`. */
export function errorForStatus(status: number, message: string): TilewrightError {
  const kind = STATUSES[status] ?? InternalError;
  return new kind(message || `the runtime failed with status ${status}`);
}

/** The error with this name, as another thread threw it. */
export function errorNamed(
  name: string,
  message: string,
  param: string | null = null,
  code: string | null = null,
): Error {
  if (name === "RequestError") return new RequestError(message, param, code);
  if (Object.hasOwn(KINDS, name)) return new (KINDS[name] as Kind)(message);
  const error = new Error(message);
  error.name = name;
  return error;
}

/** Any thrown value as an Error. */
export function asError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown));
}
