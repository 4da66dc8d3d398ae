/** The targets of the compiler that run here, and the choice among files for several of them. */

import { ArtifactError } from "./errors.js";
import type { FileSource } from "./fetching.js";
import { canShareMemory, hasRelaxedSimd, hasSharedMemory } from "./wasm/features.js";
import { hasFeature, wgslFeatures } from "./webgpu/features.js";

const TARGETS = [
  "webgpu:f16+subgroups",
  "webgpu:f16",
  "webgpu:subgroups",
  "webgpu",
  "wasm32:relaxed+threads",
  "wasm32:threads",
  "wasm32:relaxed",
  "wasm32",
] as const;

/** A target of `tilewright.compile` that this package can run. */
export type Target = (typeof TARGETS)[number];

/** Files of one model by the targets that they were compiled for. */
export type Sources = Readonly<Partial<Record<Target, FileSource>>>;

/** The targets whose artifacts run here, the fastest first.
 *
 * WebGPU comes last where a processor simulates it. Modules with threads run on one thread where memory
 * cannot be shared (a page without cross-origin isolation), so they come after those without. */
export async function supportedTargets(): Promise<Target[]> {
  return targetsBeside(await findAdapter());
}

function targetsBeside({ kind: gpu, targets: onGpu }: Adapter): Target[] {
  const relaxed = hasRelaxedSimd();
  const modules = TARGETS.filter((target) => !needsGpu(target) && (relaxed || !target.includes("relaxed")));
  const threaded = hasSharedMemory() ? modules.filter((target) => target.includes("threads")) : [];
  const single = modules.filter((target) => !target.includes("threads"));
  return [
    ...(gpu === "device" ? onGpu : []),
    ...(canShareMemory() ? [...threaded, ...single] : [...single, ...threaded]),
    ...(gpu === "simulated" ? onGpu : []),
  ];
}

/** Whether there is a GPU, and the targets whose features it has. */
interface Adapter {
  readonly kind: "device" | "simulated" | "none";
  readonly targets: Target[];
}

const NO_ADAPTER: Adapter = { kind: "none", targets: [] };

async function findAdapter(): Promise<Adapter> {
  const gpu = (globalThis as { navigator?: { gpu?: GPU } }).navigator?.gpu;
  const adapter = await gpu?.requestAdapter().catch(() => null);
  if (!adapter) return NO_ADAPTER;
  const targets = TARGETS.filter(
    (target) =>
      needsGpu(target) &&
      featuresOf(target).every((feature) => hasFeature(feature, adapter.features, wgslFeatures())),
  );
  return { kind: adapter.info?.isFallbackAdapter ? "simulated" : "device", targets };
}

function needsGpu(target: string): boolean {
  return target.startsWith("webgpu");
}

function featuresOf(target: string): string[] {
  return target.includes(":") ? target.slice(target.indexOf(":") + 1).split("+") : [];
}

/** Whether `source` is files by targets, and not one file. */
export function isSources(source: FileSource | Sources): source is Sources {
  return Object.getPrototypeOf(source) === Object.prototype;
}

/** The file for the best target that runs here. Throws ArtifactError where there is none. */
export async function bestOf(sources: Sources): Promise<FileSource> {
  const given = Object.keys(sources);
  const unknown = given.filter((target) => !(TARGETS as readonly string[]).includes(target));
  if (unknown.length)
    throw new ArtifactError(`'${unknown[0]}' is no target of this package: ${TARGETS.join(", ")}`);
  const supported = targetsBeside(given.some(needsGpu) ? await findAdapter() : NO_ADAPTER);
  const best = supported.find((target) => sources[target] !== undefined);
  if (!best)
    throw new ArtifactError(
      `none of the given files runs here: they are for ${given.join(", ") || "no target"}, and this engine ` +
        `runs ${(await supportedTargets()).join(", ")}`,
    );
  return sources[best] as FileSource;
}
