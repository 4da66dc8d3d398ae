"""Random differentiable programs of operators on tensors: their gradients in float64, at once and compiled,
are compared with those of PyTorch for the same program.

``python -m tests.autodiff.random_programs --count 1000 --first 0`` runs many of them; ``--record`` keeps the
outcome in ``random_programs.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tilewright as tw

xp = tw.numpy
Shape = tuple[int, ...]
TOLERANCE = 1e-9
"""The largest difference of two gradients, relative to the largest element."""
LARGEST_ELEMENTS = 600
DATA = Path(__file__).with_suffix(".json")
"""Outcomes of ranges of programs, by the first of each."""


@dataclass(frozen=True)
class Step:
    """A step of a program: its name, the numbers of the values that it takes, and the functions for our
    tensors and for PyTorch's.
    """

    name: str
    operands: tuple[int, ...]
    ours: Callable[..., Any]
    torch: Callable[..., Any]


class Program:
    """A random program of `steps` on a few inputs.

    Attributes:
        inputs: The inputs, float64.
        dynamic: Whether the first dimension of the inputs and of all values has a size that only a run knows.
    """

    def __init__(self, seed: int, length: int = 8) -> None:
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.dynamic = bool(self.rng.random() < 0.4)
        self.rows = int(self.rng.integers(2, 5))
        count = int(self.rng.integers(1, 4))
        rank = int(self.rng.integers(2, 4))
        base = (self.rows, *(int(n) for n in self.rng.integers(1, 6, rank - 1)))
        self.inputs = [self.rng.standard_normal(self._varied(base)) for _ in range(count)]
        self.values: list[torch.Tensor] = [torch.from_numpy(x) for x in self.inputs]
        # With another number of rows, which fits only what fits any number.
        more = [self.rng.standard_normal((11, *x.shape[1:])) for x in self.inputs]
        self.other: list[torch.Tensor] = [torch.from_numpy(x) for x in more] if self.dynamic else []
        self.steps: list[Step] = []
        while len(self.steps) < length:
            self._grow()
        del self.values[count:], self.other[count:]

    def _varied(self, base: Shape) -> Shape:
        return (base[0], *(n if self.rng.random() < 0.8 else 1 for n in base[1:]))

    def integer(self, low: int, high: int) -> int:
        """A number from `low` up to `high`."""
        return int(self.rng.integers(low, high + 1))

    def axis(self, x: torch.Tensor) -> int:
        """A dimension, other than one of a dynamic size."""
        return self.integer(1 if self.dynamic else 0, x.ndim - 1)

    def constant(self, shape: Sequence[int]) -> np.ndarray:
        """Constants of a shape; the same for all rows if their number is dynamic."""
        return self.rng.standard_normal((1, *shape[1:]) if self.dynamic and shape else shape)

    def _grow(self) -> None:
        """Add a step whose result is neither large nor empty."""
        name = str(self.rng.choice(sorted(MAKERS)))
        # A late value is taken more often than an early one.
        first = max(self.integer(0, len(self.values) - 1), self.integer(0, len(self.values) - 1))
        made = MAKERS[name](self, self.values[first])
        if made is None:
            return
        others, ours, theirs = made
        step = Step(name, (first, *others), ours, theirs)
        try:
            result = theirs(*(self.values[k] for k in step.operands))
            other = theirs(*(self.other[k] for k in step.operands)) if self.dynamic else result
        except (RuntimeError, IndexError):
            return  # shapes that do not fit
        least = 2 if self.dynamic else 1
        fits = least <= result.ndim <= 4 and 0 < result.numel() <= LARGEST_ELEMENTS
        if self.dynamic:
            fits = fits and result.shape[0] == self.rows and other.shape[0] == 11
        if fits and bool(result.isfinite().all()):
            if float(result.abs().max()) < 1e3:
                self.steps.append(step)
                self.values.append(result)
                self.other.append(other)

    def run(self, inputs: Sequence[Any], ours: bool) -> Any:
        """The scalar that the program computes: a smooth function of all its values."""
        values = list(inputs)
        for step in self.steps:
            function = step.ours if ours else step.torch
            values.append(function(*(values[k] for k in step.operands)))
        total: Any = 0.0
        used = {k for step in self.steps for k in step.operands}
        for k, y in enumerate(values[len(inputs) :], len(inputs)):
            if k not in used:
                total = total + ((xp.sin(y) * 0.7 + y).sum() if ours else (torch.sin(y) * 0.7 + y).sum())
        return total

    def expected(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The gradients by PyTorch."""
        leaves = [torch.from_numpy(x).requires_grad_() for x in inputs]
        found = torch.autograd.grad(self.run(leaves, False), leaves, allow_unused=True)
        return [np.zeros(x.shape) if g is None else g.numpy() for g, x in zip(found, inputs, strict=True)]

    def gradient(self) -> Callable[..., Any]:
        """The function from the inputs to the gradients."""

        def gradients(*inputs: Any) -> Any:
            return tw.grad(lambda *x: self.run(x, True), tuple(range(len(inputs))))(*inputs)

        return gradients

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: inputs {[x.shape for x in self.inputs]}, dynamic: {self.dynamic}"]
        lines += [f"  v{k} = {s.name}{s.operands}" for k, s in enumerate(self.steps, len(self.inputs))]
        return "\n".join(lines)


