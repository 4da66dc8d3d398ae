"""Programs learn the names, data types and shapes of a model's tensors from C functions."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]


def test_inputs_outputs_and_states(tmp_path: Path) -> None:
    memory = tw.State("memory", (4, 3))

    def main(x: Any, n: Any) -> Any:
        memory[0] = x.sum(0)
        return x * 2, n + 1

    def other(flag: Any) -> Any:
        return memory.value.sum() * flag

    library = tw.compile(
        {
            "main": (main, (np.zeros((2, 3), np.float32), np.int64(1)), {"x": {0: "rows<=8"}}),
            "other": (other, (np.float32(1),)),
        }
    )
    native = ctypes.CDLL(str(library.save(tmp_path / "model.so")))
    native.tw_function_name.restype = ctypes.c_char_p
    assert [native.tw_function_name(k) for k in range(3)] == [b"main", b"other", None]

    def tensors(function: int, role: int) -> list[tuple[str, int, int, list[int]]]:
        found = []
        for k in range(native.tw_tensor_count(function, role)):
            t = _Tensor()
            assert native.tw_describe(function, role, k, ctypes.byref(t)) == 0
            found.append((t.name.decode(), t.code, t.bits, [t.shape[d] for d in range(t.ndim)]))
        return found

    assert tensors(0, 0) == [("x", 2, 32, [-1, 3]), ("n", 0, 64, [])]
    assert [row[1:] for row in tensors(0, 1)] == [(2, 32, [-1, 3]), (0, 64, [])]
    assert tensors(1, 0) == [("flag", 2, 32, [])]
    assert tensors(0, 2) == tensors(1, 2) == [("memory", 2, 32, [4, 3])]
    assert native.tw_tensor_count(2, 0) == -1
    assert native.tw_describe(0, 0, 2, ctypes.byref(_Tensor())) == 1
