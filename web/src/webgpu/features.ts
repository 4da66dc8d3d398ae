/** Features of the compiler's targets for WebGPU. */

/** WebGPU's names of the features of targets. */
export const FEATURES: Readonly<Record<string, GPUFeatureName>> = {
  f16: "shader-f16",
  subgroups: "subgroups" as GPUFeatureName,
};

/** Whether a GPU runs kernels that were compiled with a feature. `language`: what its WGSL has. */
export function hasFeature(
  feature: string,
  features: ReadonlySet<string>,
  language: ReadonlySet<string> | undefined,
): boolean {
  const name = FEATURES[feature];
  if (!name || !features.has(name)) return false;
  return feature !== "subgroups" || language?.has("subgroup_id") === true;
}

/** The features of this engine's WGSL beyond the first version. */
export function wgslFeatures(): ReadonlySet<string> | undefined {
  return (globalThis as { navigator?: { gpu?: GPU } }).navigator?.gpu?.wgslLanguageFeatures;
}
