"""`WebgpuLibrary`: a compiled model run on a GPU through wgpu, with the interface of `Library`.

The artifact is a ``.tar`` of ``metadata.json``, ``program.json``, ``kernels/*.wgsl`` and ``weights.bin``. On
the device every element takes 32 bits (see `tilewright.targets.gpu.dialects.wgsl`): integers and booleans are
converted before and after a run.
"""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import ArtifactError, TilewrightError
from tilewright.runtime.expressions import evaluate
from tilewright.runtime.model import CompiledModel, TensorSpec

if TYPE_CHECKING:
    import wgpu


class WebgpuLibrary(CompiledModel):
    """A compiled model of WGSL kernels and a host program as data.

    It can be saved and inspected anywhere. The first run opens the device.

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
            program: The sizes of the buffers for intermediate results (``"slots"``), and the launches of
                kernels and the copies in order (``"steps"``).
            kernels: The WGSL text of each kernel by name.
            weights: The constants in the order of their numbers in `program`, each of shape (elements).
            where: The path of the artifact, for messages.
        """
        self._where = where
        self._program, self._kernels, self._weights = program, kernels, list(weights)
        self._describe(metadata, where)
        self._lock = threading.Lock()
        self._pipelines: dict[str, Any] = {}
        self._closed = False

    @cached_property
    def _device(self) -> Any:
        return _open_device()

    @cached_property
    def _constants(self) -> list[Any]:
        return [self._upload(w) for w in self._weights]

    def code_text(self, level: str) -> str | None:
        if level not in ("wgsl", "asm"):
            return None
        return "\n".join(f"// kernel {name}\n{text}" for name, text in self._kernels.items())

    def _buffer(self, elements: int) -> Any:
        device = self._device
        import wgpu

        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        return device.create_buffer(size=max(4 * elements, 16), usage=usage)

    def _upload(self, array: np.ndarray) -> Any:
        data = _on_device(array)
        buffer = self._buffer(data.size)
        if data.size:
            self._device.queue.write_buffer(buffer, 0, data)
        return buffer

    def _pipeline(self, name: str) -> Any:
        pipeline = self._pipelines.get(name)
        if pipeline is None:
            module = self._device.create_shader_module(code=self._kernels[name])
            pipeline = self._pipelines[name] = self._device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": "main"}
            )
        return pipeline

    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        with self._lock:
            if self._closed:
                raise ArtifactError(f"{self._where}: this library has been closed")
            return self._run(arrays, out)

    def _run(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        for array, spec, dtype in zip(arrays, self.inputs, self._dtypes, strict=True):
            if array.dtype != dtype or array.ndim != len(spec.shape):
                self._refuse(array, spec)
        symbols = self.symbols_of([a.shape for a in arrays])
        shapes = [tuple(evaluate(d, symbols) for d in spec.shape) for spec in self.outputs]
        memory: dict[str, list[Any]] = {
            "input": [self._upload(a) for a in arrays],
            "output": [self._buffer(int(np.prod(s, dtype=np.int64))) for s in shapes],
            "constant": self._constants,
            "slot": [
                self._buffer(max(evaluate(f, symbols) for f in sizes)) for sizes in self._program["slots"]
            ],
        }
        encoder = self._device.create_command_encoder()
        for step in self._program["steps"]:
            if "copy" in step:
                (a, i), (b, j) = step["copy"]
                size = 4 * evaluate(step["size"], symbols)
                if size:
                    encoder.copy_buffer_to_buffer(memory[a][i], 0, memory[b][j], 0, size)
            else:
                self._dispatch(encoder, step, memory, symbols)
        self._device.queue.submit([encoder.finish()])
        results = [
            _from_device(self._device.queue.read_buffer(memory["output"][k]), shape, dtype)
            for k, (shape, dtype) in enumerate(zip(shapes, self._output_dtypes, strict=True))
        ]
        if out is None:
            return results
        for target, result in zip(out, results, strict=True):
            np.copyto(target, result)
        return list(out)

    def _refuse(self, array: np.ndarray, spec: TensorSpec) -> None:
        from tilewright.errors import ShapeError

        if array.ndim != len(spec.shape):
            raise ShapeError(f"input '{spec.name}': expected {len(spec.shape)} dimensions, got {array.ndim}")
        raise ShapeError(f"input '{spec.name}': expected {spec.dtype}, got {array.dtype}")

    def _dispatch(
        self,
        encoder: wgpu.GPUCommandEncoder,
        step: dict[str, Any],
        memory: dict[str, list[Any]],
        symbols: dict[str, int],
    ) -> None:
        grid = [evaluate(e, symbols) for e in step["grid"]]
        if min(grid) <= 0:
            return
        pipeline = self._pipeline(step["kernel"])
        buffers = [memory[kind][k] for kind, k in step["buffers"]]
        # The kernel adds an offset to each buffer; here all of them begin at their first element.
        sizes = self._upload(np.array([*(symbols[s] for s in step["dims"]), *[0] * len(buffers)], np.int32))
        entries = [
            {"binding": k, "resource": {"buffer": b, "offset": 0, "size": b.size}}
            for k, b in enumerate([*buffers, sizes])
        ]
        used = _bindings_used(self._kernels[step["kernel"]], len(buffers) + 1)
        group = self._device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0), entries=[entries[k] for k in used]
        )
        work = encoder.begin_compute_pass()
        work.set_pipeline(pipeline)
        work.set_bind_group(0, group)
        work.dispatch_workgroups(*grid)
        work.end()

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
            "program.json": json.dumps(self._program).encode(),
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
            self._pipelines.clear()
            self.__dict__.pop("_constants", None)


