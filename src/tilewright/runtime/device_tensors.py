"""Calls with tensors in the memory of a GPU: torch tensors on ``cuda``, and all objects with
``__cuda_array_interface__`` (CuPy, Numba). The kernels read and write them in place.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import ShapeError
from tilewright.runtime.context import HOST, Binding, Calls
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.tensors import dtype_named, is_torch, to_numpy


@dataclass(frozen=True)
class DeviceTensor:
    """A contiguous tensor in the memory of a device; `owner` keeps it alive."""

    dtype: np.dtype
    shape: tuple[int, ...]
    address: int
    owner: Any


def is_on_device(value: object) -> bool:
    """Whether a tensor lies in the memory of a GPU. torch calls ROCm's devices ``cuda``, too."""
    if is_torch(value):
        return bool(getattr(value, "is_cuda", False))
    return hasattr(value, "__cuda_array_interface__")


def describe(value: Any, name: str, index: int, *, writable: bool) -> DeviceTensor:
    """Describe a tensor on device number `index`.

    Args:
        value: The tensor.
        name: The name of the input or output, for messages.
        index: The number of the library's device.
        writable: Whether the model writes to the tensor, so that a copy does not do.

    Raises:
        ShapeError: It lies on another device, or is not contiguous and `writable`.
    """
    if is_torch(value):
        if (value.device.index or 0) != index:
            raise ShapeError(
                f"'{name}': the tensor is on '{value.device}', but the library uses device {index}: load it "
                f"with device={value.device.index}"
            )
        if not value.is_contiguous():
            _refuse_strides(name, writable)
            value = value.contiguous()
        dtype = dtype_named(str(value.dtype).removeprefix("torch."))
        return DeviceTensor(dtype, tuple(value.shape), value.data_ptr(), value)
    interface = value.__cuda_array_interface__
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is not None and strides != np.empty(shape, dtype).strides and 0 not in shape:
        _refuse_strides(name, True)
    address, read_only = interface["data"]
    if read_only and writable:
        raise ShapeError(f"'{name}': the model writes to it, but the tensor is read-only")
    return DeviceTensor(dtype, shape, address, value)


def _refuse_strides(name: str, needed: bool) -> None:
    if needed:
        raise ShapeError(f"'{name}': the tensor in the device's memory is not contiguous: give a copy")


def run_on_device(
    function: CompiledModel,
    calls: Calls,
    values: Sequence[Any],
    out: object,
    place: tuple[int, int],
    stream: int | None,
) -> Sequence[Any]:
    """Run a function on tensors of which some lie on the device `place`.

    Results are tensors of torch on the device, where an input is one; otherwise they are those of `out`.

    Raises:
        ShapeError: A tensor does not fit, or lies on another device; or results have no place.
    """
    names, index = function._names, place[1]
    if len(values) != len(names):
        raise ShapeError(f"the model has {len(names)} inputs ({', '.join(names)}), got {len(values)}")
    inputs: list[tuple[np.dtype, tuple[int, ...], int]] = []
    kept: list[Any] = []
    places = []
    for k, (value, name, dtype) in enumerate(zip(values, names, function._dtypes, strict=True)):
        if is_on_device(value):
            found = describe(value, name, index, writable=k in function._updated)
            inputs.append((found.dtype, found.shape, found.address))
            kept.append(found.owner)
            places.append(place)
        else:
            array = to_numpy(value, name, dtype)
            if k in function._updated:
                raise ShapeError(f"input '{name}': the model changes it: give a tensor on the device")
            inputs.append((array.dtype, array.shape, array.ctypes.data))
            kept.append(array)
            places.append(HOST)
    function._refuse_late("on the device")
    places += [place] * len(function.outputs)
    binding = _binding(calls, [(d, s) for d, s, _ in inputs], places)
    results = _results(function, binding, values, out, index)
    for number, (_, _, address) in enumerate(inputs):
        binding.addresses[number] = address
    for number, (result, spec) in enumerate(zip(results, function.outputs, strict=True), len(inputs)):
        target = describe(result, spec.name, index, writable=True)
        shape, dtype = binding.outputs[number - len(inputs)]
        if (target.shape, target.dtype) != (shape, dtype):
            raise ShapeError(
                f"output '{spec.name}' is {dtype.name}{list(shape)}, got {target.dtype.name}"
                f"{list(target.shape)} in 'out'"
            )
        binding.addresses[number] = target.address
    if binding.outputs_overlap():
        raise ShapeError("a tensor of 'out' overlaps another tensor of the call")
    torch = sys.modules.get("torch")
    if stream is None and torch is not None and any(is_torch(v) and v.is_cuda for v in values):
        torch.cuda.current_stream(index).synchronize()  # the inputs may still be computed there
    if status := calls.run_bound(binding.pointer):
        calls.check(status)
    return results


def _binding(
    calls: Calls, inputs: Sequence[tuple[np.dtype, tuple[int, ...]]], places: Sequence[tuple[int, int]]
) -> Binding:
    """The checked call with inputs of these types, shapes and places."""
    key: Any = (tuple(inputs), tuple(places))
    binding = calls.placed.get(key)
    if binding is None:
        if len(calls.placed) >= calls.kept:
            calls.placed.clear()
        binding = calls.placed[key] = Binding(calls, inputs, places=places)
    return binding


def _results(
    function: CompiledModel, binding: Binding, values: Sequence[Any], out: object, index: int
) -> Sequence[Any]:
    """The tensors that a run fills."""
    if out is not None:
        given = out if isinstance(out, tuple | list) else (out,)
        if len(given) != len(binding.outputs):
            raise ShapeError(
                f"the model has {len(binding.outputs)} outputs, got {len(given)} tensors in 'out'"
            )
        for spec, tensor in zip(function.outputs, given, strict=True):
            if not is_on_device(tensor):
                raise ShapeError(f"output '{spec.name}': 'out' must lie on the device, as the inputs do")
        return given
    if not any(is_torch(value) for value in values):
        raise ShapeError("inputs on the device that are no torch tensors need 'out' for the results")
    import torch

    return [
        torch.empty(shape, dtype=getattr(torch, dtype.name), device=f"cuda:{index}")
        for shape, dtype in binding.outputs
    ]


__all__ = ["DeviceTensor", "describe", "is_on_device", "run_on_device"]
