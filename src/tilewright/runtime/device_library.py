"""`DeviceLibrary`: a compiled model whose kernels run on a GPU, called like every native library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.artifact.device_code import DEVICE_TYPES, DeviceImage, images_of
from tilewright.errors import ArtifactError
from tilewright.runtime.bound_call import BoundCall
from tilewright.runtime.context import Context, DeviceOptions
from tilewright.runtime.device_tensors import DeviceCall, has_tensors_on_device
from tilewright.runtime.library import Library
from tilewright.runtime.native_code import NativeCode

if TYPE_CHECKING:
    from tilewright.runtime.simulated_device import SimulatedDriver


class DeviceLibrary(Library):
    """A compiled model in a shared library whose kernels run on a device, as `tilewright.compile` and
    `tilewright.load` return it for GPUs.

    Args:
        path: The ``.so``, ``.dylib`` or ``.dll``.
        weights: See `Library`.
        index: The device's number, in the order of its driver.
        driver: The driver's library, by name or path; None: the one that the environment's variable
            ``TILEWRIGHT_CUDA_DRIVER`` (``_HIP_``, ``_OPENCL_``, ...) names, or else the system's.
        stream: The address of a ``CUstream`` or ``hipStream_t`` of the caller's, such as
            ``torch.cuda.current_stream().cuda_stream``; 0 is the legacy default stream. Runs on tensors of
            the device are ordered on it and do not wait. None: a stream of its own; calls wait for the device
            before and after the run.
        graphs: Whether the second run with sizes and addresses that were seen before becomes a graph (CUDA,
            HIP), which later ones start at once. A context keeps 64 graphs. Models that read values of the
            device to decide about control flow or sizes have none.
        num_threads: Not used by devices; see `Library`.
        check_weights: Compare the checksum of the file of weights.
        opens: Whether the device is opened now, so that its absence is noticed before the first call.
        verify: See `Library`.
        code: The code of this file, where it has been loaded.

    Raises:
        ArtifactError: The file is not an artifact or is damaged; or the driver or the device is missing.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        weights: np.ndarray | str | Path | None = None,
        index: int = 0,
        driver: str | None = None,
        stream: int | None = None,
        graphs: bool = True,
        num_threads: int = 0,
        check_weights: bool = False,
        opens: bool = True,
        verify: bool = True,
        code: NativeCode | None = None,
    ) -> None:
        self.device_index, self.driver, self.stream = index, driver, stream
        self.graphs, self._opens = graphs, opens
        super().__init__(
            path,
            weights=weights,
            num_threads=num_threads,
            check_weights=check_weights,
            verify=verify,
            code=code,
        )

    @property
    def api(self) -> str:
        """The name of the device's programming interface: ``cuda``, ``opencl``, ..."""
        number = self.metadata["target"]["device"]
        return next(name for name, type_ in DEVICE_TYPES.items() if type_ == number)

    def _new_context(self) -> Context:
        return Context(
            self._native,
            self.weights,
            self.weights_file,
            num_threads=self.num_threads,
            check_weights=self.check_weights,
            device=DeviceOptions(self.device_index, self.driver, self.stream, self.graphs),
        )

    def _device_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DeviceCall | None:
        """A call with tensors of which some lie in the device's memory; None if there are none."""
        if self.api not in ("cuda", "hip") or not has_tensors_on_device(args, kwargs):
            return None
        place = (DEVICE_TYPES[self.api], self.device_index)
        values = function._values(args, kwargs)
        return DeviceCall(function, self._context(), function._calls(), values, place, self.stream)

    def _run_on_device(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: object
    ) -> Sequence[Any] | None:
        call = self._device_call(function, args, kwargs)
        return None if call is None else call.run(out)

    def _bind_on_device(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: object
    ) -> BoundCall | None:
        call = self._device_call(function, args, kwargs)
        return None if call is None else call.bind(out)

    def _with_same_code(self) -> DeviceLibrary:
        return self._on(self.device_index, self.driver, self.stream)

    def _on(self, index: int, driver: str | None, stream: int | None = None) -> DeviceLibrary:
        return DeviceLibrary(
            self.path,
            weights=self.weights,
            index=index,
            driver=driver,
            stream=stream,
            graphs=self.graphs,
            verify=False,
            code=self._native,
        )

    def simulated(self, *, checked: bool = False) -> DeviceLibrary:
        """A library with the same code and weights that runs on a simulated device, and with states of its
        own.

        Args:
            checked: Whether runs find faults of kernels: accesses out of bounds, races and others.

        Raises:
            ArtifactError: The library has been closed, or its interface cannot be simulated here.
        """
        if modules := {i.module for i in self.images} - {i.module for i in self.images if i.is_source}:
            own = [k["name"] for k in self.metadata["kernels"] if k["device"].get("module") in modules]
            raise ArtifactError(
                f"kernel {own[0]!r} has machine code only (Triton), which cannot be simulated; compile the "
                "model for cpu, where its pattern or C source runs"
            )
        driver = self.simulator(checked)
        for text in self.sources if self.metadata["kernels"] else ():
            driver.add(text)
        self._native.explain = driver.explain
        return self._derived(self._on(0, str(driver.path)))

    def simulator(self, checked: bool = False) -> SimulatedDriver:
        """The driver that `simulated` uses.

        Raises:
            ArtifactError: The interface cannot be simulated here.
        """
        from tilewright.runtime.simulated_device import simulated_driver

        target = self.metadata["target"]
        architecture = target.get("architectures", [""])[0] if self.api == "hip" else ""
        return simulated_driver(self.api, checked, target.get("warp", 32), architecture)

    @property
    def source(self) -> str:
        """The text of the kernels."""
        return next(i.data.decode() for i in self.images if i.is_source)

    @property
    def sources(self) -> list[str]:
        """The texts of the modules of device code: the compiler's kernels, then those of the user."""
        return [i.data.decode() for i in self.images if i.is_source]

    @property
    def images(self) -> list[DeviceImage]:
        """The device code: images for devices, and the source of the kernels."""
        size = ctypes.c_uint64()
        start = self._native.tw_device_code(ctypes.byref(size))
        return images_of(ctypes.string_at(start, size.value))

    def code_text(self, level: str) -> str | None:
        """Return the kernels' source for the name of its language as the level (``cuda``, ``opencl``,
        ``glsl``); None for another level.
        """
        return "\n".join(i.data.decode() for i in self.images if i.kind == f"source-{level}") or None


def is_for_device(metadata: dict[str, Any]) -> bool:
    """Whether the artifact with these metadata runs on a device."""
    return "device" in metadata.get("target", {})


__all__ = ["DeviceLibrary", "is_for_device"]
