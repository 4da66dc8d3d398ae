/** `Backend` for WebGPU. */

import { filesOf, verify } from "../archive.js";
import type { Backend, FunctionCall, OpenOptions, RunResult } from "../backend.js";
import { elementNamed } from "../elements.js";
import { ArtifactError, DeviceError, ShapeError } from "../errors.js";
import { type FileSource, nameOf } from "../fetching.js";
import { evaluate, solveSymbols } from "../formulas.js";
import {
  type FunctionEntry,
  functionsOf,
  type Metadata,
  parseMetadata,
  type TensorEntry,
} from "../metadata.js";
import { product, type Tensor } from "../tensors.js";
import { readWeights } from "../weights.js";
import { fromDevice, onDevice, storedBytes } from "./convert.js";
import { Commands, openDevice, type Place } from "./device.js";
import { FEATURES, hasFeature, wgslFeatures } from "./features.js";
import { type Program, type ProgramFunction, parseProgram } from "./program.js";
import { type Memory, Run } from "./run.js";

/** A call whose inputs are on the device. */
interface Started {
  readonly run: Run;
  readonly entry: FunctionEntry;
  readonly program: ProgramFunction;
  readonly shapes: readonly (readonly number[])[];
  readonly symbols: Record<string, number>;
}

/** A tensor that is read from the device. */
interface Wanted {
  readonly spec: TensorEntry;
  readonly shape: readonly number[];
  readonly place: Place;
  readonly bytes: number;
}

export class WebgpuBackend implements Backend {
  readonly name = "webgpu";
  readonly threads = 1;
  /** Buffers that are kept between runs. */
  private readonly memory: Memory = new Map();

  private constructor(
    readonly metadata: Metadata,
    private readonly program: Program,
    private readonly commands: Commands,
    private readonly weights: readonly Place[],
    private readonly ownsDevice: boolean,
  ) {}

  /** Opens the archive `file`, which was read from `source`. Kernels are compiled while weights arrive. */
  static async open(file: Uint8Array, source: FileSource, options: OpenOptions): Promise<WebgpuBackend> {
    const where = nameOf(source);
    await verify(file, where);
    const files = filesOf(file, where);
    const text = (name: string): string => {
      const bytes = files.get(name);
      if (!bytes)
        throw new ArtifactError(
          `${where}: an archive without ${name}: it is not for WebGPU. Compile the model for webgpu`,
        );
      return new TextDecoder().decode(bytes);
    };
    const program = parseProgram(text("program.json"), where);
    const metadata = parseMetadata(text("metadata.json"), where);
    const kernels = new Map<string, string>();
    for (const name of Object.keys(program.kernels)) kernels.set(name, text(`kernels/${name}.wgsl`));
    const device = options.device ?? (await openDevice());
    requireFeatures(device, metadata, where);
    const commands = new Commands(device, where, program.kernels);
    try {
      const compiled = commands.compile(kernels);
      compiled.catch(() => undefined); // reported below
      const weights = await valid(device, where, async () => {
        const places = program.weights.map(([, size]) => ({ buffer: commands.buffer(size), offset: 0 }));
        const copy = writer(device, program, places);
        const entry = metadata.weights;
        if (entry) await readWeights(entry, source, options.weights, copy, options);
        else copy(files.get("weights.bin") ?? new Uint8Array(), 0);
        await commands.checkMemory();
        return places;
      });
      await compiled;
      return new WebgpuBackend(metadata, program, commands, weights, !options.device);
    } catch (thrown) {
      commands.destroy();
      if (!options.device) device.destroy();
      throw thrown;
    }
  }

  async run(calls: readonly FunctionCall[]): Promise<RunResult[]> {
    this.commands.refuseLost();
    // The inputs of all calls are written first: a write between commands would need one more submission.
    const started = calls.map((call) => this.start(call));
    for (const { run, program } of started) await run.steps(program.steps);
    const wanted = started.map((call) => this.wanted(call));
    const read = await this.commands.read(wanted.flat());
    this.commands.freeRetired();
    return started.map(({ entry }, n) => {
      const tensors = (wanted[n] as Wanted[]).map(({ spec, shape }) => ({
        data: fromDevice(read.shift() as Uint8Array<ArrayBuffer>, spec.dtype, spec.name),
        shape,
      }));
      const outputs = tensors.splice(0, entry.outputs.length);
      return { outputs, updated: updatedBy(entry).map((k, at) => [k, tensors[at] as Tensor] as const) };
    });
  }

  /** Writes the inputs of a call, and takes the memory of its outputs. */
  private start({ name, inputs }: FunctionCall): Started {
    const entry = functionsOf(this.metadata)[name] as FunctionEntry;
    const program = this.program.functions[name] as ProgramFunction;
    const shapes = inputs.map(({ shape }) => shape);
    const symbols = solveSymbols(entry.solver, entry.inputs, shapes);
    const run = new Run(this.commands, this.weights, this.memory, name, program, symbols);
    inputs.forEach(({ data }, k) => {
      const bytes = onDevice(data);
      const place = run.keep(`input ${name} ${k}`, bytes.length);
      this.commands.write(place, bytes);
      run.places[program.inputs[k] as number] = place;
    });
    for (const [number, state] of program.states) run.places[number] = this.state(state);
    entry.outputs.forEach((spec, k) => {
      if (!spec.late)
        run.places[program.outputs[k] as number] = run.keep(
          `output ${name} ${k}`,
          bytesOn(spec, sizesOf(spec, symbols)),
        );
    });
    return { run, entry, program, shapes, symbols };
  }

