"""A WebGPU device as the programs of models use it: memory, dispatches, copies and reads. Sizes are bytes;
64-bit integers take 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from tilewright.errors import ArtifactError, DeviceError, TilewrightError

_FEATURES = {"f16": "shader-f16"}
"""WebGPU's names of the features of targets."""
_LAUNCHES = 256
"""Dispatches whose sizes and offsets one buffer holds."""
_ROW = 256
"""Bytes between them: bindings begin at multiples of up to 256."""

_PART = 16
"""Bytes; parts that are copied into one buffer begin at multiples of it."""

_COPY = "copy bytes"
"""The name of the kernel that copies what are no whole words. An invocation changes a word of the target."""
_COPY_THREADS = 256
_COPY_ROW = 32768
"""Workgroups in the first dimension."""
_COPY_TEXT = f"""@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> words: array<u32>;
@group(0) @binding(2) var<uniform> numbers: vec4u;
@compute @workgroup_size({_COPY_THREADS})
fn main(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {{
  let first = numbers[1];
  let end = first + numbers[2];
  let word = first / 4u + (block.y * {_COPY_ROW}u + block.x) * {_COPY_THREADS}u + thread;
  if (4u * word >= end) {{ return; }}
  var value = words[word];
  for (var k = 0u; k < 4u; k++) {{
    let at = 4u * word + k;
    if (at >= first && at < end) {{
      let origin = at - first + numbers[0];
      let byte = (source[origin >> 2u] >> (8u * (origin & 3u))) & 255u;
      value = (value & ~(255u << (8u * k))) | (byte << (8u * k));
    }}
  }}
  words[word] = value;
}}
"""


@dataclass
class Place:
    """A part of a buffer of the device that begins at a byte."""

    buffer: Any
    offset: int = 0


