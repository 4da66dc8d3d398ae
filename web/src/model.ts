/** A loaded model. */

import type { Backend, BackendName, RunResult } from "./backend.js";
import { type ElementArray, elementNamed } from "./elements.js";
import { ArtifactError, ShapeError, TilewrightError } from "./errors.js";
import { functionsOf, type Metadata, type TensorEntry } from "./metadata.js";
import { argumentsOf, bytesOf, product, type Tensor, type Tensors } from "./tensors.js";

/** Names of a model's inputs and outputs, which a program may state for its own model:
 * `load<{ inputs: "ids" | "mask"; outputs: "embedding" }>(...)`. */
export interface Signature {
  readonly inputs: string;
  readonly outputs: string;
}

export type Results<S extends Signature> = Readonly<Record<S["outputs"], Tensor>>;

/** A model with its memory and its states. Calls follow one another in the order in which they are made. */
export class Model<S extends Signature = Signature> {
  private turn: Promise<unknown> = Promise.resolve();
  private closed = false;

  constructor(
    private readonly backend: Backend,
    private readonly where: string,
  ) {}

  /** The kind of artifact that runs. */
  get target(): BackendName {
    return this.backend.name;
  }

  /** The number of threads that run it. */
  get threads(): number {
    return this.backend.threads;
  }

  /** The metadata of the artifact, as `library.metadata` in Python. */
  get metadata(): Metadata {
    return this.backend.metadata;
  }

  /** The inputs of the function `main`: names, element types, and sizes, which may be formulas. */
  get inputs(): readonly TensorEntry[] {
    return this.metadata.inputs;
  }

  /** The outputs of the function `main`. */
  get outputs(): readonly TensorEntry[] {
    return this.metadata.outputs;
  }

  /** The names of the functions. */
  get functions(): readonly string[] {
    return Object.keys(functionsOf(this.metadata));
  }

  /** The names of the states. */
  get states(): readonly string[] {
    return (this.metadata.states ?? []).map(({ name }) => name);
  }

  /** Runs the function `main`.
   *
   * Throws ShapeError for a wrong argument; OutOfRangeError, DivisionError, DeviceError or MemoryError where
   * the run fails. */
  run(inputs: Readonly<Record<S["inputs"], Tensor>>): Promise<Results<S>> {
    return this.call("main", inputs as Tensors) as Promise<Results<S>>;
  }

  /** Runs the function `name`. Inputs that the model changes are changed in the arrays that were passed. */
  async call(name: string, inputs: Tensors = {}): Promise<Tensors> {
    const entry = functionsOf(this.metadata)[name];
    if (!entry || !Object.hasOwn(functionsOf(this.metadata), name))
      throw new TilewrightError(
        `${this.where}: no function '${name}'; its functions are ${this.functions.join(", ")}`,
      );
    const given = argumentsOf(inputs, entry.inputs);
    return this.inTurn(async () => {
      const [result] = await this.backend.run([{ name, inputs: given }]);
      const { outputs, updated } = result as RunResult;
      for (const [k, { data }] of updated) bytesOf((given[k] as Tensor).data).set(bytesOf(data));
      return Object.fromEntries(entry.outputs.map((spec, k) => [spec.name, outputs[k] as Tensor]));
    });
  }

  /** A copy of the state `name`. */
  async state(name: string): Promise<Tensor> {
    const index = this.stateIndex(name);
    return this.inTurn(() => this.backend.readState(index));
  }

  /** Replaces the state `name`. `data`: all elements, of the state's type. */
  async setState(name: string, data: ElementArray): Promise<void> {
    const index = this.stateIndex(name);
    const spec = (this.metadata.states as readonly TensorEntry[])[index] as TensorEntry;
    const { array } = elementNamed(spec.dtype, name);
    const count = product(spec.shape as readonly number[]);
    if (!(data instanceof array) || data.length !== count)
      throw new ShapeError(
        `state '${name}': expected ${array.name} of ${count} elements, got ` +
          `${(data as object)?.constructor?.name} of ${data?.length}`,
      );
    return this.inTurn(() => this.backend.writeState(index, bytesOf(data)));
  }

  /** Gives all states their first values. */
  async reset(): Promise<void> {
    return this.inTurn(() => this.backend.reset());
  }

  /** Frees the model's memory after the calls that are under way. Later calls throw ArtifactError. */
  async dispose(): Promise<void> {
    if (this.closed) return;
    const closing = this.inTurn(() => this.backend.close());
    this.closed = true;
    await closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose();
  }

  private stateIndex(name: string): number {
    const index = this.states.indexOf(name);
    if (index < 0)
      throw new TilewrightError(
        `${this.where}: no state '${name}'; its states are ${this.states.join(", ") || "none"}`,
      );
    return index;
  }

  private inTurn<T>(act: () => Promise<T>): Promise<T> {
    if (this.closed) throw new ArtifactError(`${this.where}: this model has been disposed of: load it again`);
    const mine = this.turn.then(act);
    this.turn = mine.catch(() => undefined);
    return mine;
  }
}
