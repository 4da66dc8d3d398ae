/** Reads the fields of a request. Unknown fields are refused: ignoring one silently gives a wrong answer. */

import { RequestError } from "../errors.js";

/** Fields that do not change an answer. */
const UNREAD = new Set(["model", "user", "metadata", "store", "service_tier", "stream", "stream_options"]);

export class Fields {
  private readonly read = new Set<string>();

  constructor(private readonly body: Readonly<Record<string, unknown>>) {
    if (typeof body !== "object" || body === null || Array.isArray(body))
      throw new RequestError("the request is no object");
  }

  /** A number between two bounds, or `other` where the field is missing or null. */
  number(name: string, least: number, most: number, other: number): number {
    const value = this.value(name);
    if (value === undefined) return other;
    if (typeof value !== "number" || !(value >= least && value <= most))
      throw new RequestError(`'${name}' is ${JSON.stringify(value)}; it must be ${least} to ${most}`, name);
    return value;
  }

  /** A whole number between two bounds; undefined where the field is missing. */
  integer(name: string, least: number, most: number): number | undefined {
    const value = this.value(name);
    if (value === undefined) return undefined;
    if (!Number.isSafeInteger(value) || (value as number) < least || (value as number) > most)
      throw new RequestError(
        `'${name}' is ${JSON.stringify(value)}; it must be a whole number from ${least} to ${most}`,
        name,
      );
    return value as number;
  }

  boolean(name: string): boolean {
    const value = this.value(name);
    if (value !== undefined && typeof value !== "boolean")
      throw new RequestError(`'${name}' must be true or false`, name);
    return value === true;
  }

  object(name: string): Readonly<Record<string, unknown>> | undefined {
    const value = this.value(name);
    if (value !== undefined && (typeof value !== "object" || value === null || Array.isArray(value)))
      throw new RequestError(`'${name}' must be an object`, name);
    return value as Readonly<Record<string, unknown>> | undefined;
  }

  /** A text, or a list of texts. */
  texts(name: string, most: number): string[] {
    const value = this.value(name);
    const listed = value === undefined ? [] : Array.isArray(value) ? value : [value];
    if (!listed.every((text) => typeof text === "string" && text) || listed.length > most)
      throw new RequestError(
        `'${name}' must be a text, or a list of at most ${most} texts, none empty`,
        name,
      );
    return listed as string[];
  }

  /** The field as it is; undefined where it is missing or null. */
  value(name: string): unknown {
    this.read.add(name);
    return this.body[name] ?? undefined;
  }

  /** Refuses the fields that were not read. */
  refuseOthers(): void {
    const other = Object.keys(this.body).find(
      (name) => !this.read.has(name) && !UNREAD.has(name) && this.body[name] != null,
    );
    if (other !== undefined) throw new RequestError(`unknown parameter: '${other}'`, other);
  }
}
