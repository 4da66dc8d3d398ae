"""Random numbers by explicit keys, at once and in traces, and the keys of `tw.nn` modules in training.

A key is a tensor of two words (2), uint32. Equal keys and shapes give equal numbers, everywhere; a function
that draws several times uses a key of its own for each draw (`split`, `fold_in`). Keys, bits, and what is
drawn by `uniform`, `bernoulli`, `randint` and `permutation` equal those of ``jax.random``; uniform numbers of
other ranges than [0, 1), `gumbel` and `categorical` do up to rounding. `normal` uses another method than JAX.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from ...dialects import graph as g
from ...dialects.graph.elementwise import UNARY
from ...errors import ShapeError
from ...ir.core import Operation, Value
from ...ir.types import DType, u32
from ..random import Key, Random
from . import numpy as tnp
from .dtypes import DTypeLike, dtype_of
from .eager import EagerTrace
from .operands import apply, apply_several, as_tensor, shape_argument, value_of
from .tensor import ShapeLike, Tensor, TensorLike, concrete, traced
from .tracing import Trace, TraceError, current, tracing, user_location


def key(seed: TensorLike) -> Tensor:
    """Return the key (2), uint32, of a seed, as ``jax.random.PRNGKey`` does.

    Args:
        seed: An integer of 64 bits, or an integer scalar tensor.

    Raises:
        ShapeError: The seed is no integer scalar.
    """
    if isinstance(seed, int):
        return concrete(np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32))
    number = as_tensor(seed)
    if number.ndim or not number.type.dtype.is_integer:
        raise ShapeError(f"a seed is an integer scalar, not {number!r} (at {user_location('')})")
    return _drawn(lambda random, x: tuple(random.key(x)), number.astype(np.int64))


def split(key: TensorLike, num: int = 2) -> Tensor:
    """Return `num` new keys (num, 2), uint32, as ``jax.random.split`` does.

    Args:
        key: A key (2), which is used for nothing else.
        num: The number of keys.

    Raises:
        ShapeError: `key` is no key.
    """
    return tnp.stack(_several(_words(key), num), axis=-1)


def fold_in(key: TensorLike, data: TensorLike) -> Tensor:
    """Return another key (2), uint32, for each number, as ``jax.random.fold_in`` does.

    Args:
        key: A key (2).
        data: An integer of 32 bits, or an integer scalar tensor: the number of a step, of a layer.

    Raises:
        ShapeError: `key` is no key, or `data` no integer scalar.
    """
    number = as_tensor(data & 0xFFFFFFFF if isinstance(data, int) else data)
    if number.ndim or not number.type.dtype.is_integer:
        raise ShapeError(f"fold_in takes an integer scalar, not {number!r} (at {user_location('')})")
    high, low = _words(key)
    return tnp.stack(apply_several(g.Threefry, high, low, as_tensor(0, u32), number.astype(np.uint32)))


def bits(key: TensorLike, shape: ShapeLike = (), dtype: DTypeLike = "uint32") -> Tensor:
    """Return random bits as unsigned integers of the given shape.

    Args:
        key: A key (2).
        shape: The size of each dimension.
        dtype: The type: uint8, uint16, uint32 or uint64.

    Raises:
        ShapeError: `key` is no key, or `dtype` is not one of these types.
    """
    wanted = dtype_of(dtype)
    if wanted.kind != "uint" or wanted.bits not in (8, 16, 32, 64):
        raise ShapeError(f"random bits are unsigned integers, not {wanted.label}")
    sizes = shape_argument(shape)
    return _draw(key, lambda random, words: random.bits(words, sizes, wanted.bits))


def uniform(
    key: TensorLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = "float32",
    minval: float = 0.0,
    maxval: float = 1.0,
) -> Tensor:
    """Return uniformly distributed numbers of the given shape in ``[minval, maxval)``.

    Args:
        key: A key (2).
        shape: The size of each dimension.
        dtype: A floating-point type of 16 bits or more.
        minval: The least number.
        maxval: The number that all are less than.

    Raises:
        ShapeError: `key` is no key, or `dtype` is no such type.
    """
    wanted, sizes = _float_type(dtype), shape_argument(shape)
    return _draw(key, lambda random, words: random.uniform(words, sizes, wanted, minval, maxval))


def normal(key: TensorLike, shape: ShapeLike = (), dtype: DTypeLike = "float32") -> Tensor:
    """Return numbers of the given shape with mean 0 and variance 1 (Box and Muller 1958).

    Args:
        key: A key (2).
        shape: The size of each dimension.
        dtype: A floating-point type of 16 bits or more.

    Raises:
        ShapeError: `key` is no key, or `dtype` is no such type.
    """
    wanted, sizes = _float_type(dtype), shape_argument(shape)
    return _draw(key, lambda random, words: random.normal(words, sizes, wanted))


def truncated_normal(
    key: TensorLike, lower: float, upper: float, shape: ShapeLike = (), dtype: DTypeLike = "float32"
) -> Tensor:
    """Return numbers of the given shape of the normal distribution with mean 0 and variance 1, limited to
    ``[lower, upper]``: the inverse distribution function of uniform numbers.

    Args:
        key: A key (2).
        lower: The least number.
        upper: The largest number.
        shape: The size of each dimension.
        dtype: A floating-point type of 16 bits or more.

    Raises:
        ShapeError: `key` is no key, or `dtype` is no such type.
        ValueError: `lower` is not less than `upper`.
    """
    if not lower < upper:
        raise ValueError(f"there are no numbers from {lower} to {upper}")
    wanted = _float_type(dtype)
    wide = wanted if wanted.bits > 16 else dtype_of("float32")
    ends = (math.erf(lower / math.sqrt(2)), math.erf(upper / math.sqrt(2)))
    x = _inverse_erf(uniform(key, shape, wide, *ends)) * math.sqrt(2)
    return tnp.clip(x, lower, upper).astype(wanted)


def bernoulli(key: TensorLike, p: TensorLike = 0.5, shape: ShapeLike | None = None) -> Tensor:
    """Return bools, each true with probability `p`.

    Args:
        key: A key (2).
        p: The probability, a number or a floating-point tensor that broadcasts to the shape.
        shape: The size of each dimension; None is the shape of `p`.

    Raises:
        ShapeError: `key` is no key, or `p` does not broadcast.
    """
    chance = as_tensor(p)
    if shape is not None:
        chance = tnp.broadcast_to(chance, shape_argument(shape))
    return _drawn(lambda random, *v: random.bernoulli(v[:2], v[2]), *_words(key), chance)


def randint(
    key: TensorLike, shape: ShapeLike, minval: int, maxval: int, dtype: DTypeLike = "int64"
) -> Tensor:
    """Return integers of the given shape in minval .. maxval - 1. The bias of the modulus is at most 2 to the
    power of minus half the bits of `dtype`, squared.

    Args:
        key: A key (2).
        shape: The size of each dimension.
        minval: The least integer.
        maxval: The integer that all are less than.
        dtype: A type of integers, of 8 to 64 bits, that holds both.

    Raises:
        ShapeError: `key` is no key, or `dtype` is no type of integers.
        ValueError: `minval` is not less than `maxval`.
    """
    wanted = dtype_of(dtype)
    if not wanted.is_integer or wanted.bits not in (8, 16, 32, 64):
        raise ShapeError(f"randint gives integers, not {wanted.label}")
    if not minval < maxval:
        raise ValueError(f"there are no integers from {minval} to {maxval - 1}")
    keys, span = _pairs(_words(key), 2), maxval - minval
    sizes = shape_argument(shape)
    high, low = (_draw(k, lambda random, words: random.bits(words, sizes, wanted.bits)) for k in keys)
    if span == 1 << wanted.bits:
        offset = low
    else:
        factor = ((1 << wanted.bits // 2) % span) ** 2 % (1 << wanted.bits) % span
        offset = (high % span * factor + low % span) % span
    return offset.astype(wanted) + minval


def permutation(key: TensorLike, x: TensorLike) -> Tensor:
    """Return 0 .. x - 1 in random order (int64) for an integer `x`, or the rows of a tensor in random order.

    Elements are sorted by random words, often enough that equal words do not matter.

    Args:
        key: A key (2).
        x: A number, or a tensor (n, ...) with an n that is known while tracing.

    Raises:
        ShapeError: `key` is no key, or `x` has no dimension.
        TraceError: The number of rows is known only in the run.
    """
    if not isinstance(x, int):
        rows = as_tensor(x)
        if not rows.ndim:
            raise ShapeError(f"a tensor without dimensions has no rows to permute (at {user_location('')})")
        return rows[permutation(key, _known_size(rows.shape[0]))]
    order, now = tnp.arange(x), _words(key)
    for _ in range(math.ceil(3 * math.log(max(1, x)) / math.log(0xFFFFFFFF))):
        now, other = _pairs(now, 2)
        order = order[tnp.argsort(_draw(other, lambda random, words: random.bits(words, (x,))), stable=True)]
    return order


def gumbel(key: TensorLike, shape: ShapeLike = (), dtype: DTypeLike = "float32") -> Tensor:
    """Return numbers of the given shape of Gumbel's distribution, ``-log(-log(u))`` for uniform u.

    Args:
        key: A key (2).
        shape: The size of each dimension.
        dtype: A floating-point type of 16 bits or more.

    Raises:
        ShapeError: `key` is no key, or `dtype` is no such type.
    """
    wanted = _float_type(dtype)
    tiny = float(ml_dtypes.finfo(wanted.numpy).tiny)
    return -tnp.log(-tnp.log(uniform(key, shape, wanted, tiny, 1.0)))


def categorical(
    key: TensorLike, logits: TensorLike, axis: int = -1, shape: ShapeLike | None = None
) -> Tensor:
    """Return indices (int64) along an axis, each with the softmax of `logits` as its probability (the Gumbel
    maximum).

    Args:
        key: A key (2).
        logits: Floating-point log-probabilities, which need not be normalized, (..., choices, ...).
        axis: The axis of the choices.
        shape: The result's shape, which ends with that of `logits` without the axis; None is that shape.

    Raises:
        ShapeError: `key` is no key, `logits` are not floating point, or the shape does not fit.
    """
    x = tnp.moveaxis(as_tensor(logits), axis, -1)
    outer = x.shape[:-1] if shape is None else shape_argument(shape)
    lead = len(outer) - (x.ndim - 1)
    if lead < 0 or tuple(outer[lead:]) != tuple(x.shape[:-1]):
        raise ShapeError(f"indices of shape {tuple(outer)} do not end with {tuple(x.shape[:-1])}")
    # The words lie as in JAX, whose noise has the axis at its place in `logits`.
    place = lead + axis % x.ndim
    noise = gumbel(key, (*outer[:place], x.shape[-1], *outer[place:]), x.dtype)
    return tnp.argmax(tnp.moveaxis(noise, place, -1) + x, axis=-1)


# -- Keys of modules ---------------------------------------------------------------------------------------


class _Scope:
    """The key of a block, the trace it was opened in, and how often each name has drawn in it."""

    def __init__(self, key: Tensor, trace: Trace | None) -> None:
        self.key, self.trace = key, trace
        self.draws: dict[str, int] = {}


_scopes = threading.local()


@contextmanager
def using(key: TensorLike) -> Iterator[None]:
    """Give `tw.nn` modules in training a key: those that draw inside the block draw with it.

    A module's key is that of the block, folded with the module's path and with the number of its draws in
    the block before. So each module and each of its calls draws other numbers, and a compiled training step
    draws those of an eager one.

    A compiled function opens the block itself, with a key that it takes as an argument. In the body of a
    loop, `fold_in` the number of the iteration: the body is traced only once.

    Args:
        key: A key (2).

    Raises:
        ShapeError: `key` is no key.
    """
    _words(key)
    stack: list[_Scope] = _scopes.__dict__.setdefault("stack", [])
    stack.append(_Scope(as_tensor(key), current()))
    try:
        yield
    finally:
        stack.pop()


def key_for(name: str) -> Tensor | None:
    """Return a key (2), uint32, for the next draw of the module called `name`, or None outside of `using`.

    Args:
        name: The path of the module.

    Raises:
        TraceError: The key of `using` would become a constant of the function that is being compiled.
    """
    stack: list[_Scope] = getattr(_scopes, "stack", [])
    if not stack:
        return None
    scope, trace = stack[-1], current()
    if scope.trace is not trace and not isinstance(trace, EagerTrace):
        raise TraceError(
            f"{name or 'a module'} draws with a key that was set outside of the compiled function, so that "
            "each call would draw the same numbers: pass the key as an argument and write `with "
            f"tw.random.using(key):` inside the function (at {user_location('')})"
        )
    count = scope.draws.get(name, 0)
    scope.draws[name] = count + 1
    return fold_in(fold_in(scope.key, zlib.crc32(name.encode())), count)


# -- The builders ------------------------------------------------------------------------------------------


Words: TypeAlias = tuple[Tensor, Tensor]
"""The two words of a key, scalars."""


def _words(key: TensorLike) -> Words:
    words = as_tensor(key)
    if tuple(words.shape) != (2,) or words.type.dtype is not u32:
        raise ShapeError(
            f"a key has two uint32 words, not shape {tuple(words.shape)} of {words.dtype}: make one with "
            f"tw.random.key(seed) (at {user_location('')})"
        )
    return words[0], words[1]


def _several(words: Words, count: int) -> tuple[Tensor, ...]:
    """The high and the low words of new keys, two vectors."""
    places = tnp.arange(count).astype(np.uint32)
    return apply_several(g.Threefry, *words, as_tensor(0, u32), places)


def _pairs(words: Words, count: int) -> list[Words]:
    """The words of new keys, pairs of scalars."""
    high, low = _several(words, count)
    return [(high[k], low[k]) for k in range(count)]


def _draw(key: TensorLike | Words, build: Callable[[Random, Key], Value]) -> Tensor:
    words = key if isinstance(key, tuple) else _words(key)
    return _drawn(lambda random, *values: build(random, values), *words)


def _drawn(build: Callable[..., Value | tuple[Value, ...]], *operands: Tensor) -> Tensor:
    """Build a draw from values in the current trace, or at once; several results are stacked."""
    trace = current()
    if trace is None:
        with tracing(EagerTrace()):
            return concrete(np.asarray(_drawn(build, *operands)._known("an array")))

    def emit_all(op: Operation) -> tuple[Value, ...]:
        op.location = user_location("random")
        return trace.emit(op)

    built = build(Random(lambda op: emit_all(op)[0], emit_all), *map(value_of, operands))
    return tnp.stack([traced(v) for v in built]) if isinstance(built, tuple) else traced(built)


def _float_type(dtype: DTypeLike) -> DType:
    wanted = dtype_of(dtype)
    if not wanted.is_float or wanted.bits < 16:
        raise ShapeError(f"random numbers are floating point of 16 bits or more, not {wanted.label}")
    return wanted


def _known_size(size: Any) -> int:
    if not isinstance(size, int):
        raise TraceError(
            f"the number of rows, {size}, is known only in the run: a permutation needs it while tracing "
            f"(at {user_location('')})"
        )
    return size


def _inverse_erf(u: Tensor) -> Tensor:
    """Winitzki's approximation (2008), then three steps of Newton's method, each of which doubles its three
    digits.
    """
    a = 0.147
    log = tnp.log1p(-u * u)
    first = 2.0 / (math.pi * a) + log * 0.5
    root = tnp.sqrt(tnp.maximum(tnp.sqrt(first * first - log / a) - first, 0.0))
    y = tnp.where(u < 0, -root, root)
    for _ in range(3):
        y = y - (apply(UNARY["erf"], y) - u) / (tnp.exp(-y * y) * (2.0 / math.sqrt(math.pi)))
    return tnp.where(abs(u) < 1, y, u * math.inf)


__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "fold_in",
    "gumbel",
    "key",
    "key_for",
    "normal",
    "permutation",
    "randint",
    "split",
    "truncated_normal",
    "uniform",
    "using",
]
