/** A WebGPU device as programs of models use it: memory, dispatches, copies and reads. Sizes are bytes. */

import { DeviceError, MemoryError } from "../errors.js";
import type { KernelInterface } from "./program.js";

/** Dispatches whose sizes and offsets one buffer holds. */
const LAUNCHES = 1024;
/** Bytes between them: bindings begin at multiples of up to 256. */
const ROW = 256;
/** Bytes; parts that are copied into one buffer begin at multiples of it. */
const PART = 16;
const COPY = "copy bytes";
const COPY_THREADS = 256;
const COPY_ROW = 32768; // workgroups in the first dimension
/** Copies what are no whole words. An invocation changes a word of the target. */
const COPY_TEXT = `@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> words: array<u32>;
@group(0) @binding(2) var<uniform> numbers: vec4u;
@compute @workgroup_size(${COPY_THREADS})
fn main(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {
  let first = numbers[1];
  let end = first + numbers[2];
  let word = first / 4u + (block.y * ${COPY_ROW}u + block.x) * ${COPY_THREADS}u + thread;
  if (4u * word >= end) { return; }
  var value = words[word];
  for (var k = 0u; k < 4u; k++) {
    let at = 4u * word + k;
    if (at >= first && at < end) {
      let origin = at - first + numbers[0];
      let byte = (source[origin >> 2u] >> (8u * (origin & 3u))) & 255u;
      value = (value & ~(255u << (8u * k))) | (byte << (8u * k));
    }
  }
  words[word] = value;
}
`;

/** A part of a buffer of the device that begins at a byte. */
export interface Place {
  readonly buffer: GPUBuffer;
  readonly offset: number;
}

export type Key = string;

const words = (size: number): number => Math.ceil(size / 4) * 4;

interface Pipeline {
  readonly pipeline: GPUComputePipeline;
  readonly layout: GPUBindGroupLayout;
}

/** Opens a device with as much memory and as many buffers as the adapter has. Throws DeviceError. */
export async function openDevice(): Promise<GPUDevice> {
  const gpu = (globalThis as { navigator?: { gpu?: GPU } }).navigator?.gpu;
  if (!gpu)
    throw new DeviceError(
      "this browser has no WebGPU, or the page is not from https or localhost: use another browser, or " +
        "load the model that was compiled for wasm32",
    );
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter)
    throw new DeviceError(
      "WebGPU has no adapter: the GPU or its driver is not supported. Load the model that was compiled for " +
        "wasm32",
    );
  const { limits } = adapter;
  const requiredLimits: Record<string, number> = {
    maxStorageBuffersPerShaderStage: limits.maxStorageBuffersPerShaderStage,
    maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
    maxBufferSize: limits.maxBufferSize,
    maxComputeWorkgroupStorageSize: limits.maxComputeWorkgroupStorageSize,
    maxComputeInvocationsPerWorkgroup: limits.maxComputeInvocationsPerWorkgroup,
    maxComputeWorkgroupSizeX: limits.maxComputeWorkgroupSizeX,
  };
  const wanted = ["shader-f16", "subgroups"] as GPUFeatureName[];
  const requiredFeatures = wanted.filter((feature) => adapter.features.has(feature));
  return adapter.requestDevice({ requiredLimits, requiredFeatures });
}

/** The pipelines of a library and the commands that have not been submitted. */
export class Commands {
  private readonly pipelines = new Map<string, Pipeline>();
  /** Bind groups by the kernel, the row of numbers and the buffers. */
  private readonly groups = new Map<string, GPUBindGroup>();
  private readonly names = new WeakMap<GPUBuffer, number>();
  private nextName = 0;
  private readonly buffers = new Set<GPUBuffer>();
  private readonly retired: GPUBuffer[] = [];
  /** The errors of buffers that were made and not checked. */
  private readonly allocations: Promise<GPUError | null>[] = [];
  /** The buffer that results are read through, while no read uses it. */
  private staging: GPUBuffer | null = null;
  private encoder: GPUCommandEncoder | null = null;
  private pass: GPUComputePassEncoder | null = null;
  private readonly numbers = new Int32Array((LAUNCHES * ROW) / 4);
  private parameters: GPUBuffer | null = null;
  private launches = 0;
  private readonly aside = new Map<Key, Place>();
  private readonly interfaces: Readonly<Record<string, KernelInterface>>;
  private lost: string | null = null;

