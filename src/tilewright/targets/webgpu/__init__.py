"""WebGPU: kernels in WGSL from the same loop level, with loops bound to workgroups and invocations."""
