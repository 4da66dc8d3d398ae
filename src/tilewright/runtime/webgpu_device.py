"""A WebGPU device as the programs of models use it: memory, dispatches, copies and reads. Every element takes
32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import ArtifactError, DeviceError, TilewrightError

_LAUNCHES = 256
"""Dispatches whose sizes and offsets one buffer holds."""
_ROW = 256
"""Bytes between them: bindings begin at multiples of up to 256."""


@dataclass
class Place:
    """A part of a buffer of the device that begins at an element."""

    buffer: Any
    offset: int = 0


class Device:
    """An open device with the pipelines of a library, and the commands that have not been submitted yet.

    Raises:
        ArtifactError: wgpu is not installed, or there is no adapter.
    """

    def __init__(self, kernels: Mapping[str, str], written: Mapping[str, Sequence[int]]) -> None:
        """Open the device.

        Args:
            kernels: The WGSL text of each kernel by name.
            written: Which of its buffers each kernel writes.
        """
        self._kernels, self._written = kernels, written
        self._device = _open_device()
        import wgpu

        self._usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        self._pipelines: dict[str, tuple[Any, Any]] = {}
        self._groups: dict[tuple[Any, ...], Any] = {}
        """Bind groups by the kernel and its buffers. They keep the buffers alive."""
        self._encoder: Any = None
        self._numbers = np.zeros((_LAUNCHES, _ROW // 4), np.int32)
        self._parameters: Any = None
        self._launches = 0
        self._aside: dict[tuple[str, int], Place] = {}

    # -- Memory ----------------------------------------------------------------------------------------------

    def buffer(self, elements: int) -> Any:
        """A new buffer of zeros."""
        return self._device.create_buffer(size=max(4 * elements, 16), usage=self._usage)

    def at_least(self, place: Place | None, elements: int, keep: bool = False) -> Place:
        """`place`, or a new one if it is too small. With `keep` its content is copied to the new one."""
        if place is not None and place.buffer.size >= 4 * elements:
            return place
        made = Place(self.buffer(elements))
        self._groups.clear()
        if keep and place is not None:
            self.copy(place, made, place.buffer.size // 4)
        return made

    def write(self, place: Place, array: np.ndarray) -> None:
        """Replace the content of a place after all commands so far."""
        data = on_device(array)
        if data.size:
            self.submit()
            self._device.queue.write_buffer(place.buffer, 4 * place.offset, data)

    def read(self, place: Place, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Wait for all commands so far and return an array of the elements from the place on."""
        self.submit()
        count = int(np.prod(shape, dtype=np.int64))
        if not count:
            return np.zeros(shape, dtype)
        data = self._device.queue.read_buffer(place.buffer, 4 * place.offset, 4 * count)
        stored = np.frombuffer(data, np.float32 if dtype == np.float32 else np.int32)
        return stored.astype(dtype).reshape(shape)

    # -- Commands --------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Submit the commands."""
        if self._encoder is None:
            return
        if self._launches:
            self._device.queue.write_buffer(self._parameters, 0, self._numbers[: self._launches])
        self._device.queue.submit([self._encoder.finish()])
        self._encoder, self._launches = None, 0

    def _commands(self) -> Any:
        if self._encoder is None:
            self._encoder = self._device.create_command_encoder()
        return self._encoder

    def copy(self, source: Place, target: Place, elements: int) -> None:
        """Copy elements from one place to another, whose buffers may be one."""
        if not elements:
            return
        if source.buffer is target.buffer:
            self.copy(source, aside := self._scratch("copy", 0, elements), elements)
            source = aside
        self._commands().copy_buffer_to_buffer(
            source.buffer, 4 * source.offset, target.buffer, 4 * target.offset, 4 * elements
        )

    def _scratch(self, what: str, number: int, elements: int) -> Place:
        place = self._aside[what, number] = self.at_least(self._aside.get((what, number)), elements)
        return place

    def dispatch(
        self,
        kernel: str,
        places: Sequence[Place],
        elements: Sequence[int],
        dims: Sequence[int],
        grid: Sequence[int],
    ) -> None:
        """Run a kernel.

        Args:
            kernel: Its name.
            places: Its buffers.
            elements: The elements of each.
            dims: The sizes that it takes.
            grid: The numbers of workgroups; with one that is not positive nothing runs.

        Raises:
            DeviceError: The device has not as many buffers or workgroups as the kernel needs.
        """
        if min(grid) <= 0:
            return
        most = self._device.limits["max-compute-workgroups-per-dimension"]
        if max(grid) > most:
            raise DeviceError(
                f"kernel '{kernel}' has {max(grid)} workgroups in a dimension; the device allows {most}"
            )
        pipeline, layout = self._pipeline(kernel)
        if self._launches == _LAUNCHES:
            self.submit()
        used, later = self._apart(kernel, places, elements)
        numbers = [*dims, *(place.offset for place in used)]
        if len(numbers) > _ROW // 4:
            raise DeviceError(
                f"kernel '{kernel}' has {len(numbers)} sizes and buffers, more than {_ROW // 4}"
            )
        row = self._launches
        self._numbers[row, : len(numbers)] = numbers
        self._launches += 1
        work = self._commands().begin_compute_pass()
        work.set_pipeline(pipeline)
        work.set_bind_group(0, self._group(kernel, layout, [place.buffer for place in used], row))
        work.dispatch_workgroups(*grid)
        work.end()
        for number, place in later:
            self.copy(used[number], place, elements[number])

    def _apart(
        self, kernel: str, places: Sequence[Place], elements: Sequence[int]
    ) -> tuple[list[Place], list[tuple[int, Place]]]:
        """The buffers of a dispatch, none of them written and used otherwise, which WebGPU forbids: copies
        take the place of some. The second result lists those to copy back after the dispatch, with their
        targets.
        """
        used, later = list(places), []
        for number, is_written in enumerate(self._written[kernel]):
            others = [k for k in range(len(used)) if k != number and used[k].buffer is used[number].buffer]
            if is_written and others:
                used[number] = self._scratch("dispatch", number, elements[number])
                self.copy(places[number], used[number], elements[number])
                later.append((number, places[number]))
        return used, later

    def _pipeline(self, kernel: str) -> tuple[Any, Any]:
        if kernel in self._pipelines:
            return self._pipelines[kernel]
        import wgpu

        written = [*self._written[kernel], 0]
        most = self._device.limits["max-storage-buffers-per-shader-stage"]
        if len(written) > most:
            raise DeviceError(f"kernel '{kernel}' has {len(written)} buffers; the device allows {most}")
        kinds = ("read-only-storage", "storage")
        entries = [
            {"binding": k, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kinds[w]}}
            for k, w in enumerate(written)
        ]
        layout = self._device.create_bind_group_layout(entries=entries)
        pipeline = self._device.create_compute_pipeline(
            layout=self._device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={
                "module": self._device.create_shader_module(code=self._kernels[kernel]),
                "entry_point": "main",
            },
        )
        self._pipelines[kernel] = pipeline, layout
        return pipeline, layout

    def _group(self, kernel: str, layout: Any, buffers: Sequence[Any], row: int) -> Any:
        key = (kernel, row, *map(id, buffers))
        if key not in self._groups:
            if self._parameters is None:
                self._parameters = self.buffer(self._numbers.size)
            entries = [
                {"binding": k, "resource": {"buffer": b, "offset": 0, "size": b.size}}
                for k, b in enumerate(buffers)
            ]
            numbers = {"buffer": self._parameters, "offset": row * _ROW, "size": _ROW}
            entries.append({"binding": len(buffers), "resource": numbers})
            group = self._device.create_bind_group(layout=layout, entries=entries)
            # The group is kept with its buffers, so that no other buffer gets the id of one of them.
            self._groups[key] = (group, list(buffers))
        return self._groups[key][0]


