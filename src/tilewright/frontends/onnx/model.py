"""Read ONNX files: the checked protobuf and its tensors as NumPy arrays; large ones are mapped from disk.

`read_model` takes a path, serialized bytes or a ``ModelProto`` and returns an `OnnxFile`, which converts a
``TensorProto`` to an array. This module does not interpret operators.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...errors import CompileError
from ...ir.types import DType, string

if TYPE_CHECKING:
    import onnx

MAX_DENSE = 1 << 30
"""Maximum size in bytes of a sparse tensor that is converted to a dense one. The file need not hold data for
the zeros.
"""

OLDEST_OPSET, NEWEST_OPSET = 1, 28

Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto"
"""A model as a path, as a file's contents, or as the message itself."""

# Data types by number of TensorProto.DataType. Missing ones (complex, floats of 6 bits) are not supported.
DTYPES: dict[int, DType] = {
    1: DType.named("f32"),
    2: DType.named("ui8"),
    3: DType.named("i8"),
    4: DType.named("ui16"),
    5: DType.named("i16"),
    6: DType.named("i32"),
    7: DType.named("i64"),
    8: DType.named("string"),
    9: DType.named("i1"),
    10: DType.named("f16"),
    11: DType.named("f64"),
    12: DType.named("ui32"),
    13: DType.named("ui64"),
    16: DType.named("bf16"),
    17: DType.named("f8E4M3FN"),
    18: DType.named("f8E4M3FNUZ"),
    19: DType.named("f8E5M2"),
    20: DType.named("f8E5M2FNUZ"),
    21: DType.named("ui4"),
    22: DType.named("i4"),
    23: DType.named("f4E2M1FN"),
    24: DType.named("f8E8M0FNU"),
    25: DType.named("ui2"),
    26: DType.named("i2"),
}


def dtype_of(code: int, where: str) -> DType:
    """Return the data type of a ``TensorProto.DataType`` number.

    Raises:
        CompileError: it is not supported; the message begins with `where`, the name of the tensor.
    """
    dtype = DTYPES.get(code)
    if dtype is None:
        import onnx

        known = (
            onnx.TensorProto.DataType.Name(code) if code in onnx.TensorProto.DataType.values() else str(code)
        )
        raise CompileError(f"{where} has element type {known.lower()}, which is not supported")
    return dtype


