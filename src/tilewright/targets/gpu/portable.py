"""The limits that every implementation of a portable programming interface keeps."""

from __future__ import annotations

from ...ir.target_info import Gpu

OPENCL = Gpu(
    warp=32, max_threads=256, shared_bytes=32 * 1024, registers=64, multiprocessors=16, shuffles=False
)
"""OpenCL 1.2, full profile: ``CL_DEVICE_LOCAL_MEM_SIZE`` is at least 32 KiB. The specification requires
groups of one work-item only; all GPUs allow 256. There is no minimum for the width of a subgroup, and
exchanges are an extension.
"""

VULKAN = Gpu(
    warp=32,
    max_threads=256,
    shared_bytes=16 * 1024,
    registers=64,
    multiprocessors=16,
    grid_limits=(65535, 65535, 65535),
    shuffles=False,
)
"""Vulkan's required limits: ``maxComputeWorkGroupInvocations`` 256 (since Vulkan 1.4; GPUs with 1.2 allow as
many, and a library refuses other devices), ``maxComputeSharedMemorySize`` 16384,
``maxComputeWorkGroupCount`` 65535. Subgroup operations beyond the basic ones are optional.
"""

WEBGPU = Gpu(
    warp=32,
    max_threads=256,
    shared_bytes=16 * 1024,
    shared_element=4,
    registers=64,
    multiprocessors=16,
    grid_limits=(65535, 65535, 65535),
    max_buffers=8,
    shuffles=False,
)
"""WebGPU's default limits: ``maxStorageBuffersPerShaderStage`` 8 (browsers give few GPUs more),
``maxComputeInvocationsPerWorkgroup`` 256, ``maxComputeWorkgroupStorageSize``
16384, ``maxComputeWorkgroupsPerDimension`` 65535. The feature ``subgroups`` is optional. WGSL has no
types of 8 or 16 bits, so elements in shared memory take 4 bytes.
"""

__all__ = ["OPENCL", "VULKAN", "WEBGPU"]