def _open_device() -> Any:
    try:
        import wgpu
    except ImportError:
        raise ArtifactError(
            "running a webgpu artifact needs wgpu: pip install 'tilewright[webgpu]'"
        ) from None
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except Exception as error:  # wgpu raises plain exceptions of several kinds here
        raise ArtifactError(
            f"no WebGPU adapter: install a GPU driver or Mesa's software Vulkan driver ({error})"
        ) from error
    if adapter is None:
        raise ArtifactError("no WebGPU adapter: install a GPU driver or Mesa's software Vulkan driver")
    wanted = ("max-storage-buffers-per-shader-stage", "max-storage-buffer-binding-size", "max-buffer-size")
    limits = {name: adapter.limits[name] for name in wanted if name in adapter.limits}
    return adapter.request_device_sync(required_limits=limits)


def on_device(array: np.ndarray) -> np.ndarray:
    """The elements of an array in 32 bits each.

    Raises:
        TilewrightError: Kernels do not support the array's type.
    """
    if array.dtype == np.float32:
        return np.ascontiguousarray(array)
    if array.dtype.kind in "iub":
        if array.dtype.itemsize == 8 and array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
            array = np.clip(array, -(2**31), 2**31 - 1)  # bounds such as "to the end", not data
        return np.ascontiguousarray(array.astype(np.int32))
    raise TilewrightError(f"WebGPU kernels do not support arrays of {array.dtype}")


__all__ = ["Device", "Place", "on_device"]