def check(program: Program) -> None:
    """Compare a program's gradients, at once and compiled, with PyTorch's.

    Raises:
        AssertionError: They differ.
    """
    names = [f"x{k}" for k in range(len(program.inputs))]
    gradients = program.gradient()
    _agree(program, gradients(*map(tw.Tensor, program.inputs)), program.inputs, "at once")
    scope: dict[str, Any] = {"gradients": gradients}
    exec(f"def main({', '.join(names)}): return gradients({', '.join(names)})", scope)
    dims = {n: {0: "n"} for n in names} if program.dynamic else None
    with tw.compile(scope["main"], tuple(program.inputs), dims=dims, cache=False) as library:
        runs = [program.inputs]
        if program.dynamic:
            rows = program.rows + 3
            runs.append([program.rng.standard_normal((rows, *x.shape[1:])) for x in program.inputs])
        for inputs in runs:
            found = library(*inputs)
            found = found if isinstance(found, tuple) else (found,)
            _agree(program, found, inputs, "compiled")


def _agree(program: Program, found: Sequence[Any], inputs: Sequence[np.ndarray], what: str) -> None:
    for k, (g, z) in enumerate(zip(found, program.expected(inputs), strict=True)):
        y = np.asarray(g)
        scale = max(float(np.abs(z).max(initial=0)), 1e-2)
        error = float(np.abs(y - z).max(initial=0))
        assert y.shape == z.shape and error <= TOLERANCE * scale, (
            f"the gradient of input {k}, {what}, is wrong by {error} of {scale}\n{program}"
        )


Made = tuple[tuple[int, ...], Callable[..., Any], Callable[..., Any]] | None
MAKERS: dict[str, Callable[[Program, torch.Tensor], Made]] = {}
"""A maker gives further operands and both functions of a step, or None where it does not fit."""


def maker(f: Callable[[Program, torch.Tensor], Made]) -> Callable[[Program, torch.Tensor], Made]:
    MAKERS[f.__name__] = f
    return f


