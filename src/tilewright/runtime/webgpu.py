"""`WebgpuLibrary`: a compiled model run on a GPU through wgpu, with the interface of `Library`.

The artifact is a ``.tar`` of ``metadata.json``, ``program.json``, ``kernels/*.wgsl`` and ``weights.bin``.
The weights are bytes as the device has them, so that a page in a browser copies them as they arrive; they can
be in a file beside the archive. On the device 64-bit integers take 32 bits (see
`tilewright.targets.gpu.dialects.wgsl`): they are converted before and after a run.
"""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tilewright.errors import ArtifactError, ShapeError
from tilewright.runtime.expressions import evaluate
from tilewright.runtime.model import CompiledModel, LibraryFunction, TensorSpec
from tilewright.runtime.tensors import dtype_named
from tilewright.runtime.webgpu_device import Device, Place, on_device, stored_as
from tilewright.runtime.webgpu_program import Run, check_program

VERSION = 4
"""The version of the form of ``program.json``: 3 had weights in the format of NumPy; 2 had elements in place
of bytes; 1, with ``slots``, does not state its version.
"""
_ALIGNMENT = 64
"""Bytes; each weight begins at a multiple of it."""
_WEIGHTS = "weights.bin"


class WebgpuLibrary(CompiledModel):
    """A compiled model of WGSL kernels and a host program as data.

    It can be saved and inspected anywhere. The first run opens the device. Runs of several threads follow
    one another.

    Raises:
        ArtifactError: At the first run: wgpu is not installed, or there is no adapter (a GPU or a software
            Vulkan driver).
    """

    def __init__(
        self,
        metadata: dict[str, Any],
        program: dict[str, Any],
        kernels: dict[str, str],
        weights: Sequence[np.ndarray],
        where: str = "webgpu",
    ) -> None:
        """`tilewright.compile` and `tilewright.load` make these libraries.

        Args:
            metadata: The artifact's metadata; see `CompiledModel.metadata`.
            program: The host programs; see `tilewright.targets.webgpu.program`.
            kernels: The WGSL text of each kernel by name.
            weights: The constants in the order of their numbers in `program`: their memory on the device, as
                `on_device` gives it, each uint8 of shape (bytes).
            where: The path of the artifact, for messages.
        """
        self._where = where
        self._program, self._kernels, self._weights = program, kernels, list(weights)
        self.name = "main"
        self._lock = threading.Lock()
        self._memory: dict[Any, Place] = {}
        """Buffers that are kept between runs."""
        self._closed = False
        self._describe(metadata, where)

    @cached_property
    def _device(self) -> Device:
        features = self.metadata["target"].get("features", [])
        return Device(self._kernels, self._program["kernels"], features)

    def _function(self, name: str, entry: dict[str, Any]) -> CompiledModel:
        return LibraryFunction(self, name, [*self._program["functions"]].index(name), entry)

    def code_text(self, level: str) -> str | None:
        if level not in ("wgsl", "asm"):
            return None
        return "\n".join(f"// kernel {name}\n{text}" for name, text in self._kernels.items())

    def _weight(self, number: int) -> Place:
        key = ("weight", number)
        if key not in self._memory:
            self._write(key, self._weights[number])
        return self._memory[key]

    def _keep(self, key: Any, array: np.ndarray) -> Place:
        """Write an array to a buffer that is kept."""
        return self._write(key, on_device(array))

    def _write(self, key: Any, data: np.ndarray) -> Place:
        """Write the bytes of `on_device` to a buffer that is kept."""
        place = self._memory[key] = self._device.at_least(self._memory.get(key), data.nbytes)
        self._device.write(place, data)
        return place

    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        return self._execute_function(self, arrays, out)

    def _execute_function(
        self, function: Any, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None
    ) -> list[np.ndarray]:
        with self._lock:
            self._refuse_closed()
            results = self._run(function, arrays)
        if out is None:
            return results
        for target, result, spec in zip(out, results, function.outputs, strict=True):
            if target.shape != result.shape:
                raise ShapeError(
                    f"output '{spec.name}': expected {list(result.shape)}, got {list(target.shape)}"
                )
            np.copyto(target, result)
        return list(out)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ArtifactError(f"{self._where}: this library has been closed")

    def _run(self, function: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
        for array, spec, dtype in zip(arrays, function.inputs, function._dtypes, strict=True):
            if array.dtype != dtype or array.ndim != len(spec.shape):
                _refuse(array, spec)
        symbols = function.symbols_of([a.shape for a in arrays])
        name, program = function.name, self._program["functions"][function.name]
        run = Run(self._device, self._weight, self._memory, name, program, symbols)
        for k, array in enumerate(arrays):
            run.places[program["inputs"][k]] = self._keep(("input", name, k), array)
        for number, state in program["states"]:
            run.places[number] = self._state(state)
        late = [tensor.get("late", False) for tensor in function.metadata["outputs"]]
        for k, (number, spec) in enumerate(zip(program["outputs"], function.outputs, strict=True)):
            if not late[k]:
                count = int(np.prod([evaluate(d, symbols) for d in spec.shape], dtype=np.int64))
                size = count * stored_as(function._output_dtypes[k]).itemsize
                run.places[number] = run.keep(("output", name, k), size)
        run.steps(program["steps"])
        for k in function._updated:
            array = arrays[k]
            array[...] = self._device.read(run.places[program["inputs"][k]], array.shape, array.dtype)
        return [
            self._device.read(run.places[number], [evaluate(d, symbols) for d in spec.shape], dtype)
            for number, spec, dtype in zip(
                program["outputs"], function.outputs, function._output_dtypes, strict=True
            )
        ]

    # -- States ----------------------------------------------------------------------------------------------

    def _state(self, index: int) -> Place:
        key = ("state", index)
        if key not in self._memory:
            self._write(key, self._first(index))
        return self._memory[key]

    def _first(self, index: int) -> np.ndarray:
        state = self._program["states"][index]
        if state["first"] is None:
            return np.zeros(-(-evaluate(state["bytes"], {}) // 4) * 4, np.uint8)
        return self._weights[state["first"]]

    def _state_memory(self) -> WebgpuLibrary:
        return self

    def read_state(self, index: int, size: int) -> np.ndarray:
        """A copy of a state's bytes, uint8 of shape (size).

        Args:
            index: The state's number in the metadata.
            size: The size of the state in bytes.

        Raises:
            ArtifactError: The library has been closed.
        """
        dtype = dtype_named(self.metadata["states"][index]["dtype"])
        with self._lock:
            self._refuse_closed()
            elements = self._device.read(self._state(index), (size // dtype.itemsize,), dtype)
        return elements.view(np.uint8)

    def write_state(self, index: int, data: np.ndarray) -> None:
        """Replace a state's bytes.

        Args:
            index: The state's number in the metadata.
            data: The new bytes, uint8 of the shape (size) of the whole state.

        Raises:
            ArtifactError: The library has been closed.
        """
        with self._lock:
            self._refuse_closed()
            self._keep(("state", index), data.view(dtype_named(self.metadata["states"][index]["dtype"])))

    def reset_states(self) -> None:
        """Give all states their first values again.

        Raises:
            ArtifactError: The library has been closed.
        """
        with self._lock:
            self._refuse_closed()
            for index in range(len(self._program["states"])):
                self._write(("state", index), self._first(index))

    def session(self) -> WebgpuLibrary:
        """A library with the same code and weights and with states of its own.

        Raises:
            ArtifactError: The library has been closed.
        """
        self._refuse_closed()
        made = WebgpuLibrary(self.metadata, self._program, self._kernels, self._weights, self._where)
        made.report, made.origin = self.report, self.origin
        return made

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        """Write the artifact.

        Args:
            path: The file to write, with the suffix ``.tar``.
            weights: None or ``"inside"``, or ``"beside"``: in a file of the same name with the suffix
                ``.weights``.
            prefix: None: an artifact for WebGPU has no functions in C.

        Raises:
            ArtifactError: The suffix is another one, a prefix is asked for, or a file cannot be written.
        """
        from tilewright.artifact.kinds import check_suffix
        from tilewright.artifact.package import save_files
        from tilewright.artifact.weights import SUFFIX, gather_weights, write_weights
        from tilewright.runtime.model import goes_beside

        path = Path(path)
        check_suffix(path, (".tar",), "webgpu")
        if prefix is not None:
            raise ArtifactError(
                f"{path}: a prefix is for shared libraries; an artifact for WebGPU has no functions in C"
            )
        sizes = [data.nbytes for data in self._weights]
        ends = list(accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
        offsets = [0, *ends][: len(sizes)]
        parts = [(at, _Bytes(data)) for at, data in zip(offsets, self._weights, strict=True)]
        metadata, files = {k: v for k, v in self.metadata.items() if k != "weights"}, {}
        if goes_beside(path, weights):
            file = path.with_suffix(SUFFIX)
            identity = write_weights(file, parts, max(ends, default=0))
            metadata["weights"] = identity.to_metadata(file.name)
        else:
            files[_WEIGHTS] = gather_weights(parts, max(ends, default=0)).tobytes()
        places = [list(place) for place in zip(offsets, sizes, strict=True)]
        files |= {
            "metadata.json": json.dumps(metadata, ensure_ascii=False).encode(),
            "program.json": json.dumps({**self._program, "version": VERSION, "weights": places}).encode(),
            **{f"kernels/{name}.wgsl": text.encode() for name, text in self._kernels.items()},
        }
        return save_files(path, files)

    def close(self) -> None:
        """Free the memory on the device."""
        with self._lock:
            self._closed = True
            self._memory.clear()
            self.__dict__.pop("_device", None)


@dataclass(frozen=True)
class _Bytes:
    """A weight for a file of weights."""

    array: np.ndarray
    numpy_dtype: ClassVar[np.dtype] = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def write_to(self, out: np.ndarray) -> None:
        out[...] = self.array


def load_webgpu(path: str | Path, weights: str | Path | None = None) -> WebgpuLibrary:
    """Load an artifact that `WebgpuLibrary.save` wrote.

    Args:
        path: The archive.
        weights: The file of its weights, if they are not inside. The default is the file beside it.

    Raises:
        ArtifactError: The file is not such an artifact, is damaged, or is of another version; or its weights
            are missing.
    """
    from tilewright.artifact.trailer import damaged, parse_metadata, verify_file
    from tilewright.artifact.weights import find_beside, read_weights

    verify_file(Path(path))
    with damaged(path, "the archive"):
        with tarfile.open(path) as archive:
            files = {
                m.name: stream.read()
                for m in archive.getmembers()
                if (stream := archive.extractfile(m)) is not None
            }
        if "program.json" not in files:
            raise ArtifactError(
                f"{path}: an archive of objects and sources cannot be loaded: link it to a shared library "
                "first"
            )
        program = json.loads(files["program.json"])
        version = program.get("version", 1 if "slots" in program else VERSION)
        if version != VERSION:
            raise ArtifactError(
                f"{path}: its program has version {version}, this Tilewright supports version {VERSION}: "
                "compile the model again"
            )
        kernels = {
            name.removeprefix("kernels/").removesuffix(".wgsl"): data.decode()
            for name, data in files.items()
            if name.startswith("kernels/")
        }
        metadata = parse_metadata(path, files["metadata.json"])
        places = [(int(at), int(size)) for at, size in program.pop("weights")]
        check_program(program, kernels, len(places))
        beside = find_beside(Path(path), metadata) if weights is None else Path(weights)
        if beside is None:
            block = np.frombuffer(files[_WEIGHTS], np.uint8)
        else:
            block = read_weights(beside, metadata)
        if any(at < 0 or size < 0 or at + size > block.nbytes for at, size in places):
            raise ValueError("a weight lies outside of the weights")
    arrays = [block[at : at + size] for at, size in places]
    return WebgpuLibrary(metadata, program, kernels, arrays, str(path))


def _refuse(array: np.ndarray, spec: TensorSpec) -> None:
    if array.ndim != len(spec.shape):
        raise ShapeError(f"input '{spec.name}': expected {len(spec.shape)} dimensions, got {array.ndim}")
    raise ShapeError(f"input '{spec.name}': expected {spec.dtype}, got {array.dtype}")
