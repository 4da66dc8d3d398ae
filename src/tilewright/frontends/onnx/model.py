"""Reading ONNX files: the checked protobuf and its tensors as NumPy arrays, large ones mapped from disk.

In: a path, serialized bytes or a ``ModelProto``. Out: the ``ModelProto`` and a function from ``TensorProto`` to array. Nothing here
interprets operators.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CompileError
from ...ir.types import DType

OLDEST_OPSET, NEWEST_OPSET = 1, 28

# TensorProto.DataType to dtypes; the missing ones (string, complex, 8-bit and narrower floats, 4-bit integers) are not supported.
DTYPES: dict[int, DType] = {
    1: DType.named("f32"),
    2: DType.named("ui8"),
    3: DType.named("i8"),
    4: DType.named("ui16"),
    5: DType.named("i16"),
    6: DType.named("i32"),
    7: DType.named("i64"),
    9: DType.named("i1"),
    10: DType.named("f16"),
    11: DType.named("f64"),
    12: DType.named("ui32"),
    13: DType.named("ui64"),
    16: DType.named("bf16"),
}


def dtype_of(code: int, where: str) -> DType:
    """The dtype of a ``TensorProto.DataType`` number.

    Raises:
        CompileError: it is one that is not supported; `where` names the tensor.
    """
    found = DTYPES.get(code)
    if found is None:
        import onnx

        known = onnx.TensorProto.DataType.Name(code) if code in onnx.TensorProto.DataType.values() else str(code)
        raise CompileError(f"{where} has element type {known.lower()}, which is not supported")
    return found


class OnnxFile:
    """A model and where it came from; external data is relative to its folder (None: from memory)."""

    def __init__(self, model: Any, path: Path | None, name: str) -> None:
        self.model = model
        self.path = path
        self.folder = None if path is None else path.resolve().parent
        self.name = name
        self._maps: dict[Path, np.ndarray[Any, Any]] = {}

    def array(self, tensor: Any, where: str = "") -> np.ndarray[Any, Any]:
        """The content of a ``TensorProto``, without copying external data.

        Raises:
            CompileError: unsupported element type, or the data is missing or too short.
        """
        from onnx import numpy_helper

        where = where or f"tensor '{tensor.name}'"
        dtype = dtype_of(tensor.data_type, where)
        shape = tuple(tensor.dims)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if tensor.data_location == tensor.EXTERNAL:
            raw = self._external(tensor, size, where)
        elif tensor.HasField("raw_data"):
            raw = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            array = numpy_helper.to_array(tensor)
            return np.asarray(array, dtype.numpy)
        if raw.size != size:
            raise CompileError(f"{where} has {raw.size} bytes of data, but {dtype.label}{list(shape)} needs {size}")
        return raw.view(dtype.numpy).reshape(shape)

    def _external(self, tensor: Any, size: int, where: str) -> np.ndarray[Any, Any]:
        fields = {e.key: e.value for e in tensor.external_data}
        location = fields.get("location", "")
        folder = self.folder if self.folder is not None else Path.cwd()
        path = folder / location
        if not location or os.path.isabs(location) or ".." in Path(location).parts:
            raise CompileError(f"{where} has its data in {location!r}, which is not inside the model's folder")
        if path not in self._maps:
            if not path.is_file():
                hint = "" if self.folder is not None else "; pass the path of the model instead of a ModelProto"
                raise CompileError(f"{where} has its data in '{path}', which does not exist{hint}")
            empty = path.stat().st_size == 0
            self._maps[path] = np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, mode="r")
        data = self._maps[path]
        offset, length = int(fields.get("offset", 0)), int(fields.get("length", size))
        if offset + length > data.size:
            raise CompileError(
                f"{where} needs bytes {offset} to {offset + length} of '{path}', which has only {data.size}: the file is truncated"
            )
        # A plain view of the mapping: no data is read here.
        return np.asarray(data)[offset : offset + length]


def read_model(source: Any) -> OnnxFile:
    """The model behind a path, bytes or a ``ModelProto``, checked to be one this front end can read.

    Raises:
        CompileError: no such file, not an ONNX model, truncated, or an opset outside ``OLDEST_OPSET..NEWEST_OPSET``.
    """
    import onnx

    path: Path | None = None
    if isinstance(source, onnx.ModelProto):
        model, name = source, "the model"
    else:
        if isinstance(source, (bytes, bytearray, memoryview)):
            data, name = bytes(source), "the model"
        elif isinstance(source, (str, os.PathLike)):
            path = Path(source)
            name = f"'{path}'"
            try:
                data = path.read_bytes()
            except OSError as error:
                raise CompileError(f"cannot read {name}: {error.strerror or error}") from None
        else:
            raise CompileError(f"an ONNX model is a path, bytes or an onnx.ModelProto, not {type(source).__name__}")
        model = onnx.ModelProto()
        try:
            model.ParseFromString(data)
        except Exception:  # protobuf's DecodeError has no stable home
            raise CompileError(f"{name} is not an ONNX model, or is truncated: its protobuf cannot be read") from None
    if not model.ir_version or not model.HasField("graph") or not model.opset_import:
        raise CompileError(f"{name} is not an ONNX model: it has no graph or states no opset")
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not OLDEST_OPSET <= entry.version <= NEWEST_OPSET:
            raise CompileError(
                f"{name} uses opset {entry.version}; supported are {OLDEST_OPSET} to {NEWEST_OPSET}: "
                "export it again or use onnx.version_converter.convert_version"
            )
    return OnnxFile(model, path, name)


def explain_invalid(file: OnnxFile) -> str | None:
    """The first line of what ONNX's checker has against a model; None when it has nothing."""
    import onnx

    try:
        # By path, the checker finds external data, and models of over 2 GB pass.
        onnx.checker.check_model(file.model if file.path is None else str(file.path))
    except Exception as error:
        return str(error).strip().splitlines()[0] or type(error).__name__
    return None
