"""Checks of the operands and attributes of operators, called by `infer_types`.

Each raises `IRError` with the operator, the operand or attribute, what it is and what is needed; front ends
report it as an error of the model. Sizes are refused if they are provably wrong. Where an operator must know
that sizes agree, `proved` refuses also those that only a run knows.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.core import IRError, Operation
from ...ir.symbolic import Dim, Expr, bounds, prove_eq, prove_le, smin
from ...ir.types import DType, TensorType, boolean
from .base import tensor_type


def exceeds(a: Dim, b: Dim) -> bool:
    """Whether ``a > b`` is provable."""
    if isinstance(a, int) and isinstance(b, int):
        return a > b
    low = bounds(a - b)[0]
    return low is not None and low > 0


def differ(a: Dim, b: Dim) -> bool:
    """Whether ``a != b`` is provable."""
    if isinstance(a, int) and isinstance(b, int):
        return a != b
    return exceeds(a, b) or exceeds(b, a)


def within(i: Dim, extent: Dim, n: Dim) -> Dim:
    """The index `i`, which is less than `extent`, in a dimension of `n` elements: clamped unless `extent` is
    provably no more than `n`, so that a run whose sizes do not fit reads nothing outside.
    """
    return i if prove_le(extent, n) else smin(i, n - 1)


def is_zero(n: Dim) -> bool:
    """Whether a dimension is known to have no elements."""
    return isinstance(n, int) and n == 0


def operand_type(op: Operation, name: str) -> TensorType | None:
    """The type of an operand; None if it is an absent optional one."""
    value = getattr(op, name)
    return None if value is None else tensor_type(value)


def check_shape(op: Operation, name: str, shape: Sequence[Dim], proved: bool = False) -> None:
    """Check that the operand `name`, if it is present, has a shape.

    Raises:
        IRError: it has another rank, or a size that provably differs or, with `proved`, is not provably
            equal.
    """
    x = operand_type(op, name)
    if x is None:
        return
    wrong = x.rank != len(shape) or any(
        (not prove_eq(n, m)) if proved else differ(n, m) for n, m in zip(x.shape, shape, strict=True)
    )
    if wrong:
        raise IRError(f"{name} has shape {x.shape}, needs {tuple(shape)}", op)


def check_broadcast(op: Operation, name: str, shape: Sequence[Dim]) -> None:
    """Check that the operand `name`, if it is present, provably broadcasts to a shape.

    Raises:
        IRError: it does not.
    """
    x = operand_type(op, name)
    if x is None:
        return
    wrong = x.rank > len(shape) or any(
        not (isinstance(n, int) and n == 1) and not prove_eq(n, m)
        for n, m in zip(x.shape[::-1], tuple(shape)[::-1], strict=False)
    )
    if wrong:
        raise IRError(f"{name} has shape {x.shape}, which does not broadcast to {tuple(shape)}", op)


def check_rank(op: Operation, name: str, least: int) -> None:
    """Check the rank of the operand `name`.

    Raises:
        IRError: it is less than `least`.
    """
    x = operand_type(op, name)
    if x is not None and x.rank < least:
        raise IRError(f"{name} has shape {x.shape}, needs at least {least} dimension{'s' * (least != 1)}", op)


def check_floating(op: Operation, name: str) -> None:
    """Check that the operand `name`, if it is present, is floating point.

    Raises:
        IRError: it is not.
    """
    x = operand_type(op, name)
    if x is not None and not x.dtype.is_float:
        raise IRError(f"{name} is {x.dtype.label}, needs a floating-point type", op)


def check_number(op: Operation, name: str) -> None:
    """Check that the operand `name` has numbers.

    Raises:
        IRError: it has booleans.
    """
    x = operand_type(op, name)
    if x is not None and x.dtype is boolean:
        raise IRError(f"{name} is bool, needs numbers", op)


def check_same_type(op: Operation, name: str, dtype: DType) -> None:
    """Check that the operand `name`, if it is present, has an element type.

    Raises:
        IRError: it has another.
    """
    x = operand_type(op, name)
    if x is not None and x.dtype is not dtype:
        raise IRError(f"{name} is {x.dtype.label}, needs {dtype.label}", op)


# -- Attributes ----------------------------------------------------------------------------------------------


def _is_integer(value: object) -> bool:
    if type(value) is int:
        return True
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _needs(op: Operation, name: str, what: str) -> IRError:
    value = op.attributes[name]
    return IRError(f"{name} is {value!r}, needs {what}", op)


def need_integer(op: Operation, name: str, least: int | None = None) -> None:
    """Check that the attribute `name` is an integer of at least `least`.

    Raises:
        IRError: it is not.
    """
    value = op.attributes[name]
    if not _is_integer(value) or (least is not None and value < least):
        raise _needs(op, name, "an integer" if least is None else f"an integer of at least {least}")


def need_integers(
    op: Operation, name: str, count: int | None = None, least: int | None = None, empty: bool = False
) -> None:
    """Check that the attribute `name` has `count` integers of at least `least`; with `empty` it may have
    none.

    Raises:
        IRError: it has not.
    """
    value = op.attributes[name]
    if empty and isinstance(value, (tuple, list)) and not value:
        return
    right = isinstance(value, (tuple, list)) and (count is None or len(value) == count)
    if not right or not all(_is_integer(n) and (least is None or n >= least) for n in value):
        number = "integers" if count is None else f"{count} integer{'s' * (count != 1)}"
        raise _needs(op, name, number if least is None else f"{number} of at least {least}")


def need_pairs(op: Operation, name: str, count: int) -> None:
    """Check that the attribute `name` has a pair of sizes for each of `count` dimensions.

    Raises:
        IRError: it has not.
    """
    value = op.attributes[name]
    right = isinstance(value, (tuple, list)) and len(value) == count
    if not right or not all(
        isinstance(p, (tuple, list)) and len(p) == 2 and all(_is_size(n) for n in p) for p in value
    ):
        raise _needs(op, name, f"a pair of integers for each of {count} dimensions")


def _is_size(value: object) -> bool:
    return type(value) is int or isinstance(value, Expr) or _is_integer(value)


def need_size(op: Operation, name: str, least: int | None = 0) -> None:
    """Check that the attribute `name` is an integer or a symbolic size, not provably less than `least`.

    Raises:
        IRError: it is not.
    """
    value = op.attributes[name]
    if not _is_size(value) or (least is not None and exceeds(least, value)):
        raise _needs(op, name, "an integer" if least is None else f"an integer of at least {least}")


def need_sizes(op: Operation, name: str, count: int | None = None, least: int | None = 0) -> None:
    """Check that the attribute `name` has `count` integers or symbolic sizes, none provably less than
    `least`.

    Raises:
        IRError: it has not.
    """
    value = op.attributes[name]
    right = isinstance(value, (tuple, list)) and (count is None or len(value) == count)
    if not right or not all(
        _is_size(n) and (least is None or not isinstance(n, int) or n >= least) for n in value
    ):
        number = "integers" if count is None else f"{count} integer{'s' * (count != 1)}"
        raise _needs(op, name, number if least is None else f"{number} of at least {least}")


def need_numbers(op: Operation, *names: str) -> None:
    """Check that attributes are numbers.

    Raises:
        IRError: one is not.
    """
    for name in names:
        if not isinstance(op.attributes[name], (int, float, np.generic)):
            raise _needs(op, name, "a number")


def need_choice(op: Operation, name: str, known: Sequence[Any]) -> None:
    """Check that the attribute `name` is one of the known values.

    Raises:
        IRError: it is not.
    """
    value = op.attributes[name]
    if value not in known:
        text = ", ".join(map(str, known))
        raise IRError(f"unknown {name} {value!r}; known: {text}", op)


def need_dtype(op: Operation) -> None:
    """Check that the attribute `dtype` is an element type.

    Raises:
        IRError: it is not.
    """
    if not isinstance(op.attributes["dtype"], DType):
        raise _needs(op, "dtype", "an element type")
