"""`WebgpuLibrary`: a compiled model run on a GPU through wgpu, with the interface of `Library`.

The artifact is a ``.tar`` of ``metadata.json``, ``program.json``, ``kernels/*.wgsl`` and ``weights.npz``. On
the device 64-bit integers take 32 bits (see `tilewright.targets.gpu.dialects.wgsl`): they are converted
before and after a run.
"""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import ArtifactError, ShapeError
from tilewright.runtime.expressions import evaluate
from tilewright.runtime.model import CompiledModel, LibraryFunction, TensorSpec
from tilewright.runtime.tensors import dtype_named
from tilewright.runtime.webgpu_device import Device, Place, on_device, stored_as
from tilewright.runtime.webgpu_program import Run, check_program

VERSION = 3
"""The version of the form of ``program.json``: 2 had elements in place of bytes; 1, with ``slots``, does not
state its version.
"""


class WebgpuLibrary(CompiledModel):
    """A compiled model of WGSL kernels and a host program as data.

    It can be saved and inspected anywhere. The first run opens the device. Runs of several threads follow
    one another.

    Raises:
        ArtifactError: At the first run: wgpu is not installed, or there is no adapter (a GPU or a software
            Vulkan driver).
    """

    weights_beside = False

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
            weights: The constants in the order of their numbers in `program`, each of shape (elements).
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
        return Device(self._kernels, self._program["kernels"])

    def _function(self, name: str, entry: dict[str, Any]) -> CompiledModel:
        return LibraryFunction(self, name, [*self._program["functions"]].index(name), entry)

    def code_text(self, level: str) -> str | None:
        if level not in ("wgsl", "asm"):
            return None
        return "\n".join(f"// kernel {name}\n{text}" for name, text in self._kernels.items())

    def _weight(self, number: int) -> Place:
        key = ("weight", number)
        if key not in self._memory:
            self._keep(key, self._weights[number])
        return self._memory[key]

    def _keep(self, key: Any, array: np.ndarray) -> Place:
        """Write an array to a buffer that is kept."""
        data = on_device(array)
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
            self._keep(key, self._first(index))
        return self._memory[key]

    def _first(self, index: int) -> np.ndarray:
        state, entry = self._program["states"][index], self.metadata["states"][index]
        if state["first"] is None:
            dtype = dtype_named(entry["dtype"])
            return np.zeros(evaluate(state["bytes"], {}) // stored_as(dtype).itemsize, dtype)
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
                self._keep(("state", index), self._first(index))

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
        """Write the artifact (a ``.tar``), with its weights inside.

        Args:
            path: The file to write, with the suffix ``.tar``.
            weights: None or ``"inside"``; an artifact for WebGPU has its weights inside.
            prefix: None: an artifact for WebGPU has no functions in C.

        Raises:
            ArtifactError: The suffix is another one, a prefix or weights beside the artifact are asked for,
                or the file cannot be written.
        """
        from tilewright.artifact.kinds import check_suffix
        from tilewright.artifact.package import save_files
        from tilewright.runtime.model import goes_beside

        check_suffix(path, (".tar",), "webgpu")
        if prefix is not None:
            raise ArtifactError(
                f"{path}: a prefix is for shared libraries; an artifact for WebGPU has no functions in C"
            )
        if goes_beside(path, weights):
            raise ArtifactError(
                f"{path}: an artifact for WebGPU has its weights inside: leave weights='beside' out"
            )
        files = {
            "metadata.json": json.dumps(self.metadata, ensure_ascii=False).encode(),
            "program.json": json.dumps({**self._program, "version": VERSION}).encode(),
            **{f"kernels/{name}.wgsl": text.encode() for name, text in self._kernels.items()},
        }
        stream = io.BytesIO()
        np.savez(stream, *self._weights)
        files["weights.npz"] = stream.getvalue()
        return save_files(Path(path), files)

    def close(self) -> None:
        """Free the memory on the device."""
        with self._lock:
            self._closed = True
            self._memory.clear()
            self.__dict__.pop("_device", None)


def load_webgpu(path: str | Path) -> WebgpuLibrary:
    """Load an artifact that `WebgpuLibrary.save` wrote.

    Raises:
        ArtifactError: The file is not such an artifact, is damaged, or is of another version.
    """
    from tilewright.artifact.trailer import damaged, parse_metadata, verify_file

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
        with np.load(io.BytesIO(files["weights.npz"]), allow_pickle=False) as stored:
            weights = [stored[f"arr_{k}"] for k in range(len(stored.files))]
        kernels = {
            name.removeprefix("kernels/").removesuffix(".wgsl"): data.decode()
            for name, data in files.items()
            if name.startswith("kernels/")
        }
        metadata = parse_metadata(path, files["metadata.json"])
        check_program(program, kernels, len(weights))
    return WebgpuLibrary(metadata, program, kernels, weights, str(path))


def _refuse(array: np.ndarray, spec: TensorSpec) -> None:
    if array.ndim != len(spec.shape):
        raise ShapeError(f"input '{spec.name}': expected {len(spec.shape)} dimensions, got {array.ndim}")
    raise ShapeError(f"input '{spec.name}': expected {spec.dtype}, got {array.dtype}")
