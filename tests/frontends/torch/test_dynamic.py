"""Dynamic sizes: a compiled model accepts all sizes that it accepts in PyTorch; otherwise a warning lists the
accepted ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tilewright.errors import CompileError, DimsWarning, ShapeError  # noqa: E402
from tilewright.frontends.torch import import_torch  # noqa: E402
from tilewright.ir.interpreter import Interpreter  # noqa: E402

from .checks import Lambda, close, run  # noqa: E402

F = torch.nn.functional
CONV = torch.nn.Conv2d(2, 3, 3, stride=2, padding=1).eval()
MODELS: dict[str, tuple[Callable[..., Any], tuple[int | None, ...], int]] = {
    "second half": (lambda x: x[:, x.shape[1] // 2 :].sum(1), (2, None), 1),
    "halves": (lambda x: x[:, : x.shape[1] // 2] * 2, (2, None), 1),
    "chunks": (lambda x: x.chunk(2, -1)[0].sum(-1) + x.chunk(2, -1)[1].sum(-1), (2, None), 2),
    "ceil-mode pools": (
        lambda x: F.avg_pool1d(F.max_pool1d(x, 2, ceil_mode=True), 3, 2, 1, ceil_mode=True),
        (1, 2, None),
        1,
    ),
    "strided convolution and ceil-mode pool": (
        lambda x: F.max_pool2d(CONV(x), 3, 2, ceil_mode=True),
        (1, 2, None, 9),
        3,
    ),
    "two strided convolutions": (lambda x: CONV(CONV(x)[:, :2]), (1, 2, None, 9), 1),
    "pool of a sequence": (lambda x: torch.nn.MaxPool1d(3, 2, padding=1)(x), (1, 2, None), 1),
}
"""Models, the shapes of their inputs (None for the dynamic size), and the least size that they accept."""


def shaped(shape: tuple[int | None, ...], size: int) -> Any:
    return torch.randn([size if d is None else d for d in shape])


@pytest.mark.parametrize("example", [6, 7, 8])
@pytest.mark.parametrize("name", MODELS)
def test_all_sizes_are_accepted(name: str, example: int) -> None:
    function, shape, least = MODELS[name]
    with warnings.catch_warnings():
        if least < 3:
            warnings.simplefilter("error", DimsWarning)
        module = import_torch(
            Lambda(function), (shaped(shape, example),), dims={"x": {shape.index(None): "n"}}
        )
    for size in (*range(least, 14), 37, 64):
        x = shaped(shape, size)
        with torch.no_grad():
            close(run(module, (x,))[0], function(x))


@pytest.mark.parametrize(
    ("function", "example", "dim", "message", "works"),
    [
        (lambda x: x.reshape(-1, 2).sum(1), 6, "n", r"multiples of 2: .*'2\*n'", 10),
        (lambda x: x * 2 if x.shape[0] > 8 else x + 1, 6, "n", "up to 8: .*'n<=8'", 1),
        (lambda x: x * 2 if x.shape[0] > 8 else x + 1, 20, "n", "from 9 on: .*'9<=n'", 9),
        (lambda x: x * 2 if x.shape[0] > 8 else x + 1, 20, "4<=n<=64", "from 9 on", 64),
    ],
)
def test_narrower_bounds_give_a_warning(
    function: Any, example: int, dim: str, message: str, works: int
) -> None:
    with pytest.warns(DimsWarning, match=message) as caught:
        module = import_torch(Lambda(function), (torch.ones(example),), dims={"x": {0: dim}})
    assert caught[0].filename == __file__
    x = torch.randn(works)
    close(run(module, (x,))[0], function(x))


@pytest.mark.parametrize("dim", ["2*n", "n<=8", "9<=n"])
def test_sizes_that_dims_exclude_give_no_warning(dim: str) -> None:
    function, example = {
        "2*n": (lambda x: x.reshape(-1, 2).sum(1), 6),
        "n<=8": (lambda x: x * 2 if x.shape[0] > 8 else x + 1, 6),
        "9<=n": (lambda x: x * 2 if x.shape[0] > 8 else x + 1, 20),
    }[dim]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DimsWarning)
        import_torch(Lambda(function), (torch.ones(example),), dims={"x": {0: dim}})


def test_sizes_outside_are_refused_in_the_run() -> None:
    with pytest.warns(DimsWarning):
        module = import_torch(
            Lambda(lambda x: x * 2 if x.shape[0] > 8 else x + 1), (torch.ones(6),), dims={"x": {0: "n"}}
        )
    with pytest.raises((ShapeError, ValueError)):
        Interpreter(module).run("main", [torch.ones(9).numpy()])


def test_a_size_that_the_model_fixes_is_an_error() -> None:
    with pytest.raises(CompileError, match="fixes that dimension to 4"):
        import_torch(Lambda(lambda x: x.reshape(2, 2)), (torch.ones(4),), dims={"x": {0: "n"}})
