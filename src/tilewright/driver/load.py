"""`tilewright.load`: a compiled artifact from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArtifactError

if TYPE_CHECKING:
    from ..runtime.model import CompiledModel


def load(
    path: str | Path,
    *,
    weights: str | Path | None = None,
    threads: int | None = None,
    pin_threads: bool = False,
    check_weights: bool = False,
    device: int = 0,
    simulate: bool | str = False,
    graphs: bool = True,
) -> CompiledModel:
    """Load a compiled artifact.

    Args:
        path: The artifact: ``.so``, ``.dylib``, ``.dll``, ``.wasm``, or ``.tar`` for WebGPU. The kind is read
            from the contents, so the file may have another name.
        weights: The file of weights of an artifact that was saved with ``weights="beside"``. The default is
            the file beside the artifact. It is mapped into memory; a page is read when it is first used.
        threads: The most threads that a run uses. The default is all cores of the process. Native artifacts
            and WebAssembly with threads.
        pin_threads: Bind each worker thread to a core, for a process that has the machine to itself. The
            caller's thread is not bound. Linux only.
        check_weights: Read the whole file of weights and compare its checksum.
        device: The number of the device to run on, for artifacts for GPUs.
        simulate: Whether the CPU simulates the device, for artifacts for CUDA, HIP and Metal: slowly, but
            exactly, on machines without one. ``"checked"`` also finds faults of kernels, such as accesses out
            of bounds and races, which are then errors.
        graphs: Whether runs that repeat become graphs, for artifacts for CUDA and HIP: see
            `tilewright.runtime.device_library.DeviceLibrary`.

    Returns:
        The model, which is called like a function: see `tilewright.runtime.model.CompiledModel`.

    Raises:
        ArtifactError: The file is missing or damaged, was written for another version of the runtime's
            interface or for a processor with other features, or the weights are not those of this artifact.
        DeviceError: The driver of the artifact's device is missing, or there is no such device.
        CompileError: `threads` is not a whole number above 0.
    """
    from ..artifact.kinds import kind_of
    from .options import thread_count

    path = Path(path)
    kind = kind_of(path)
    if kind.format == "WebAssembly":
        from ..runtime.wasm import WasmLibrary

        return WasmLibrary(path, weights=weights, num_threads=thread_count(threads) or 0)
    if kind.format == "tar":
        from ..runtime.webgpu import load_webgpu

        return load_webgpu(path, weights)
    from ..artifact.kinds import check_native
    from ..artifact.trailer import read_metadata, verify_file
    from ..runtime.device_library import DeviceLibrary, is_for_device
    from ..runtime.library import Library

    num_threads = thread_count(threads) or 0
    verify_file(path)
    metadata = read_metadata(path) or {}
    check_native(path, metadata.get("target", {}).get("triple", ""))
    if is_for_device(metadata):
        library = DeviceLibrary(
            path,
            weights=weights,
            index=device,
            num_threads=num_threads,
            check_weights=check_weights,
            opens=not simulate,
            graphs=graphs,
        )
        return library.simulated(checked=simulate == "checked") if simulate else library
    if simulate:
        raise ArtifactError(f"{path}: only artifacts for CUDA, HIP and Metal can be simulated")
    return Library(
        path, weights=weights, num_threads=num_threads, pin_threads=pin_threads, check_weights=check_weights
    )


__all__ = ["load"]
