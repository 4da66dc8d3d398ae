"""The speed of a model's kernels on GPUs as far as their code tells it, without a GPU: resources, occupancy,
and lower bounds of their times. `tilewright inspect` and `tilewright profile` show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..artifact.device_code import DeviceImage
from ..errors import ArtifactError
from ..runtime.expressions import evaluate
from ..targets.cuda import devices as cuda
from ..targets.cuda.sass import instructions_of
from ..targets.gpu.device import Device
from ..targets.gpu.performance import KernelResources, Occupancy, Prediction, occupancy, predict
from ..targets.hip import devices as hip


@dataclass(frozen=True)
class KernelReport:
    """One kernel on one device."""

    kernel: Mapping[str, Any]
    """The kernel's entry in the metadata."""
    resources: KernelResources
    occupancy: Occupancy | None
    """None if the vendor publishes no figures of the multiprocessor."""
    blocks: int | None = None
    """Blocks of a launch; None if a size is not known."""
    prediction: Prediction | None = None
    """None if a size is not known."""


def described_devices(arch: str) -> tuple[Device, ...]:
    """The described devices that run code for an architecture; the first is the one that predictions are made
    for.
    """
    name = arch.removesuffix("a") if arch.startswith("sm_") else arch
    return tuple(device for device in (*cuda.DEVICES, *hip.DEVICES) if device.arch == name)


def reports(
    metadata: Mapping[str, Any], sizes: Mapping[str, int], images: Sequence[DeviceImage] = ()
) -> Iterator[tuple[str, Device, list[KernelReport]]]:
    """Yield each architecture that the artifact has machine code for, a device, and its kernels' reports.

    Args:
        metadata: The artifact's metadata.
        sizes: The values of the symbols.
        images: The artifact's device code. The instructions of NVIDIA's kernels are counted in it, if a
            disassembler is installed; those of AMD's are in the metadata.
    """
    kernels = [kernel for kernel in metadata.get("kernels", ()) if "device" in kernel]
    contractions = metadata.get("contractions") or {"f32": 1}
    factors = max(contractions, key=lambda dtype: contractions[dtype])
    for arch in dict.fromkeys(arch for kernel in kernels for arch in kernel["device"]["code"]):
        for device in described_devices(arch)[:1]:
            counts = {
                i.module: instructions_of(i.data) for i in images if (i.kind, i.arch) == ("cubin", arch)
            }
            rows = [
                _report(kernel, arch, device, sizes, factors, counts)
                for kernel in kernels
                if arch in kernel["device"]["code"]
            ]
            yield arch, device, rows


def _report(
    kernel: Mapping[str, Any],
    arch: str,
    device: Device,
    sizes: Mapping[str, int],
    factors: str,
    counts: Mapping[int, Mapping[str, tuple[tuple[str, int], ...]]],
) -> KernelReport:
    entry = kernel["device"]
    resources = KernelResources.from_metadata(entry["code"][arch])
    if found := counts.get(entry.get("module", 0), {}).get(entry.get("entry", "")):
        resources = replace(resources, instructions=found)
    occupied = None
    if device.multiprocessor is not None:
        occupied = occupancy(device, resources, entry["threads"], entry["dynamic_shared_bytes"])
    matrix = bool(entry.get("matrix") or resources.count("matrix"))
    try:
        blocks, flops, moved = (
            evaluate(formula, sizes) for formula in (entry["blocks"], kernel["flops"], kernel["bytes"])
        )
    except ArtifactError:
        return KernelReport(kernel, resources, occupied)
    # Ordinary instructions compute narrower types in float32.
    dtype = factors if matrix or factors == "f64" else "f32"
    prediction = predict(device, blocks, flops, moved, dtype, matrix=matrix, occupied=occupied)
    return KernelReport(kernel, resources, occupied, blocks, prediction)


__all__ = ["KernelReport", "described_devices", "reports"]