def load_webgpu(path: str | Path) -> WebgpuLibrary:
    """Load an artifact that `WebgpuLibrary.save` wrote.

    Raises:
        ArtifactError: The file is not such an artifact, or is damaged.
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
        with np.load(io.BytesIO(files["weights.npz"]), allow_pickle=False) as stored:
            weights = [stored[f"arr_{k}"] for k in range(len(stored.files))]
        kernels = {
            name.removeprefix("kernels/").removesuffix(".wgsl"): data.decode()
            for name, data in files.items()
            if name.startswith("kernels/")
        }
        metadata, program = parse_metadata(path, files["metadata.json"]), json.loads(files["program.json"])
        _check_program(program, kernels, len(weights))
    return WebgpuLibrary(metadata, program, kernels, weights, str(path))


def _check_program(program: dict[str, Any], kernels: Mapping[str, str], constants: int) -> None:
    """Raises KeyError, IndexError or TypeError: the program has not the form that `targets.webgpu.program`
    describes.
    """
    slots = len([[*sizes] for sizes in program["slots"]])
    counts = {"constant": constants, "slot": slots}
    for step in program["steps"]:
        for place, number in step["copy"] if "copy" in step else step["buffers"]:
            if place not in ("input", "output", "constant", "slot") or not 0 <= number < counts.get(
                place, number + 1
            ):
                raise KeyError(f"no buffer {place!r} {number}")
        if "copy" in step:
            str(step["size"])
        else:
            kernels[step["kernel"]], [*step["grid"]], [*step["dims"]]


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


def _bindings_used(text: str, count: int) -> list[int]:
    """The numbers of the bindings that the shader uses: an automatic layout has no others."""
    body = text[text.index("fn main(") :]
    return [*(k for k in range(count - 1) if f"b{k}[" in body), count - 1]


def _on_device(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.float32:
        return np.ascontiguousarray(array)
    if array.dtype.kind in "iub":
        if array.dtype.itemsize == 8 and array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
            array = np.clip(array, -(2**31), 2**31 - 1)  # bounds such as "to the end", not data
        return np.ascontiguousarray(array.astype(np.int32))
    raise TilewrightError(f"WebGPU kernels do not support arrays of {array.dtype}")


def _from_device(data: memoryview, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    count = int(np.prod(shape, dtype=np.int64))
    stored = np.frombuffer(data, np.float32 if dtype == np.float32 else np.int32)[:count]
    return stored.astype(dtype).reshape(shape)
