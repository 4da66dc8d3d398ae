"""A kernel as an operator of PyTorch: its `torch.library` registration, and its importer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..dialects.kernels import Apply, KernelDefinition, Scalar
from ..frontends.torch.registry import set_importer
from ..frontends.torch.tensors import array_of, dtype_of, torch_dtype_of
from ..ir.substitution import evaluate
from ..ir.symbolic import Dim
from ..ir.types import DType, bf16

if TYPE_CHECKING:
    from ..ir.core import Value

NAMESPACE = "tilewright"


def register(
    kernel: KernelDefinition,
    compute: Callable[..., tuple[Any, ...]],
    numbers_of: Callable[[Mapping[str, Scalar]], tuple[Scalar, ...]],
) -> Any:
    """The operator ``torch.ops.tilewright.<name>`` of a kernel; one registered earlier is replaced.

    Args:
        kernel: The kernel.
        compute: The outputs for arrays, with the kernel's numbers by name.
        numbers_of: The values of all numbers in order, from some by name.
    """
    count = len(kernel.inputs)

    def run(*arguments: Any) -> Any:
        tensors, numbers = arguments[:count], dict(zip(kernel.scalars, arguments[count:], strict=False))
        arrays = [
            array_of(x.detach().contiguous(), p.name) for x, p in zip(tensors, kernel.inputs, strict=True)
        ]
        results = [
            _tensor(y, p.dtype) for y, p in zip(compute(arrays, **numbers), kernel.outputs, strict=True)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    operator = torch.library.custom_op(
        f"{NAMESPACE}::{kernel.name}", run, mutates_args=(), device_types="cpu", schema=_schema(kernel)
    )

    def fake(*arguments: Any) -> Any:
        tensors = arguments[:count]
        binding = kernel.solve([(dtype_of(x.dtype), x.shape) for x in tensors], _value, _equal)
        results = [
            tensors[0].new_empty(kernel.result_shape(p, binding, _value), dtype=torch_dtype_of(p.dtype))
            for p in kernel.outputs
        ]
        return results[0] if len(results) == 1 else tuple(results)

    operator.register_fake(fake)

    def emit(n: Any, *arguments: Any, **by_name: Any) -> Any:
        tensors: Sequence[Value] = arguments[:count]
        given = {**dict(zip(kernel.scalars, arguments[count:], strict=False)), **by_name}
        op = Apply(
            list(tensors),
            kernel=kernel.name,
            digest=kernel.digest,
            scalars=numbers_of(given),
            location=n.location,
        )
        results = n.emit_all(op)
        return results[0] if len(results) == 1 else results

    set_importer(f"{NAMESPACE}.{kernel.name}.default", emit)
    return operator


def _schema(kernel: KernelDefinition) -> str:
    names = {bool: "bool", int: "int", float: "float"}
    items = [f"Tensor {p.name}" for p in kernel.inputs]
    items += [f"{names[type(v)]} {n}={v}" for n, v in kernel.scalars.items()]
    results = "Tensor" if len(kernel.outputs) == 1 else f"({', '.join(['Tensor'] * len(kernel.outputs))})"
    return f"({', '.join(items)}) -> {results}"


def _value(e: Dim, sizes: Mapping[str, Any]) -> Any:
    return evaluate(e, sizes)


def _equal(a: Any, b: Any) -> bool:
    """Whether two sizes of torch are equal; for symbolic sizes this becomes a guard."""
    return bool(a == b)


def _tensor(y: np.ndarray[Any, Any], dtype: DType) -> torch.Tensor:
    """A torch tensor with the elements of an array."""
    kind = torch_dtype_of(dtype)
    plain = y.view(np.int16) if dtype is bf16 else y
    return torch.from_numpy(np.array(plain)).view(kind)


__all__ = ["register"]
