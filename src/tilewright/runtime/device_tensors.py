"""Calls with tensors in the memory of a GPU: torch tensors on ``cuda``, and all objects with
``__cuda_array_interface__`` (CuPy, Numba). The kernels read and write them in place.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import ShapeError
from tilewright.runtime.bound_call import BoundCall
from tilewright.runtime.context import HOST, Binding, Calls, Context
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.tensors import dtype_named, is_torch, like, to_numpy


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


def has_tensors_on_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument of a call, or an element of one that is a list or a dictionary, is a tensor on a
    device.
    """
    for value in (*args, *kwargs.values()):
        inner = value.values() if isinstance(value, dict) else value
        if any(map(is_on_device, inner if isinstance(value, dict | list | tuple) else (value,))):
            return True
    return False


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


class DeviceCall:
    """A call of a function with tensors of which some lie on the device.

    Results are tensors of torch on the device, where an input is one; otherwise they are those of `out`.
    Results whose sizes the run decides are NumPy arrays, or torch tensors on the device where an input is
    one.
    """

    def __init__(
        self,
        function: CompiledModel,
        context: Context,
        calls: Calls,
        values: Sequence[Any],
        place: tuple[int, int],
        stream: int | None,
    ) -> None:
        """Describe the inputs.

        Args:
            function: The function.
            context: The context that runs it.
            calls: Its calls in this context.
            values: The inputs, in order.
            place: The type and the number of the device, as DLPack has them.
            stream: The stream on which the run is ordered; None: one of the context's own.

        Raises:
            ShapeError: A tensor lies on another device, or does not fit.
        """
        self.function, self.context, self.calls, self.values = function, context, calls, tuple(values)
        self.place, self.stream = place, stream
        self.inputs: list[tuple[np.dtype, tuple[int, ...], int, tuple[int, int]]] = []
        """Data types, shapes, addresses, and places."""
        self.kept: list[Any] = []
        names, index = function._names, place[1]
        for k, (value, name, dtype) in enumerate(zip(self.values, names, function._dtypes, strict=True)):
            if is_on_device(value):
                found = describe(value, name, index, writable=k in function._updated)
                self.inputs.append((found.dtype, found.shape, found.address, place))
                self.kept.append(found.owner)
                continue
            array = to_numpy(value, name, dtype)
            if k in function._updated:
                raise ShapeError(f"input '{name}': the model changes it: give a tensor on the device")
            self.inputs.append((array.dtype, array.shape, array.ctypes.data, HOST))
            self.kept.append(array)

    @property
    def _torch(self) -> Any:
        """The module torch, where an input is one of its tensors on the device; else None."""
        torch = sys.modules.get("torch")
        return torch if torch is not None and any(is_torch(v) and v.is_cuda for v in self.values) else None

    def run(self, out: object) -> Sequence[Any]:
        """Run once. Returns the results: `out`, if it is given.

        Raises:
            ShapeError: A tensor does not fit, or lies on another device; or results have no place.
            DeviceError: The driver reports an error.
        """
        if self.calls.late:
            return self._run_late(out)
        binding = _binding(self.calls, self.inputs, [self.place] * len(self.function.outputs))
        results = self._fill(binding, out)
        self._wait_for_streams(results)
        if status := self.calls.run_bound(binding.pointer):
            self.calls.check(status)
        self._keep_for_stream(results)
        return results

    def bind(self, out: object) -> BoundCall:
        """Prepare runs on these tensors. Without `out` the model runs once to make it.

        Raises:
            ShapeError: As `run`, and where an input would have to be copied.
        """
        self.function._refuse_late("bound")
        for value, kept, spec in zip(self.values, self.kept, self.function.inputs, strict=True):
            if kept is not value and (is_on_device(value) or not np.shares_memory(kept, np.asarray(value))):
                raise ShapeError(
                    f"input '{spec.name}': only a contiguous tensor of {spec.dtype} can be bound"
                )
        places = [*(place for *_, place in self.inputs), *[self.place] * len(self.function.outputs)]
        binding = Binding(self.calls, [(d, s) for d, s, _, _ in self.inputs], places=places)
        results = tuple(self._fill(binding, out))
        # The caller may drop the tensors while the last run is on its way. The allocator asks the stream when
        # they are freed, so that telling it once is enough.
        self._keep_for_stream(results)

        def run() -> int:
            self._wait_for_streams(results)
            return int(self.calls.run_bound(binding.pointer))

        if out is None:
            out = results[0] if len(results) == 1 else results
            if status := run():
                self.calls.check(status)
        call = BoundCall(self.values, out, run, self.calls.check, (self.context, binding, self.kept, results))
        self.context.bound.add(call)
        return call

    def _run_late(self, out: object) -> Sequence[Any]:
        if out is not None:
            self.function._refuse_late("written to 'out'")
        self._wait_for_streams()
        results = self.calls.run_late(self.inputs)
        torch, device = self._torch, f"cuda:{self.place[1]}"
        return results if torch is None else [like(r, torch.empty(0)).to(device) for r in results]

    def _fill(self, binding: Binding, out: object) -> Sequence[Any]:
        """Write the addresses of the call to the binding. Returns the tensors that the run fills."""
        results = self._results(binding, out)
        for number, (_, _, address, _) in enumerate(self.inputs):
            binding.addresses[number] = address
        specs = self.function.outputs
        for number, (result, spec) in enumerate(zip(results, specs, strict=True), len(self.inputs)):
            target = describe(result, spec.name, self.place[1], writable=True)
            shape, dtype = binding.outputs[number - len(self.inputs)]
            if (target.shape, target.dtype) != (shape, dtype):
                raise ShapeError(
                    f"output '{spec.name}' is {dtype.name}{list(shape)}, got {target.dtype.name}"
                    f"{list(target.shape)} in 'out'"
                )
            binding.addresses[number] = target.address
        if binding.outputs_overlap():
            raise ShapeError("a tensor of 'out' overlaps another tensor of the call")
        return results

    def _results(self, binding: Binding, out: object) -> Sequence[Any]:
        outputs = self.function.outputs
        if out is not None:
            given = out if isinstance(out, tuple | list) else (out,)
            if len(given) != len(binding.outputs):
                raise ShapeError(
                    f"the model has {len(binding.outputs)} outputs, got {len(given)} tensors in 'out'"
                )
            for spec, tensor in zip(outputs, given, strict=True):
                if not is_on_device(tensor):
                    raise ShapeError(f"output '{spec.name}': 'out' must lie on the device, as the inputs do")
            return given
        if (torch := self._torch) is None:
            raise ShapeError("inputs on the device that are no torch tensors need 'out' for the results")
        return [
            torch.empty(shape, dtype=getattr(torch, dtype.name), device=f"cuda:{self.place[1]}")
            for shape, dtype in binding.outputs
        ]

    def _wait_for_streams(self, results: Sequence[Any] = ()) -> None:
        """Wait for streams other than the run's, on which the inputs may still be computed, or earlier
        contents of the results used.
        """
        if (torch := self._torch) is not None:
            current = torch.cuda.current_stream(self.place[1])
            if self.stream is None or current.cuda_stream != self.stream:
                current.synchronize()
        streams = {
            getattr(v, "__cuda_array_interface__", {}).get("stream")
            for v in (*self.kept, *results)
            if not is_torch(v)
        }
        for stream in streams - {None, self.stream}:
            self.calls.check(self.context.native.tw_stream_wait(self.context.handle, stream))

    def _keep_for_stream(self, results: Sequence[Any]) -> None:
        """Tell torch that the run's stream uses memory of another stream, after calls that do not wait."""
        if (torch := self._torch) is None or self.stream is None:
            return
        if torch.cuda.current_stream(self.place[1]).cuda_stream != self.stream:
            stream = torch.cuda.ExternalStream(self.stream, device=self.place[1])
            for tensor in (*self.kept, *results):
                if is_torch(tensor) and tensor.is_cuda:
                    tensor.record_stream(stream)


def _binding(
    calls: Calls,
    inputs: Sequence[tuple[np.dtype, tuple[int, ...], int, tuple[int, int]]],
    outputs: Sequence[tuple[int, int]],
) -> Binding:
    """The checked call with inputs of these types, shapes and places, and outputs at these places."""
    described = [(dtype, shape) for dtype, shape, _, _ in inputs]
    places = [*(place for *_, place in inputs), *outputs]
    key: Any = (tuple(described), tuple(places))
    binding = calls.placed.get(key)
    if binding is None:
        if len(calls.placed) >= calls.kept:
            calls.placed.clear()
        binding = calls.placed[key] = Binding(calls, described, places=places)
    return binding


__all__ = ["DeviceCall", "DeviceTensor", "describe", "has_tensors_on_device", "is_on_device"]
