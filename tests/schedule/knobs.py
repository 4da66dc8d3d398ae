"""Compare the results of values of knobs with those of the defaults.

    python -m tests.schedule.knobs --most 8 --kernel product

compares up to eight values (all without `--most`) of every knob of the named kernel (of all without
`--kernel`), and exits with 1 if a result differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.artifact.choices import Choice
from tilewright.nn import functional as F
from tilewright.runtime.kernels import KernelDescription
from tilewright.runtime.model import CompiledModel

RNG = np.random.default_rng(0)
TOLERANCE = {"float32": 1e-5, "bf16": 2e-2}
"""The largest difference where the order of a sum may change, relative to the largest result."""


@dataclass(frozen=True)
class Example:
    """A model whose kernels have knobs."""

    model: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    precision: str | None = None

    def compiled(self, *schedules: tw.Pin) -> CompiledModel:
        options: dict[str, Any] = {"cache": False, "threads": 2, "schedules": schedules}
        return tw.compile(self.model, self.arguments, precision=self.precision, **options)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def product(rows: int, depth: int, columns: int, precision: str | None = None) -> Example:
    weight = tw.Tensor(numbers(depth, columns) / depth**0.5)
    bias = tw.Tensor(numbers(columns))
    return Example(lambda x: F.gelu(x @ weight + bias), (numbers(rows, depth),), precision)


def convolution(size: int, channels: int, kernel: int, precision: str | None = None) -> Example:
    weight = tw.Tensor(numbers(channels, channels, kernel, kernel) / channels**0.5)
    x = numbers(2, channels, size, size)
    return Example(lambda x: F.relu(F.conv(x, weight, padding=kernel // 2)), (x,), precision)


def attention(queries: int, keys: int) -> Example:
    x = [numbers(1, 3, n, 32) for n in (queries, keys, keys)]
    return Example(lambda q, k, v: F.attention(q, k, v), tuple(x))


def recurrence() -> Example:
    def model(x: Any) -> Any:
        first = tw.numpy.zeros((150,), np.float32)
        return tw.scan(lambda h, row: (tw.numpy.tanh(h + row),) * 2, first, x)[1]

    return Example(model, (numbers(7, 150),))


EXAMPLES: dict[str, Callable[[], Example]] = {
    "product": lambda: product(67, 300, 200),
    "product of bf16": lambda: product(67, 300, 200, "bf16"),
    "convolution": lambda: convolution(13, 48, 5),
    "convolution by tiles": lambda: convolution(21, 80, 3),
    "convolution of bf16": lambda: convolution(13, 48, 3, "bf16"),
    "attention": lambda: attention(50, 70),
    "softmax": lambda: Example(lambda x: F.softmax(x), (numbers(9, 11, 130),)),
    "sum": lambda: Example(lambda x: x.sum(0), (numbers(40, 70),)),
    "dot products": lambda: Example(lambda x, y: x @ y.T, (numbers(1, 90), numbers(24, 90))),
    "elementwise": lambda: Example(lambda x: tw.numpy.tanh(x) + x, (numbers(20000),)),
    "pooling": lambda: Example(lambda x: F.max_pool(x, 3, 1, 1), (numbers(1, 20, 12, 12),)),
    "running sum": lambda: Example(lambda x: tw.numpy.cumsum(x, 0), (numbers(9, 1500),)),
    "recurrence": recurrence,
}


def sampled(choice: Choice, most: int | None) -> list[Any]:
    """The values of a knob except the chosen one: all, or `most` that are spread over the domain."""
    others = [v for v in choice.domain if v != choice.value]
    if most is None or len(others) <= most:
        return others
    if most == 1:
        return others[len(others) // 2 :][:1]
    return [others[k * (len(others) - 1) // (most - 1)] for k in range(most)]


def wrong_values(name: str, most: int | None) -> Iterator[str]:
    """Describe each value of a knob by which a result of an example differs more than it may."""
    example = EXAMPLES[name]()
    library = example.compiled()
    wanted = np.asarray(library(*example.arguments))
    for kernel in library.kernels.values():
        for choice in kernel.choices:
            for value in sampled(choice, most):
                problem = _problem(example, kernel, choice, value, wanted)
                if problem:
                    yield f"{name}: {kernel.name}: {choice.name} = {value!r}: {problem}"


def _problem(
    example: Example, kernel: KernelDescription, choice: Choice, value: Any, wanted: np.ndarray
) -> str:
    """The fault of a value; "" if there is none, or if the value does not fit the kernel."""
    try:
        library = example.compiled(tw.pin(kernel.name, **{choice.name: value}))
    except tw.CompileError as error:
        return "" if "choose" not in str(error) else str(error)
    found = np.asarray(library(*example.arguments))
    if not choice.reorders_sums:
        return "" if np.array_equal(found, wanted) else "another result, though no sum changes its order"
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    most = TOLERANCE[example.precision or "float32"]
    return "" if error <= most else f"the result differs by {error:.1e} of its maximum"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="knobs", description="Compare the results of values of knobs.")
    parser.add_argument("--kernel", action="append", choices=tuple(EXAMPLES), help="only this one")
    parser.add_argument("--most", type=int, help="values of each knob (default: all)")
    options = parser.parse_args(arguments)
    wrong = [text for name in options.kernel or EXAMPLES for text in wrong_values(name, options.most)]
    print("\n".join(wrong) or "all results are equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