  constructor(
    readonly device: GPUDevice,
    private readonly where: string,
    kernels: Readonly<Record<string, KernelInterface>>,
  ) {
    this.interfaces = { ...kernels, [COPY]: { bytes: [4, 4], bindings: [0, 1], written: [0, 1] } };
    void device.lost.then(({ message, reason }) => {
      this.lost = `the GPU was lost (${message || reason}): load the model again`;
    });
  }

  /** Compiles all kernels; the browser uses other threads for it. Throws DeviceError. */
  async compile(texts: ReadonlyMap<string, string>): Promise<void> {
    const all = [...texts, [COPY, COPY_TEXT] as const];
    const made = await Promise.all(all.map(([name, text]) => this.pipelineOf(name, text)));
    all.forEach(([name], k) => {
      this.pipelines.set(name, made[k] as Pipeline);
    });
  }

  private async pipelineOf(name: string, code: string): Promise<Pipeline> {
    const written = this.interfaces[name]?.written ?? [];
    const most = this.device.limits.maxStorageBuffersPerShaderStage;
    if (written.length > most)
      throw new DeviceError(`kernel '${name}' has ${written.length} buffers; the device allows ${most}`);
    const layout = this.device.createBindGroupLayout({
      entries: [
        ...written.map((w): GPUBufferBindingType => (w ? "storage" : "read-only-storage")),
        "uniform" as const,
      ].map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } })),
    });
    const module = this.device.createShaderModule({ label: name, code });
    try {
      const pipeline = await this.device.createComputePipelineAsync({
        label: name,
        layout: this.device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module, entryPoint: "main" },
      });
      return { pipeline, layout };
    } catch (thrown) {
      const info = await module.getCompilationInfo?.();
      const first = info?.messages.find(({ type }) => type === "error");
      throw new DeviceError(
        `${this.where}: the GPU's compiler refuses kernel '${name}': ` +
          (first ? `${first.message} (line ${first.lineNum})` : (thrown as Error).message),
      );
    }
  }

  // -- Memory ----------------------------------------------------------------------------------------------

  /** A new buffer of zeros. Throws MemoryError where it is larger than the device allows. */
  buffer(size: number): GPUBuffer {
    const bytes = Math.max(words(size), 16);
    const { maxBufferSize, maxStorageBufferBindingSize } = this.device.limits;
    const most = Math.min(maxBufferSize, maxStorageBufferBindingSize);
    if (bytes > most)
      throw new MemoryError(
        `${this.where}: a tensor has ${bytes} bytes; this GPU allows ${most} in a buffer`,
      );
    this.device.pushErrorScope("out-of-memory");
    const made = this.device.createBuffer({
      size: bytes,
      usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST,
    });
    this.allocations.push(this.device.popErrorScope());
    this.names.set(made, this.nextName++);
    this.buffers.add(made);
    return made;
  }

  /** `place`, or a new one if it is too small. With `keep` its content is copied to the new one. */
  atLeast(place: Place | undefined, size: number, keep = false): Place {
    if (place && place.buffer.size >= size) return place;
    const made: Place = { buffer: this.buffer(size), offset: 0 };
    this.groups.clear();
    if (place) {
      if (keep) this.copy(place, made, place.buffer.size);
      this.retired.push(place.buffer); // the run that is under way may have views of it
    }
    return made;
  }

  /** Replaces the content of a place after all commands so far. The bytes are whole words. */
  write(place: Place, data: Uint8Array<ArrayBuffer>): void {
    if (!data.length) return;
    this.submit();
    this.device.queue.writeBuffer(place.buffer, place.offset, data);
  }

  /** Sets a whole buffer to zeros after all commands so far. */
  clear({ buffer }: Place): void {
    this.commands().clearBuffer(buffer);
  }

  /** The bytes of several places after all commands so far; one wait serves all. */
  async read(wanted: readonly { place: Place; bytes: number }[]): Promise<Uint8Array<ArrayBuffer>[]> {
    const starts: number[] = [];
    let size = 0;
    for (const { place, bytes } of wanted) {
      starts.push(size);
      size += bytes ? words((place.offset % 4) + bytes) : 0;
    }
    if (!size) {
      this.submit();
      return wanted.map(() => new Uint8Array(0));
    }
    const staging = this.takeStaging(size);
    try {
      const encoder = this.commands();
      wanted.forEach(({ place, bytes }, k) => {
        const before = place.offset % 4;
        if (bytes)
          encoder.copyBufferToBuffer(
            place.buffer,
            place.offset - before,
            staging,
            starts[k] as number,
            words(before + bytes),
          );
      });
      this.submit();
      await this.checkMemory();
      await staging.mapAsync(GPUMapMode.READ, 0, size);
      const all = staging.getMappedRange(0, size);
      const read = wanted.map(({ place, bytes }, k) => {
        const at = (starts[k] as number) + (place.offset % 4);
        return new Uint8Array(all.slice(at, at + bytes));
      });
      staging.unmap();
      this.staging?.destroy();
      this.staging = staging;
      return read;
    } catch (thrown) {
      staging.destroy();
      if (thrown instanceof MemoryError) throw thrown;
      throw new DeviceError(this.lost ?? `${this.where}: the GPU failed: ${(thrown as Error).message}`);
    }
  }

  /** The kept staging buffer, which a read then has for itself, or a new one. */
  private takeStaging(size: number): GPUBuffer {
    const kept = this.staging;
    this.staging = null;
    if (kept && kept.size >= size) return kept;
    kept?.destroy();
    return this.device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  }

  /** Throws MemoryError where the GPU had no memory for a buffer. */
  async checkMemory(): Promise<void> {
    for (const error of await Promise.all(this.allocations.splice(0)))
      if (error)
        throw new MemoryError(`${this.where}: the GPU has no memory for the model: ${error.message}`);
  }

  /** Frees the buffers that larger ones have replaced. Called between runs. */
  freeRetired(): void {
    this.submit();
    for (const buffer of this.retired.splice(0)) {
      buffer.destroy();
      this.buffers.delete(buffer);
    }
  }

  /** Throws DeviceError where the device was lost. */
  refuseLost(): void {
    if (this.lost) throw new DeviceError(this.lost);
  }

  /** Frees all memory. */
  destroy(): void {
    this.endPass();
    this.encoder = null;
    for (const buffer of this.buffers) buffer.destroy();
    this.buffers.clear();
    this.groups.clear();
    this.parameters?.destroy();
    this.staging?.destroy();
  }

  // -- Commands --------------------------------------------------------------------------------------------

  /** Submits the commands. */
  submit(): void {
    if (!this.encoder) return;
    this.endPass();
    if (this.launches)
      this.device.queue.writeBuffer(
        this.parameters as GPUBuffer,
        0,
        this.numbers,
        0,
        (this.launches * ROW) / 4,
      );
    this.device.queue.submit([this.encoder.finish()]);
    this.encoder = null;
    this.launches = 0;
  }

  private endPass(): void {
    this.pass?.end();
    this.pass = null;
  }

  /** The encoder, outside of a pass. */
  private commands(): GPUCommandEncoder {
    this.endPass();
    this.encoder ??= this.device.createCommandEncoder();
    return this.encoder;
  }

  /** Copies bytes from one place to another, whose buffers may be one. */
  copy(source: Place, target: Place, size: number): void {
    if (!size) return;
    if (source.buffer === target.buffer) {
      const aside = this.scratch("copy", size);
      this.copy(source, aside, size);
      this.copy(aside, target, size);
      return;
    }
    if (source.offset % 4 === 0 && target.offset % 4 === 0 && size % 4 === 0) {
      this.commands().copyBufferToBuffer(source.buffer, source.offset, target.buffer, target.offset, size);
      return;
    }
    const groups = Math.ceil(((target.offset % 4) + size) / (4 * COPY_THREADS));
    const grid = [Math.min(groups, COPY_ROW), Math.ceil(groups / COPY_ROW), 1] as const;
    this.launch(COPY, [source, target], [source.offset, target.offset, size], grid);
  }

  private scratch(key: Key, size: number): Place {
    const place = this.atLeast(this.aside.get(key), size);
    this.aside.set(key, place);
    return place;
  }

  /** Runs a kernel. `sizes` are the bytes of its buffers. Without workgroups nothing runs. */
  dispatch(
    kernel: string,
    places: readonly Place[],
    sizes: readonly number[],
    dims: readonly number[],
    grid: readonly [number, number, number],
  ): void {
    if (Math.min(...grid) <= 0) return;
    const most = this.device.limits.maxComputeWorkgroupsPerDimension;
    if (Math.max(...grid) > most)
      throw new DeviceError(
        `kernel '${kernel}' has ${Math.max(...grid)} workgroups in a dimension; the device allows ${most}`,
      );
    const { used, later } = this.apart(kernel, places, sizes);
    const elements = (this.interfaces[kernel] as KernelInterface).bytes;
    const offsets = used.map((place, k) => Math.floor(place.offset / (elements[k] as number)));
    this.launch(kernel, used, [...dims, ...offsets], grid);
    for (const [source, target, size] of later) this.copy(source, target, size);
  }

  private launch(
    kernel: string,
    places: readonly Place[],
    numbers: readonly number[],
    grid: readonly [number, number, number],
  ): void {
    const { pipeline, layout } = this.pipelines.get(kernel) as Pipeline;
    if (this.launches === LAUNCHES) this.submit();
    if (numbers.length > ROW / 4)
      throw new DeviceError(
        `kernel '${kernel}' has ${numbers.length} sizes and buffers, more than ${ROW / 4}`,
      );
    const row = this.launches++;
    this.numbers.set(numbers, (row * ROW) / 4);
    const { bindings } = this.interfaces[kernel] as KernelInterface;
    const bound: GPUBuffer[] = [];
    bindings.forEach((binding, k) => {
      bound[binding] = (places[k] as Place).buffer;
    });
    const group = this.group(kernel, layout, bound, row);
    // Dispatches of one pass follow one another; a pass ends only before a copy.
    this.encoder ??= this.device.createCommandEncoder();
    this.pass ??= this.encoder.beginComputePass();
    this.pass.setPipeline(pipeline);
    this.pass.setBindGroup(0, group);
    this.pass.dispatchWorkgroups(...grid);
  }

  /** The places of a dispatch, none of them in a buffer that is written and has another binding, too, which
   * WebGPU forbids, those of a binding in one buffer, and each beginning at an element: copies take the place
   * of some. `later` lists those to copy back after the dispatch, with their targets and bytes. */
  private apart(
    kernel: string,
    places: readonly Place[],
    sizes: readonly number[],
  ): { used: Place[]; later: [Place, Place, number][] } {
    const used = [...places];
    const later: [Place, Place, number][] = [];
    const { bytes, bindings, written } = this.interfaces[kernel] as KernelInterface;
    written.forEach((isWritten, binding) => {
      const mine = bindings.flatMap((b, k) => (b === binding ? [k] : []));
      const parts = new Map<GPUBuffer, number[]>();
      for (const k of mine) {
        const { buffer } = places[k] as Place;
        parts.set(buffer, [...(parts.get(buffer) ?? []), k]);
      }
      const shared = used.some((place, k) => !mine.includes(k) && parts.has(place.buffer));
      const startOf = (part: readonly number[]): number =>
        Math.min(...part.map((k) => (places[k] as Place).offset));
      const sizeOf = (part: readonly number[]): number =>
        Math.max(...part.map((k) => (places[k] as Place).offset + (sizes[k] as number))) - startOf(part);
      const aligned = startOf(mine) % (bytes[mine[0] as number] as number) === 0;
      if (parts.size === 1 && aligned && !(isWritten && shared)) return;
      const whole = [...parts.values()].reduce((sum, part) => sum + Math.ceil(sizeOf(part) / PART) * PART, 0);
      const copied = this.scratch(`dispatch ${binding}`, whole);
      let at = 0;
      for (const [buffer, part] of parts) {
        const source: Place = { buffer, offset: startOf(part) };
        const target: Place = { buffer: copied.buffer, offset: at };
        this.copy(source, target, sizeOf(part));
        if (isWritten) later.push([target, source, sizeOf(part)]);
        for (const k of part)
          used[k] = { buffer: copied.buffer, offset: at + (places[k] as Place).offset - source.offset };
        at += Math.ceil(sizeOf(part) / PART) * PART;
      }
    });
    return { used, later };
  }

  private group(
    kernel: string,
    layout: GPUBindGroupLayout,
    buffers: readonly GPUBuffer[],
    row: number,
  ): GPUBindGroup {
    const key = `${kernel} ${row} ${buffers.map((buffer) => this.names.get(buffer)).join()}`;
    let group = this.groups.get(key);
    if (!group) {
      this.parameters ??= this.device.createBuffer({
        size: LAUNCHES * ROW,
        usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
      });
      const entries = buffers.map((buffer, binding) => ({ binding, resource: { buffer } }));
      const numbers = { buffer: this.parameters, offset: row * ROW, size: ROW };
      group = this.device.createBindGroup({
        layout,
        entries: [...entries, { binding: buffers.length, resource: numbers }],
      });
      this.groups.set(key, group);
    }
    return group;
  }
}