def _unary(name: str, ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    MAKERS[name] = lambda p, x: ((), ours, theirs)


_unary("sin", lambda x: xp.sin(x), torch.sin)
_unary("tanh", lambda x: xp.tanh(x), torch.tanh)
_unary("exp", lambda x: xp.exp(-xp.abs(x)), lambda x: torch.exp(-x.abs()))
_unary("log", lambda x: xp.log(x * x + 1.5), lambda x: torch.log(x * x + 1.5))
_unary("sqrt", lambda x: xp.sqrt(x * x + 0.5), lambda x: torch.sqrt(x * x + 0.5))
_unary("square", lambda x: x * x * 0.3, lambda x: x * x * 0.3)
_unary("arctan", lambda x: xp.arctan(x), torch.atan)
_unary("clip", lambda x: xp.clip(x, -0.83, 0.97), lambda x: x.clamp(-0.83, 0.97))
_unary("abs", lambda x: xp.abs(x), torch.abs)
_unary("logaddexp", lambda x: xp.logaddexp(x, 0.0), torch.nn.functional.softplus)
_unary(
    "where", lambda x: xp.where(x > 0.1, x * 2.0, xp.sin(x)), lambda x: torch.where(x > 0.1, x * 2, x.sin())
)


def _binary(name: str, ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    def make(p: Program, x: torch.Tensor) -> Made:
        return (p.integer(0, len(p.values) - 1),), ours, theirs

    MAKERS[name] = make


_binary("add", lambda a, b: a + b, lambda a, b: a + b)
_binary("multiply", lambda a, b: a * b, lambda a, b: a * b)
_binary("divide", lambda a, b: a / (b * b + 1.3), lambda a, b: a / (b * b + 1.3))
_binary("maximum", lambda a, b: xp.maximum(a, b), torch.maximum)
_binary("minimum", lambda a, b: xp.minimum(a, b * 0.9), lambda a, b: torch.minimum(a, b * 0.9))
_binary("hypot", lambda a, b: xp.hypot(a, b + 0.01), lambda a, b: torch.hypot(a, b + 0.01))


@maker
def matmul(p: Program, x: torch.Tensor) -> Made:
    if x.ndim < 2 or (p.dynamic and x.ndim < 3):
        return None
    w = p.constant((1, x.shape[-1], p.integer(1, 5)))
    return (), lambda x: x @ w, lambda x: x @ torch.from_numpy(w)


@maker
def gram(p: Program, x: torch.Tensor) -> Made:
    if x.ndim < 2 or (p.dynamic and x.ndim < 3):
        return None
    return (), lambda x: x @ xp.swapaxes(x, -1, -2) * 0.2, lambda x: x @ x.transpose(-1, -2) * 0.2


@maker
def einsum(p: Program, x: torch.Tensor) -> Made:
    letters = "abcd"[: x.ndim]
    other = p.integer(0, len(p.values) - 1)
    if p.values[other].shape != x.shape:
        return None
    text = (
        f"{letters},{letters}->{letters[:-1]}" if p.rng.random() < 0.5 else f"{letters},{letters}->{letters}"
    )
    return (other,), lambda a, b: xp.einsum(text, a, b), lambda a, b: torch.einsum(text, a, b)


def _reduction(name: str, ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    def make(p: Program, x: torch.Tensor) -> Made:
        axis, noise = p.axis(x), 0.3 * p.constant(x.shape)
        keep = bool(p.rng.random() < 0.6)

        def of_ours(x: Any) -> Any:
            return ours(x + noise, axis, keep)

        def of_theirs(x: Any) -> Any:
            return theirs(x + torch.from_numpy(noise), axis, keep)

        return (), of_ours, of_theirs

    MAKERS[name] = make


_reduction("sum", lambda x, a, k: xp.sum(x, a, keepdims=k), lambda x, a, k: x.sum(a, k))
_reduction("mean", lambda x, a, k: xp.mean(x, a, keepdims=k), lambda x, a, k: x.mean(a, k))
_reduction("prod", lambda x, a, k: xp.prod(x, a, keepdims=k), lambda x, a, k: x.prod(a, k))
_reduction("max", lambda x, a, k: xp.max(x, a, keepdims=k), lambda x, a, k: x.amax(a, k))
_reduction("min", lambda x, a, k: xp.min(x, a, keepdims=k), lambda x, a, k: x.amin(a, k))
_reduction("var", lambda x, a, k: xp.var(x, a, keepdims=k), lambda x, a, k: x.var(a, correction=0, keepdim=k))
_reduction("logsumexp", lambda x, a, k: xp.logsumexp(x, a, keepdims=k), lambda x, a, k: x.logsumexp(a, k))
_reduction("cumsum", lambda x, a, k: xp.cumsum(x, a), lambda x, a, k: x.cumsum(a))
_reduction("cumprod", lambda x, a, k: xp.cumprod(x, a), lambda x, a, k: x.cumprod(a))
_reduction("sort", lambda x, a, k: xp.sort(x, a), lambda x, a, k: x.sort(a)[0])
_reduction("topk", lambda x, a, k: xp.topk(x, 1, a)[0], lambda x, a, k: x.topk(1, a)[0])
_reduction("median", lambda x, a, k: xp.flip(xp.sort(x, a), a), lambda x, a, k: x.sort(a, descending=True)[0])
_reduction("flip", lambda x, a, k: xp.flip(x, a), lambda x, a, k: x.flip(a))
_reduction("roll", lambda x, a, k: xp.roll(x, 2, a), lambda x, a, k: x.roll(2, a))
_reduction("stack", lambda x, a, k: xp.stack([x, xp.cos(x)], a), lambda x, a, k: torch.stack([x, x.cos()], a))


@maker
def rows(p: Program, x: torch.Tensor) -> Made:
    """A reduction over the first dimension, broadcast back, and the difference of neighbours."""
    which = p.integer(0, 3)
    ours: list[Callable[[Any], Any]] = [
        lambda x: x - xp.mean(x, 0, keepdims=True),
        lambda x: x * xp.max(x, 0, keepdims=True),
        lambda x: xp.flip(xp.cumsum(x, 0), 0),
        lambda x: xp.concatenate([x[1:], x[:1] * 2.0], 0),
    ]
    theirs: list[Callable[[Any], Any]] = [
        lambda x: x - x.mean(0, keepdim=True),
        lambda x: x * x.amax(0, keepdim=True),
        lambda x: x.cumsum(0).flip(0),
        lambda x: torch.cat([x[1:], x[:1] * 2.0], 0),
    ]
    return (), ours[which], theirs[which]


@maker
def transposed(p: Program, x: torch.Tensor) -> Made:
    order = list(p.rng.permutation(x.ndim)) if not p.dynamic else [0, *(1 + p.rng.permutation(x.ndim - 1))]
    axes = [int(k) for k in order]
    return (), lambda x: xp.transpose(x, axes), lambda x: x.permute(axes)


@maker
def reshaped(p: Program, x: torch.Tensor) -> Made:
    if p.dynamic:
        return (), lambda x: xp.reshape(x, (x.shape[0], -1)), lambda x: x.reshape(x.shape[0], -1)
    n = x.numel()
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    rows = int(p.rng.choice(divisors))
    return (), lambda x: xp.reshape(x, (rows, -1)), lambda x: x.reshape(rows, -1)


@maker
def sliced(p: Program, x: torch.Tensor) -> Made:
    axis = p.axis(x)
    n, step = x.shape[axis], p.integer(1, 3)
    start = p.integer(0, n - 1)
    index = (slice(None),) * axis + (slice(start, None, step),)
    backwards = bool(p.rng.random() < 0.3)

    def ours(x: Any) -> Any:
        return x[(*index[:-1], slice(None, None, -step))] if backwards else x[index]

    def theirs(x: Any) -> Any:
        return x.flip(axis)[(*index[:-1], slice(None, None, step))] if backwards else x[index]

    return (), ours, theirs


@maker
def gathered(p: Program, x: torch.Tensor) -> Made:
    axis = p.axis(x)
    index = p.rng.integers(0, x.shape[axis], p.integer(1, 5))
    return (
        (),
        lambda x: xp.take(x, index, axis),
        lambda x: x.index_select(axis, torch.from_numpy(index)),
    )


@maker
def along(p: Program, x: torch.Tensor) -> Made:
    """`take_along_axis` at places that the data tell."""
    axis = p.axis(x)
    return (
        (),
        lambda x: xp.take_along_axis(x, xp.argsort(x * 1.0, axis), axis) * 0.5,
        lambda x: x.gather(axis, torch.sort(x, dim=axis, stable=True)[1]) * 0.5,
    )


@maker
def written(p: Program, x: torch.Tensor) -> Made:
    """A part of a tensor is replaced, or added to."""
    axis = p.axis(x)
    k = p.integer(0, x.shape[axis] - 1)
    index = (slice(None),) * axis + (k,)
    add = bool(p.rng.random() < 0.5)

    def ours(x: Any) -> Any:
        part = xp.sin(xp.take(x, 0, axis))
        return x.at[index].add(part) if add else x.at[index].set(part)

    def theirs(x: Any) -> Any:
        y, part = x.clone(), x.select(axis, 0).sin()
        y[index] = y[index] + part if add else part
        return y

    return (), ours, theirs


@maker
def scattered(p: Program, x: torch.Tensor) -> Made:
    """Slices are added at places some of which are equal."""
    axis = p.axis(x)
    places = p.rng.integers(0, x.shape[axis], x.shape[axis])
    index = (slice(None),) * axis + (places,)

    def theirs(x: Any) -> Any:
        return x.index_add(axis, torch.from_numpy(places), x.cos())

    return (), lambda x: x.at[index].add(xp.cos(x)), theirs


@maker
def padded(p: Program, x: torch.Tensor) -> Made:
    axis = p.axis(x)
    low, high = p.integer(0, 2), p.integer(0, 2)
    pads = [(low, high) if d == axis else (0, 0) for d in range(x.ndim)]
    mode = str(p.rng.choice(["constant", "edge", "reflect", "wrap"]))
    n = x.shape[axis]
    places = np.pad(np.arange(n), (low, high), mode=mode) if mode != "constant" else np.zeros(0, int)
    flat = [v for d in reversed(range(x.ndim)) for v in pads[d]]

    def theirs(x: Any) -> Any:
        if mode == "constant":
            return torch.nn.functional.pad(x, flat)
        return x.index_select(axis, torch.from_numpy(places))

    return (), lambda x: xp.pad(x, pads, mode=mode), theirs


@maker
def tiled(p: Program, x: torch.Tensor) -> Made:
    repeats = [1 if p.dynamic and d == 0 else p.integer(1, 2) for d in range(x.ndim)]
    return (), lambda x: xp.tile(x, repeats), lambda x: x.tile(repeats)


@maker
def triangle(p: Program, x: torch.Tensor) -> Made:
    k, upper = p.integer(-1, 1), bool(p.rng.random() < 0.5)
    if x.ndim < (3 if p.dynamic else 2):
        return None
    if upper:
        return (), lambda x: xp.triu(x, k), lambda x: x.triu(k)
    return (), lambda x: xp.tril(x, k), lambda x: x.tril(k)


@maker
def joined(p: Program, x: torch.Tensor) -> Made:
    axis, other = p.axis(x), p.integer(0, len(p.values) - 1)
    return (
        (other,),
        lambda a, b: xp.concatenate([a, xp.sin(b), a], axis),
        lambda a, b: torch.cat([a, b.sin(), a], axis),
    )


@maker
def normalized(p: Program, x: torch.Tensor) -> Made:
    """Softmax, and the layer norm without a scale."""
    if p.rng.random() < 0.5:
        return (
            (),
            lambda x: xp.exp(x - xp.logsumexp(x, -1, keepdims=True)),
            lambda x: x.softmax(-1),
        )

    def norm(x: Any, mean: Any, var: Any) -> Any:
        return (x - mean) * (var + 1e-2) ** -0.5

    return (
        (),
        lambda x: norm(x, xp.mean(x, -1, keepdims=True), xp.var(x, -1, keepdims=True)),
        lambda x: norm(x, x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)),
    )


@maker
def looped(p: Program, x: torch.Tensor) -> Made:
    """A loop of Python that is unrolled."""
    scale = 1.0 / math.sqrt(x.numel())

    def ours(x: Any) -> Any:
        y = x
        for _ in range(3):
            y = xp.tanh(y + scale * xp.sum(x * y, -1, keepdims=True))
        return y

    def theirs(x: Any) -> Any:
        y = x
        for _ in range(3):
            y = torch.tanh(y + scale * (x * y).sum(-1, keepdim=True))
        return y

    return (), ours, theirs


@maker
def scanned(p: Program, x: torch.Tensor) -> Made:
    """A loop over the rows, as many as the run has, which carries a row; from the first one or the last."""
    reverse = bool(p.rng.random() < 0.5)

    def ours(x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            h = xp.tanh(0.6 * h + row)
            return h, h * row

        return tw.scan(step, xp.sin(x[0]), x, reverse=reverse)[1]

    def theirs(x: Any) -> Any:
        h, found = x[0].sin(), {}
        for t in reversed(range(len(x))) if reverse else range(len(x)):
            h = torch.tanh(0.6 * h + x[t])
            found[t] = h * x[t]
        return torch.stack([found[t] for t in range(len(x))])

    return (), ours, theirs


@maker
def repeated(p: Program, x: torch.Tensor) -> Made:
    """A loop whose number of steps, at most five, the data tell."""

    def ours(x: Any) -> Any:
        def goes_on(state: Any) -> Any:
            return (state[0] < 5) & (xp.sum(state[1] * state[1]) > 0.4)

        def body(state: Any) -> Any:
            return state[0] + 1, state[1] * 0.7 + 0.05 * xp.sin(x)

        return tw.while_loop(goes_on, body, (tw.tensor(0), x))[1]

    def theirs(x: Any) -> Any:
        count, y = 0, x
        while count < 5 and bool((y * y).sum() > 0.4):
            count, y = count + 1, y * 0.7 + 0.05 * x.sin()
        return y

    return (), ours, theirs


@maker
def branched(p: Program, x: torch.Tensor) -> Made:
    """A branch that the data choose."""

    def ours(x: Any) -> Any:
        return tw.cond(xp.sum(x) > 0.1, lambda: xp.sin(x) * x, lambda: x * 0.5 + xp.tanh(x))

    return (), ours, lambda x: x.sin() * x if bool(x.sum() > 0.1) else x * 0.5 + x.tanh()


@maker
def masked(p: Program, x: torch.Tensor) -> Made:
    """Elements that a mask hides, where the formula beneath it is infinite or not a number."""
    return (
        (),
        lambda x: xp.where(x > 0.2, xp.log(xp.maximum(x, 0.2)), 0.3) * (x < 2.0),
        lambda x: torch.where(x > 0.2, torch.maximum(x, torch.tensor(0.2).double()).log(), 0.3) * (x < 2.0),
    )


@maker
def counted(p: Program, x: torch.Tensor) -> Made:
    """Integers and booleans that the data tell, among floating-point numbers."""
    axis = p.axis(x)

    def ours(x: Any) -> Any:
        return x * xp.sum(x > 0, axis, keepdims=True) * 0.25 + xp.floor(x).astype("int64")

    def theirs(x: Any) -> Any:
        return x * (x > 0).sum(axis, True) * 0.25 + x.floor().long()

    return (), ours, theirs


@maker
def tied(p: Program, x: torch.Tensor) -> Made:
    """The largest of elements that are equal in pairs: each has a part of the gradient."""
    axis = p.axis(x)
    return (
        (),
        lambda x: xp.max(xp.concatenate([x, x * 1.0], axis), axis, keepdims=True) + 0.0 * x,
        lambda x: torch.cat([x, x * 1.0], axis).amax(axis, True) + 0.0 * x,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--length", type=int, default=8, help="steps of a program")
    parser.add_argument("--record", action="store_true", help="add the outcome to random_programs.json")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.first, options.first + options.count):
        try:
            check(Program(seed, options.length))
        except Exception as e:
            failed += 1
            print(f"seed {seed}: {type(e).__name__}: {e}", flush=True)
    print(f"{options.count} programs from {options.first} on: {failed} failed")
    if options.record:
        found = json.loads(DATA.read_text()) if DATA.exists() else {}
        found[str(options.first)] = {
            "count": options.count,
            "failed": failed,
            "length": options.length,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"{platform.machine()}, {platform.system()}",
        }
        DATA.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
