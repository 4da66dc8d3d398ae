/** Runs the host program of an archive for WebGPU. */

import { ArtifactError, DivisionError, OutOfRangeError, TilewrightError } from "../errors.js";
import { evaluate } from "../formulas.js";
import type { Formula } from "../metadata.js";
import type { Commands, Place } from "./device.js";
import type { Carried, ProgramFunction, Step } from "./program.js";

const ERRORS = { program: TilewrightError, index: OutOfRangeError, division: DivisionError };
const UNBOUNDED = 2 ** 31 - 1;

/** Buffers that a model keeps between runs, by what they are for. */
export type Memory = Map<string, Place>;

/** One run of a function. */
export class Run {
  readonly places: Place[] = [];

  constructor(
    private readonly commands: Commands,
    private readonly weights: readonly Place[],
    private readonly memory: Memory,
    private readonly name: string,
    { buffers }: ProgramFunction,
    private readonly symbols: Record<string, number>,
  ) {
    buffers.forEach((sizes, number) => {
      this.keep(`planned ${number}`, Math.max(...this.values(sizes)));
    });
  }

  /** The kept buffer `key`, with room for so many bytes. */
  keep(key: string, size: number, content = false): Place {
    const place = this.commands.atLeast(this.memory.get(key), size, content);
    this.memory.set(key, place);
    return place;
  }

  /** Runs steps. A promise is waited for only where a step needs a number from the device. */
  async steps(steps: readonly Step[]): Promise<void> {
    for (const step of steps) {
      const wait = this.step(step);
      if (wait) await wait;
    }
  }

  private place(number: number): Place {
    const place = this.places[number];
    if (!place) throw new ArtifactError(`the program of function '${this.name}' has no buffer ${number}`);
    return place;
  }

  private placesOf(numbers: readonly number[]): Place[] {
    return numbers.map((number) => this.place(number));
  }

  private value(formula: Formula): number {
    return evaluate(formula, this.symbols);
  }

  private values(formulas: readonly Formula[]): number[] {
    return formulas.map((formula) => this.value(formula));
  }

  /** The number in a buffer, after all commands so far. */
  private async read(number: number): Promise<number> {
    const [bytes] = await this.commands.read([{ place: this.place(number), bytes: 4 }]);
    return new Int32Array((bytes as Uint8Array<ArrayBuffer>).buffer)[0] as number;
  }

  /** The condition in a buffer, after all commands so far. */
  private async holds(number: number): Promise<boolean> {
    const [bytes] = await this.commands.read([{ place: this.place(number), bytes: 1 }]);
    return bytes?.[0] !== 0;
  }

  private step(step: Step): Promise<void> | undefined {
    if ("kernel" in step) {
      this.commands.dispatch(
        step.kernel,
        this.placesOf(step.buffers),
        this.values(step.sizes),
        step.dims.map((symbol) => this.symbols[symbol] as number),
        this.values(step.grid) as [number, number, number],
      );
    } else if ("constant" in step) this.places[step.to] = this.weights[step.constant] as Place;
    else if ("alloc" in step) this.places[step.to] = this.memory.get(`planned ${step.alloc}`) as Place;
    else if ("block" in step) {
      const key = `block ${this.name} ${step.block}`;
      this.places[step.to] = this.keep(key, this.value(step.size), step.keep === 1);
    } else if ("view" in step) this.view(step);
    else if ("copy" in step) {
      const [source, target] = step.copy;
      const size = this.value(step.size);
      if (step.late !== undefined) this.places[target] = this.keep(`output ${this.name} ${step.late}`, size);
      this.commands.copy(this.place(source), this.place(target), size);
    } else if ("for" in step) return this.counted(step);
    else if ("while" in step) return this.conditional(step);
    else if ("if" in step) return this.branch(step);
    else if ("check" in step) return this.check(step);
    else if ("bind" in step) return this.bind(step);
    else throw new ArtifactError(`the program has an unknown step: ${JSON.stringify(step).slice(0, 80)}`);
    return undefined;
  }

  private view(step: Extract<Step, { view: number }>): void {
    const source = this.place(step.view);
    if (step.sizes) {
      const [wanted, actual] = this.values(step.sizes);
      if (wanted !== actual)
        throw new TilewrightError(
          `a shape that the run computed has ${wanted} elements, its tensor has ${actual}`,
        );
    }
    this.places[step.to] = { buffer: source.buffer, offset: source.offset + this.value(step.offset) };
  }

  private async counted(step: Extract<Step, { for: string }>): Promise<void> {
    let carried = this.placesOf(step.initial);
    const count = this.value(step.count);
    for (let k = 0; k < count; k++) carried = await this.round(step, step.for, k, carried);
    this.hand(step.results, carried);
  }

  /** Runs the steps of a loop once; returns the buffers that they yield. */
  private async round(loop: Carried, symbol: string, k: number, carried: Place[]): Promise<Place[]> {
    this.symbols[symbol] = k;
    this.hand(loop.args, carried);
    await this.steps(loop.steps);
    return this.placesOf(loop.yield);
  }

  private hand(numbers: readonly number[], places: readonly Place[]): void {
    numbers.forEach((number, k) => {
      this.places[number] = places[k] as Place;
    });
  }

  private async conditional(step: Extract<Step, { while: string }>): Promise<void> {
    const limit = step.limit === null ? UNBOUNDED : await this.read(step.limit);
    let carried = this.placesOf(step.initial);
    let { condition } = step;
    let done = 0;
    while (done < limit && (await this.holds(condition))) {
      carried = (await this.round(step, step.while, done, carried)).slice(1);
      condition = step.yield[0] as number;
      done++;
    }
    this.hand(step.results, carried);
    this.symbols[step.steps_done] = done;
  }

  private async branch(step: Extract<Step, { if: number }>): Promise<void> {
    await this.steps((await this.holds(step.if)) ? step.then : step.else);
  }

  private async check(step: Extract<Step, { check: number }>): Promise<void> {
    if (!(await this.holds(step.check))) throw new ERRORS[step.error](step.message);
  }

  private async bind(step: Extract<Step, { bind: string }>): Promise<void> {
    const value = await this.read(step.from);
    const [low, high] = step.bounds;
    if (low !== null && value < low)
      throw new TilewrightError(`a size computed at ${step.place} is less than ${low}`);
    if (high !== null && value > high)
      throw new TilewrightError(`a size computed at ${step.place} is more than ${high}`);
    this.symbols[step.bind] = value;
  }
}