  /** What is read after a call: its outputs, then the inputs that the model changes. */
  private wanted({ run, entry, program, shapes, symbols }: Started): Wanted[] {
    const described = (spec: TensorEntry, shape: readonly number[], number: number): Wanted => ({
      spec,
      shape,
      place: run.places[number] as Place,
      bytes: bytesOn(spec, shape),
    });
    return [
      ...entry.outputs.map((spec, k) =>
        described(spec, sizesOf(spec, symbols), program.outputs[k] as number),
      ),
      ...updatedBy(entry).map((k) =>
        described(
          entry.inputs[k] as TensorEntry,
          shapes[k] as readonly number[],
          program.inputs[k] as number,
        ),
      ),
    ];
  }

  async readState(index: number): Promise<Tensor> {
    this.commands.refuseLost();
    const spec = this.stateEntry(index);
    const shape = sizesOf(spec, {});
    const [bytes] = await this.commands.read([{ place: this.state(index), bytes: bytesOn(spec, shape) }]);
    return { data: fromDevice(bytes as Uint8Array<ArrayBuffer>, spec.dtype, spec.name), shape };
  }

  async writeState(index: number, data: Uint8Array): Promise<void> {
    this.commands.refuseLost();
    const spec = this.stateEntry(index);
    const copy = data.slice();
    const { array } = elementNamed(spec.dtype, spec.name);
    const elements = new array(copy.buffer);
    this.commands.write(this.state(index), onDevice(elements));
  }

  async reset(): Promise<void> {
    this.commands.refuseLost();
    for (const key of [...this.memory.keys()])
      if (key.startsWith("state ")) this.first(Number(key.slice(6)), this.memory.get(key) as Place);
  }

  async close(): Promise<void> {
    this.commands.destroy();
    if (this.ownsDevice) this.commands.device.destroy();
  }

  private stateEntry(index: number): TensorEntry {
    const spec = this.metadata.states?.[index];
    if (!spec) throw new ShapeError(`no state ${index}`);
    return spec;
  }

  /** The memory of a state, which has its first value when it is first used. */
  private state(index: number): Place {
    const key = `state ${index}`;
    const known = this.memory.get(key);
    if (known) return known;
    const { bytes } = this.program.states[index] as Program["states"][number];
    const place = this.commands.atLeast(undefined, evaluate(bytes, {}));
    this.memory.set(key, place);
    this.first(index, place);
    return place;
  }

  private first(index: number, place: Place): void {
    const { first } = this.program.states[index] as Program["states"][number];
    if (first !== null) {
      const size = (this.program.weights[first] as readonly [number, number])[1];
      this.commands.copy(this.weights[first] as Place, place, size);
    } else this.commands.clear(place);
  }
}

/** Throws DeviceError where the device lacks a feature of the target. */
function requireFeatures(device: GPUDevice, { target }: Metadata, where: string): void {
  for (const feature of target.features ?? []) {
    if (hasFeature(feature, device.features, wgslFeatures())) continue;
    throw new DeviceError(
      `${where}: needs a GPU with the feature ${FEATURES[feature] ?? feature}, which this one lacks: load ` +
        "the model that was compiled for webgpu without features",
    );
  }
}

/** The numbers of the inputs that a function changes. */
function updatedBy({ inputs }: FunctionEntry): number[] {
  return inputs.flatMap(({ updated }, k) => (updated ? [k] : []));
}

function sizesOf(spec: TensorEntry, symbols: Record<string, number>): number[] {
  return spec.shape.map((size) => evaluate(size, symbols));
}

function bytesOn(spec: TensorEntry, shape: readonly number[]): number {
  return product(shape) * storedBytes(elementNamed(spec.dtype, spec.name));
}

/** Returns a function that copies parts of the block of weights, in order, into the buffers of the weights.
 * Bytes that are no whole words wait for the next part. */
function writer(
  device: GPUDevice,
  program: Program,
  places: readonly Place[],
): (part: Uint8Array, at: number) => void {
  const order = program.weights.map(([at, size], k) => ({ at, size, k })).sort((a, b) => a.at - b.at);
  let rest = new Uint8Array(0);
  return (part, at) => {
    if (at === 0) rest = new Uint8Array(0);
    const start = at - rest.length;
    const joined = new Uint8Array(rest.length + part.length);
    joined.set(rest);
    joined.set(part, rest.length);
    const end = start + joined.length;
    const whole = end - (end % 4);
    for (const { at: first, size, k } of order) {
      const from = Math.max(first, start);
      const to = Math.min(first + size, whole);
      if (from < to)
        device.queue.writeBuffer((places[k] as Place).buffer, from - first, joined, from - start, to - from);
    }
    rest = joined.slice(whole - start);
  };
}

/** Runs `act`. Throws DeviceError where the device refuses a command. */
async function valid<T>(device: GPUDevice, where: string, act: () => Promise<T>): Promise<T> {
  device.pushErrorScope("validation");
  const ended = await act().then(
    (result) => ({ result }),
    (failure: unknown) => ({ failure }),
  );
  const error = await device.popErrorScope();
  if ("failure" in ended) throw ended.failure;
  if (error) throw new DeviceError(`${where}: the GPU refuses a command: ${error.message}`);
  return ended.result;
}