class OnnxFile:
    """A model and its origin. External data is relative to `folder` (None: the model comes from memory)."""

    def __init__(self, model: onnx.ModelProto, path: Path | None, name: str) -> None:
        self.model = model
        self.path = path
        self.folder = None if path is None else path.resolve().parent
        self.name = name
        self._maps: dict[Path, np.ndarray[Any, Any]] = {}

    def array(self, tensor: onnx.TensorProto, where: str = "") -> np.ndarray[Any, Any]:
        """Return the data of a ``TensorProto``; external data is not copied.

        Raises:
            CompileError: the element type is unsupported, or the data is missing or too short.
        """
        from onnx import numpy_helper

        where = where or f"tensor '{tensor.name}'"
        dtype = dtype_of(tensor.data_type, where)
        shape = tuple(tensor.dims)
        if any(d < 0 for d in shape):
            raise CompileError(f"{where} has a negative dimension: {list(shape)}")
        count = math.prod(shape)
        size = -(-count * dtype.bits // 8) if dtype.is_sub_byte else count * dtype.itemsize
        if dtype is string and (tensor.data_location == tensor.EXTERNAL or tensor.HasField("raw_data")):
            raise CompileError(
                f"{where} has elements of type string, which ONNX stores neither as raw data nor in "
                "external files"
            )
        if tensor.data_location == tensor.EXTERNAL:
            raw = self._external(tensor, size, where)
        elif tensor.HasField("raw_data"):
            raw = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            try:
                return np.asarray(numpy_helper.to_array(tensor), dtype.numpy)
            except (ValueError, OverflowError) as error:
                raise CompileError(
                    f"{where} does not hold the data of {dtype.label}{list(shape)}: {error}"
                ) from None
        if raw.size != size:
            raise CompileError(
                f"{where} has {raw.size} bytes of data, but {dtype.label}{list(shape)} needs {size}"
            )
        if dtype.is_sub_byte:
            raw = _unpacked(raw, dtype.bits, count)
        return raw.view(dtype.numpy).reshape(shape)

    def dense(self, sparse: onnx.SparseTensorProto, where: str) -> np.ndarray[Any, Any]:
        """Return a ``SparseTensorProto`` as a dense array.

        Raises:
            CompileError: as `array`; an index is out of range, or the result is larger than ``MAX_DENSE``.
        """
        values = self.array(sparse.values, where)
        indices = self.array(sparse.indices, f"indices of {where}")
        shape = tuple(sparse.dims)
        if any(d < 0 for d in shape) or math.prod(shape) * values.itemsize > MAX_DENSE:
            raise CompileError(
                f"{where} has shape {list(shape)}; as a dense tensor it may have at most {MAX_DENSE} bytes"
            )
        dense = np.zeros(shape, values.dtype)
        try:
            dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, shape)] = values
        except (IndexError, ValueError) as error:
            raise CompileError(
                f"the indices of {where} do not fit its shape {list(shape)}: {error}"
            ) from None
        return dense

    def _external(self, tensor: onnx.TensorProto, size: int, where: str) -> np.ndarray[Any, Any]:
        fields = {e.key: e.value for e in tensor.external_data}
        location = fields.get("location", "")
        data = self._mapped(location, where)
        try:
            offset, length = int(fields.get("offset", 0)), int(fields.get("length", size))
        except ValueError:
            raise CompileError(f"{where} has external data whose offset or length is not a number") from None
        if offset < 0 or length < 0 or offset + length > data.size:
            raise CompileError(
                f"{where} needs bytes {offset} to {offset + length} of '{location}', "
                f"which has only {data.size}: the file is truncated"
            )
        # This is a view of the mapping: no data is read here.
        return np.asarray(data)[offset : offset + length]

    def _mapped(self, location: str, where: str) -> np.ndarray[Any, Any]:
        """Map a file of external data as bytes. The file must be in the model's folder, also after links are
        resolved.
        """
        folder = (self.folder if self.folder is not None else Path.cwd()).resolve()
        outside = CompileError(
            f"{where} has its data in {location!r}, which is not inside the model's folder"
        )
        if not location or "\0" in location or os.path.isabs(location) or ".." in Path(location).parts:
            raise outside
        try:
            path = (folder / location).resolve()
            if not path.is_relative_to(folder):
                raise outside
            if path not in self._maps:
                if not path.is_file():
                    hint = (
                        ""
                        if self.folder is not None
                        else "; pass the path of the model instead of a ModelProto"
                    )
                    raise CompileError(f"{where} has its data in '{path}', which does not exist{hint}")
                empty = path.stat().st_size == 0
                self._maps[path] = np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, mode="r")
        # the name is too long, links form a cycle, or permission is missing
        except (OSError, RuntimeError) as error:
            raise CompileError(
                f"{where} has its data in {location[:200]!r}, which cannot be read: {error}"
            ) from None
        return self._maps[path]


def _unpacked(raw: np.ndarray[Any, Any], bits: int, count: int) -> np.ndarray[Any, Any]:
    """Unpack elements of `bits` bits, the first in a byte's lowest bits, to one byte each."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((raw[:, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[:count]


def read_model(source: Source) -> OnnxFile:
    """Read a model from a path, bytes or a ``ModelProto``, and check that this front end can read it.

    Raises:
        CompileError: the file does not exist, is not an ONNX model or is truncated, or the opset is outside
            ``OLDEST_OPSET..NEWEST_OPSET``.
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
            raise CompileError(
                f"an ONNX model is a path, bytes or an onnx.ModelProto, not {type(source).__name__}"
            )
        model = onnx.ModelProto()
        try:
            model.ParseFromString(data)
        except Exception:  # protobuf's DecodeError has no stable module
            raise CompileError(
                f"{name} is not an ONNX model, or is truncated: its protobuf cannot be read"
            ) from None
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
    """Return the first line of the error that ONNX's checker reports for a model, or None if it accepts the
    model.
    """
    import onnx

    try:
        # Given a path, the checker finds external data and accepts models of more than 2 GB.
        onnx.checker.check_model(file.model if file.path is None else str(file.path))
    except Exception as error:
        return str(error).strip().splitlines()[0] or type(error).__name__
    return None