class Device:
    """An open device with the pipelines of a library, and the commands that have not been submitted yet.

    Raises:
        ArtifactError: wgpu is not installed, or there is no adapter.
    """

    def __init__(
        self,
        kernels: Mapping[str, str],
        interfaces: Mapping[str, Mapping[str, Sequence[int]]],
        features: Sequence[str] = (),
    ) -> None:
        """Open the device.

        Args:
            kernels: The WGSL text of each kernel by name.
            interfaces: For each kernel the ``"bytes"`` of an element of each of its buffers, the numbers of
                the buffers' ``"bindings"``, and which of these it has ``"written"``. The buffers of one
                binding are parts of one buffer of the device.
            features: The features of the target that the kernels were compiled for.

        Raises:
            DeviceError: The adapter lacks a feature.
        """
        self._kernels = {**kernels, _COPY: _COPY_TEXT}
        copies = {"bytes": [4, 4], "bindings": [0, 1], "written": [0, 1]}
        self._interfaces = {**interfaces, _COPY: copies}
        self._device = _open_device(features)
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

    def buffer(self, size: int) -> Any:
        """A new buffer of zeros."""
        return self._device.create_buffer(size=max(_words(size), 16), usage=self._usage)

    def at_least(self, place: Place | None, size: int, keep: bool = False) -> Place:
        """`place`, or a new one if it is too small. With `keep` its content is copied to the new one."""
        if place is not None and place.buffer.size >= size:
            return place
        made = Place(self.buffer(size))
        self._groups.clear()
        if keep and place is not None:
            self.copy(place, made, place.buffer.size)
        return made

    def write(self, place: Place, data: np.ndarray) -> None:
        """Replace the content of a whole buffer, after all commands so far, by what `on_device` gave."""
        if data.size:
            self.submit()
            self._device.queue.write_buffer(place.buffer, place.offset, data)

    def read(self, place: Place, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Wait for all commands so far and return an array of the elements from the place on."""
        self.submit()
        count, stored = int(np.prod(shape, dtype=np.int64)), stored_as(dtype)
        if not count:
            return np.zeros(shape, dtype)
        before = place.offset % 4
        size = _words(before + count * stored.itemsize)
        data = self._device.queue.read_buffer(place.buffer, place.offset - before, size)
        elements = np.frombuffer(data, np.uint8)[before : before + count * stored.itemsize].view(stored)
        return elements.astype(dtype).reshape(shape)

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

    def copy(self, source: Place, target: Place, size: int) -> None:
        """Copy bytes from one place to another, whose buffers may be one."""
        if not size:
            return
        if source.buffer is target.buffer:
            self.copy(source, aside := self._scratch("copy", 0, size), size)
            source = aside
        if source.offset % 4 == target.offset % 4 == size % 4 == 0:
            self._commands().copy_buffer_to_buffer(
                source.buffer, source.offset, target.buffer, target.offset, size
            )
            return
        groups = -(-(target.offset % 4 + size) // (4 * _COPY_THREADS))
        grid = min(groups, _COPY_ROW), -(-groups // _COPY_ROW), 1
        self._launch(_COPY, [source, target], [source.offset, target.offset, size], grid)

    def _scratch(self, what: str, number: int, size: int) -> Place:
        place = self._aside[what, number] = self.at_least(self._aside.get((what, number)), size)
        return place

    def dispatch(
        self,
        kernel: str,
        places: Sequence[Place],
        sizes: Sequence[int],
        dims: Sequence[int],
        grid: Sequence[int],
    ) -> None:
        """Run a kernel.

        Args:
            kernel: Its name.
            places: Its buffers.
            sizes: The bytes of each.
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
        used, later = self._apart(kernel, places, sizes)
        elements = self._interfaces[kernel]["bytes"]
        offsets = [place.offset // size for place, size in zip(used, elements, strict=True)]
        self._launch(kernel, used, [*dims, *offsets], grid)
        for source, target, size in later:
            self.copy(source, target, size)

    def _launch(
        self, kernel: str, places: Sequence[Place], numbers: Sequence[int], grid: Sequence[int]
    ) -> None:
        pipeline, layout = self._pipeline(kernel)
        if self._launches == _LAUNCHES:
            self.submit()
        if len(numbers) > _ROW // 4:
            raise DeviceError(
                f"kernel '{kernel}' has {len(numbers)} sizes and buffers, more than {_ROW // 4}"
            )
        row = self._launches
        self._numbers[row, : len(numbers)] = numbers
        self._launches += 1
        work = self._commands().begin_compute_pass()
        work.set_pipeline(pipeline)
        bindings = self._interfaces[kernel]["bindings"]
        bound = dict(zip(bindings, (place.buffer for place in places), strict=True))
        work.set_bind_group(0, self._group(kernel, layout, [bound[b] for b in sorted(bound)], row))
        work.dispatch_workgroups(*grid)
        work.end()

    def _apart(
        self, kernel: str, places: Sequence[Place], sizes: Sequence[int]
    ) -> tuple[list[Place], list[tuple[Place, Place, int]]]:
        """The places of a dispatch, none of them in a buffer that is written and has another binding, too,
        which WebGPU forbids, those of a binding in one buffer, and each beginning at an element: copies take
        the place of some. The second result lists those to copy back after the dispatch, with their targets
        and bytes.
        """
        used, later = list(places), []
        interface = self._interfaces[kernel]
        for binding, is_written in enumerate(interface["written"]):
            mine = [k for k, b in enumerate(interface["bindings"]) if b == binding]
            parts: dict[int, list[int]] = {}
            for k in mine:
                parts.setdefault(id(places[k].buffer), []).append(k)
            others = [k for k in range(len(used)) if k not in mine and id(used[k].buffer) in parts]
            starts = [min(places[k].offset for k in part) for part in parts.values()]
            spans = [
                max(places[k].offset + sizes[k] for k in part) - start
                for part, start in zip(parts.values(), starts, strict=True)
            ]
            aligned = starts[0] % interface["bytes"][mine[0]] == 0
            if len(parts) == 1 and aligned and not (is_written and others):
                continue
            ends = list(accumulate(-(-size // _PART) * _PART for size in spans))
            copied = self._scratch("dispatch", binding, ends[-1])
            at = [0, *ends]
            for part, start, size, begin in zip(parts.values(), starts, spans, at, strict=False):
                source, target = Place(places[part[0]].buffer, start), Place(copied.buffer, begin)
                self.copy(source, target, size)
                if is_written:
                    later.append((target, source, size))
                for k in part:
                    used[k] = Place(copied.buffer, begin + places[k].offset - start)
        return used, later

    def _pipeline(self, kernel: str) -> tuple[Any, Any]:
        if kernel in self._pipelines:
            return self._pipelines[kernel]
        import wgpu

        written = self._interfaces[kernel]["written"]
        most = self._device.limits["max-storage-buffers-per-shader-stage"]
        if len(written) > most:
            raise DeviceError(f"kernel '{kernel}' has {len(written)} buffers; the device allows {most}")
        kinds = ["storage" if w else "read-only-storage" for w in written]
        entries = [
            {"binding": k, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
            for k, kind in enumerate([*kinds, "uniform"])
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
        import wgpu

        key = (kernel, row, *map(id, buffers))
        if key not in self._groups:
            if self._parameters is None:
                usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
                self._parameters = self._device.create_buffer(size=self._numbers.nbytes, usage=usage)
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


def _open_device(features: Sequence[str]) -> Any:
    if "subgroups" in features:
        raise DeviceError(
            "wgpu does not compile kernels with subgroups: run this library in a browser, or compile the "
            "model for webgpu without this feature"
        )
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
    needed = [_FEATURES[feature] for feature in features]
    for feature in needed:
        if feature not in adapter.features:
            raise DeviceError(
                f"this library needs a GPU with the feature {feature}, which the adapter lacks: compile the "
                "model for webgpu without features"
            )
    return adapter.request_device_sync(required_limits=limits, required_features=needed)


def on_device(array: np.ndarray) -> np.ndarray:
    """The memory of an array on the device, uint8 of shape (bytes), whose size is a multiple of 4.

    Raises:
        TilewrightError: Kernels do not support the array's type.
    """
    stored = stored_as(array.dtype)
    if stored != array.dtype:
        if array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
            array = np.clip(array, -(2**31), 2**31 - 1)  # bounds such as "to the end", not data
        array = array.astype(stored)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return np.pad(data, (0, _words(data.size) - data.size)) if data.size % 4 else data


def stored_as(dtype: np.dtype) -> np.dtype:
    """The type of an array's elements on the device.

    Raises:
        TilewrightError: Kernels do not support the array's type.
    """
    if dtype.kind in "iu" and dtype.itemsize == 8:
        return np.dtype(np.int32)
    if dtype.itemsize > 4:
        raise TilewrightError(f"WebGPU kernels do not support arrays of {dtype}")
    return dtype


def _words(size: int) -> int:
    """The bytes of the words that so many bytes take."""
    return -(-size // 4) * 4


__all__ = ["Device", "Place", "on_device", "stored_as"]
