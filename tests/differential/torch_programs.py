"""Random PyTorch programs over every element type, with shapes without dimensions or elements and values at
the limits of their types, compared with eager mode.

A program is a few lines of Python text, so that a failing program is readable in the report. It grows a line
at a time, and lines that eager mode refuses are left out. Lines with discontinuous results (comparisons,
rounding, sorting, casts to integers) read exact values only: inputs are small multiples of 1/8, and results
that need no rounding stay exact. So a correct compiler agrees with eager mode to the tolerance of the element
type.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
TYPES = (*FLOATS, *INTEGERS, torch.bool)
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Tolerances of an output, relative to its largest element. Eager mode rounds 16-bit types after each line,
compiled code less often.
"""
SHAPES: Sequence[tuple[int, ...]] = (
    (),
    (),
    (),
    (1,),
    (0,),
    (3,),
    (5,),
    (2, 3),
    (1, 4),
    (3, 1),
    (0, 3),
    (2, 0, 3),
    (2, 3, 4),
    (1, 1, 1),
)
ARGUMENTS = (
    "x",
    "y",
    "out",
    "größe",
    "данные",
    "lengthy" * 20,
    "input",
    "seed_",
    "batch_size",
    "main",
    "tw_run",
    "malloc",
    "dims",
)
"""Names of arguments: from other alphabets, long ones, and ones that mean something in the compiler, in its C
code or in its Python interface.
"""
LARGEST = 1e4

EXACT = frozenset("move clamp choose compare integer cast".split())
"""Kinds of lines whose result is exact if their operands are."""
JUMPS = frozenset("compare cast sort round".split())
"""Kinds of lines with discontinuous results, which read exact operands only."""


@dataclass
class Value:
    """A tensor of the program during generation."""

    name: str
    data: torch.Tensor
    exact: bool


@dataclass
class TorchProgram:
    """The source of a function and its arguments."""

    seed: int
    source: str
    arguments: dict[str, torch.Tensor]

    def function(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {"torch": torch}
        exec(self.source, scope)
        found: Callable[..., Any] = scope["program"]
        return found

    def __str__(self) -> str:
        lines = [f"{name}: {tuple(x.shape)} {x.dtype} = {x.tolist()}" for name, x in self.arguments.items()]
        return "\n".join(["# " + line[:200] for line in lines] + [self.source])


Line = Callable[["_Grower"], tuple[str, Sequence[Value]] | None]
_LINES: list[tuple[str, Line]] = []


def _line(kind: str, weight: int = 1) -> Callable[[Line], Line]:
    def register(make: Line) -> Line:
        _LINES.extend([(kind, make)] * weight)
        return make

    return register


class _Grower:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.values: list[Value] = []

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def value(self, *kinds: str, rank: int = 0) -> Value | None:
        """A value of one of the kinds ``float``, ``int``, ``bool``, or of any kind without arguments."""
        fitting = [
            v for v in self.values if (not kinds or _kind(v.data.dtype) in kinds) and v.data.dim() >= rank
        ]
        return self.pick(fitting[-4:] if self.rng.random() < 0.6 else fitting) if fitting else None

    def tensor(self) -> torch.Tensor:
        shape, dtype = self.pick(SHAPES), self.pick(TYPES)
        if dtype.is_floating_point:
            return (
                torch.from_numpy(np.asarray(self.rng.integers(-24, 25, shape) / 8)).to(dtype).reshape(shape)
            )
        if dtype is torch.bool:
            return torch.from_numpy(np.asarray(self.rng.random(shape) < 0.5)).reshape(shape)
        info = torch.iinfo(dtype)
        x = self.rng.integers(max(info.min, -9), 10, shape)
        if self.rng.random() < 0.5:  # the limits of the type
            ends = self.rng.choice([info.min, info.max, info.max - 1], shape)
            x = np.where(self.rng.random(shape) < 0.4, ends, x)
        return torch.from_numpy(np.asarray(x, np.int64)).to(dtype).reshape(shape)


def _kind(dtype: torch.dtype) -> str:
    return "bool" if dtype is torch.bool else "float" if dtype.is_floating_point else "int"


def generate(seed: int, steps: int = 8) -> TorchProgram:
    """The program of a seed, which is always the same."""
    g = _Grower(seed)
    names = list(g.rng.permutation(ARGUMENTS)[: g.integer(1, 3)])
    g.values = [Value(str(name), g.tensor(), True) for name in names]
    arguments = {v.name: v.data for v in g.values}
    lines: list[str] = []
    used: set[str] = set()
    wanted = g.integer(2, steps)
    for _ in range(30 * wanted):
        if len(lines) == wanted:
            break
        kind, make = g.pick(_LINES)
        made = make(g)
        if made is None:
            continue
        text, operands = made
        if kind in JUMPS and not all(v.exact or _kind(v.data.dtype) != "float" for v in operands):
            continue
        result = _evaluated(text, g.values)
        if result is None or not _moderate(result):
            continue
        name = f"v{len(lines)}"
        exact = kind in EXACT | JUMPS and all(v.exact for v in operands) and _is_exact(result)
        g.values.append(Value(name, result, exact))
        lines.append(f"    {name} = {text}")
        used |= {v.name for v in operands}
    outputs = [v.name for v in g.values[len(arguments) :] if v.name not in used] or [g.values[-1].name]
    source = "\n".join(
        [f"def program({', '.join(arguments)}):", *lines, f"    return {', '.join(outputs)},", ""]
    )
    return TorchProgram(seed, source, arguments)


def _evaluated(text: str, values: Sequence[Value]) -> torch.Tensor | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = eval(text, {"torch": torch}, {v.name: v.data.clone() for v in values})
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, ZeroDivisionError):
            return None
    return found if isinstance(found, torch.Tensor) and found.numel() <= 4096 and found.dim() <= 5 else None


def _moderate(x: torch.Tensor) -> bool:
    if not x.dtype.is_floating_point:
        return x.dtype in TYPES
    wide = x.double()
    return bool(wide.isfinite().all()) and (not wide.numel() or wide.abs().max().item() < LARGEST)


def _is_exact(x: torch.Tensor) -> bool:
    """Whether the elements have so few bits that no type rounds them, even after some more lines."""
    return not x.dtype.is_floating_point or bool(
        ((x.double() * 8) % 1 == 0).all() and (x.double().abs() < 16).all()
    )


# -- Lines ---------------------------------------------------------------------------------------------------


def _call(g: _Grower, template: str, *kinds: str, rank: int = 0) -> tuple[str, Sequence[Value]] | None:
    x = g.value(*kinds, rank=rank)
    return None if x is None else (template.format(x=x.name), [x])


@_line("compute", 4)
def function(g: _Grower) -> Any:
    names = "sigmoid tanh exp sin cos expm1 erf relu silu gelu softplus elu hardswish mish square atan sinh"
    name = g.pick(names.split())
    inside = (
        "torch.nn.functional" if hasattr(torch.nn.functional, name) and not hasattr(torch, name) else "torch"
    )
    return _call(g, f"{inside}.{name}({{x}})", "float")


@_line("compute", 2)
def partial_function(g: _Grower) -> Any:
    name = g.pick(["sqrt", "rsqrt", "log", "log1p", "reciprocal"])
    return _call(g, f"torch.{name}({{x}}.abs() + 1)", "float")


@_line("compute")
def prelu(g: _Grower) -> Any:
    x = g.value("float")
    return (
        None
        if x is None
        else (f"torch.nn.functional.prelu({x.name}, torch.ones(1, dtype={x.data.dtype}) / 4)", [x])
    )


@_line("integer", 2)
def sign(g: _Grower) -> Any:
    return _call(g, f"{{x}}.{g.pick(['neg()', 'abs()', 'sign()', 'sgn()'])}", "float", "int")


@_line("round")
def rounded(g: _Grower) -> Any:
    return _call(g, f"{{x}}.{g.pick(['floor()', 'ceil()', 'round()', 'trunc()'])}", "float")


@_line("clamp", 4)
def clamp(g: _Grower) -> Any:
    x = g.value("float", "int")
    if x is None:
        return None
    low, high = sorted((g.integer(-3, 2), g.integer(-1, 9)))
    if g.rng.random() < 0.3:
        other = g.value("float", "int")
        return None if other is None else (f"{x.name}.clamp(max={other.name})", [x, other])
    return g.pick(
        [f"{x.name}.clamp({low}, {high})", f"{x.name}.clamp(min={low})", f"{x.name}.clamp(max={high})"]
    ), [x]


@_line("integer", 6)
def arithmetic(g: _Grower) -> Any:
    x, y = g.value(), g.value()
    if x is None or y is None:
        return None
    return f"{x.name} {g.pick(['+', '-', '*'])} {y.name}", [x, y]


@_line("integer", 3)
def with_a_number(g: _Grower) -> Any:
    number = g.pick(["-1", "2", "True", "0.5", "300", "-129"])
    return _call(g, f"{{x}} {g.pick(['+', '-', '*'])} {number}")


@_line("compute", 2)
def quotient(g: _Grower) -> Any:
    x, y = g.value("float", "int"), g.value("float", "int")
    if x is None or y is None:
        return None
    return f"{x.name} / ({y.name}.abs().clamp(max=100) + 1)", [x, y]


@_line("round", 2)
def whole_quotient(g: _Grower) -> Any:
    x, y = g.value("float", "int"), g.value("float", "int")
    if x is None or y is None:
        return None
    divisor = f"torch.where({y.name} == 0, 3, {y.name})"
    name = g.pick(["floor_divide", "remainder", "fmod"])
    return f"torch.{name}({x.name}, {divisor})", [x, y]


@_line("integer", 3)
def integer_power(g: _Grower) -> Any:
    """An integer power, also with large exponents. Negative exponents are for float bases only."""
    x = g.value("int")
    if x is None:
        return None
    exponents = [0, 1, 2, 3, 7, 31, 62, 63, 64, 65, 100, 255, 256, 1000]
    if g.rng.random() < 0.5:
        return f"{x.name} ** {g.pick(exponents)}", [x]
    some = [g.pick(exponents) for _ in range(x.data.shape[-1])] if x.data.dim() else g.pick(exponents)
    return f"torch.pow({x.name}.to(torch.int64), torch.tensor({some}, dtype=torch.int64))", [x]


@_line("compute")
def power(g: _Grower) -> Any:
    return _call(g, f"({{x}}.abs() + 0.5) ** {g.pick([-2, 0, 0.5, 1, 2, 3, 2.5])}", "float")


@_line("integer", 2)
def bits(g: _Grower) -> Any:
    x, y = g.value("int", "bool"), g.value("int", "bool")
    if x is None or y is None:
        return None
    texts = [f"{x.name} {g.pick(['&', '|', '^'])} {y.name}", f"~{x.name}"]
    if _kind(x.data.dtype) == "int":  # eager mode shifts booleans, but export refuses to
        texts.append(f"{x.name} {g.pick(['<<', '>>'])} {g.integer(0, 7)}")
    return g.pick(texts), [x, y]


@_line("compare", 3)
def comparison(g: _Grower) -> Any:
    x, y = g.value(), g.value()
    if x is None or y is None:
        return None
    return f"{x.name} {g.pick(['<', '<=', '>', '>=', '==', '!='])} {g.pick([y.name, '1', '-1', '0.5'])}", [
        x,
        y,
    ]


@_line("choose", 3)
def where(g: _Grower) -> Any:
    c, x, y = g.value("bool"), g.value(), g.value()
    if c is None or x is None or y is None:
        return None
    texts = [
        f"torch.where({c.name}, {x.name}, {y.name})",
        f"{x.name}.masked_fill({c.name}, 1)",
        f"torch.maximum({x.name}, {y.name})",
    ]
    return g.pick(texts), [c, x, y]


@_line("cast", 4)
def cast(g: _Grower) -> Any:
    """A cast. Floats are cast only to types that hold their values, because eager mode gives different
    results for others.
    """
    x = g.value()
    if x is None:
        return None
    to = g.pick(TYPES)
    if _kind(x.data.dtype) == "float" and _kind(to) == "int":
        info = torch.iinfo(to)
        if not bool(((x.data >= info.min) & (x.data <= min(info.max, 1 << 30))).all()):
            return None
    return f"{x.name}.to({to})", [x]


@_line("move", 8)
def movement(g: _Grower) -> Any:
    x = g.value()
    if x is None:
        return None
    rank = x.data.dim()
    dim = g.integer(-rank, rank - 1) if rank else g.pick([0, -1])
    first = g.integer(-1, 0)
    texts = [
        f"flip([{dim}])",
        f"unsqueeze({first})",
        "squeeze()",
        "reshape(-1)",
        f"transpose({dim}, 0)",
        "roll(1)",
        "contiguous()",
        "flatten()",
        f"movedim({dim}, 0)",
        "T" if rank <= 2 else "mT",
        f"narrow({dim}, 0, 1)",
        "tril()",
        "diagonal()",
        "clone()",
        f"unfold({dim}, 1, 1)",
        "expand(2, *{x}.shape)",
        "repeat(2, *([1] * {x}.dim()))",
    ]
    whole = [
        "{x}[..., :1]",
        "{x}[None]",
        "torch.atleast_2d({x})",
        "torch.full_like({x}, 1)",
        "torch.zeros_like({x})",
    ]
    texts = ["{x}." + text for text in texts] + [*whole, "torch.nn.functional.pad({x}, [1, 0])"]
    if rank == 0:
        texts += ["{x}.expand(1, 1)", "{x}.flip([])", "{x}.view(1)", "{x}.expand(0)"] * 3
    return g.pick(texts).format(x=x.name), [x]


@_line("move", 3)
def joined(g: _Grower) -> Any:
    x = g.value()
    others = [v for v in g.values if x is not None and v.data.shape == x.data.shape]
    if x is None:
        return None
    y = g.pick(others)
    return f"torch.{g.pick(['stack', 'hstack', 'vstack', 'cat'])}([{x.name}, {y.name}])", [x, y]


@_line("move", 2)
def picked(g: _Grower) -> Any:
    x = g.value(rank=1)
    if x is None or not x.data.shape[0]:
        return None
    count = x.data.shape[0]
    places = [g.integer(-count, count - 1) for _ in range(g.integer(1, 3))]
    rows = [p % count for p in places]
    return g.pick(
        [f"{x.name}[{places}]", f"{x.name}.index_select(0, torch.tensor({rows}))", f"{x.name}[{places[0]}]"]
    ), [x]


@_line("choose", 4)
def reduced(g: _Grower) -> Any:
    x = g.value()
    if x is None:
        return None
    rank = x.data.dim()
    inside = g.pick(["", str(g.integer(-rank, rank - 1)) if rank else "0", "-1", "0, keepdim=True"])
    name = g.pick(["amax", "amin", "any", "all"])
    return f"{x.name}.{name}({inside})", [x]


@_line("integer", 4)
def summed(g: _Grower) -> Any:
    x = g.value()
    if x is None:
        return None
    name = g.pick(
        ["sum()", "sum(-1)", "prod()", "cumsum(-1)", "cumprod(0)", "sum(0, keepdim=True)", "cummax(0).values"]
    )
    return f"{x.name}.{name}", [x]


@_line("compute", 3)
def statistics(g: _Grower) -> Any:
    texts = [
        "{x}.mean()",
        "{x}.mean(-1)",
        "{x}.softmax(-1)",
        "{x}.log_softmax(0)",
        "{x}.logsumexp(-1)",
        "{x}.var(unbiased=False)",
        "{x}.norm()",
        "torch.nn.functional.normalize({x}, dim=-1)",
        "{x}.std(-1, unbiased=False)",
    ]
    return _call(g, g.pick(texts), "float")


@_line("compare", 2)
def position(g: _Grower) -> Any:
    """A sort or an extreme element of distinct values, because eager mode does not define the order of equal
    ones.
    """
    x = g.value("float", "int")
    if x is None or x.data.unique().numel() != x.data.numel():
        return None
    texts = [
        "argmax()",
        "argmin(-1)",
        "sort(-1).values",
        "argsort(0)",
        "topk(1).indices",
        "max(-1).indices",
        "median()",
    ]
    text = g.pick(texts)
    if text == "median()" and not x.data.numel():  # the median is NaN, which has no defined integer value
        return None
    return f"{x.name}.{text}", [x]


@_line("compute", 3)
def product(g: _Grower) -> Any:
    x, y = g.value(), g.value()
    if x is None or y is None:
        return None
    texts = [
        "torch.outer({x}.flatten(), {y}.flatten())",
        "{x} @ {y}.mT",
        "torch.einsum('i,j->ij', {x}.flatten(), {y}.flatten())",
        "torch.einsum('...i,...i->...', {x}, {y})",
        "torch.dot({x}.flatten(), {y}.flatten())",
        "torch.kron({x}, {y})",
    ]
    text = g.pick(texts)
    sums = "...i" in text or "@" in text or "dot" in text
    if (
        sums and x.data.dtype is not y.data.dtype
    ):  # eager mode accepts two types in sums of at most one term, but export refuses them
        return None
    return text.format(x=x.name, y=y.name), [x, y]


@_line("compute")
def attention(g: _Grower) -> Any:
    x = g.value("float", rank=2)
    if x is None:
        return None
    whole = f"{x.name}.reshape(-1, 1, *{x.name}.shape[-2:])"
    return f"torch.nn.functional.scaled_dot_product_attention({whole}, {whole}, {whole})", [x]


# -- Comparing -----------------------------------------------------------------------------------------------


def check(program: TorchProgram, library: Callable[..., Any]) -> str | None:
    """A description of what is wrong with a library's results, or None if they agree with eager mode's."""
    given = list(program.arguments.values())
    wanted = program.function()(*(x.clone() for x in given))
    found = library(*(x.clone() for x in given))
    found = found if isinstance(found, tuple) else (found,)
    if len(found) != len(wanted):
        return f"{len(found)} results, expected {len(wanted)}"
    for k, (a, e) in enumerate(zip(found, wanted, strict=True)):
        if a.dtype != e.dtype or a.shape != e.shape:
            return f"output {k}: {a.dtype} {tuple(a.shape)}, expected {e.dtype} {tuple(e.shape)}"
        if not e.dtype.is_floating_point:
            equal = bool((a == e).all())
        else:
            scale = max([1e-3, *(x.abs().max().item() for x in (e.double(),) if x.numel())])
            rough = max(TOLERANCE[x.dtype] for x in (*given, e) if x.dtype in TOLERANCE)
            equal = not e.numel() or bool(((a.double() - e.double()).abs() <= rough * scale).all())
        if not equal:
            return f"output {k} ({e.dtype}): {a.tolist()}, expected {e.tolist()}"[:1500]
    return None


def check_compiled(seed: int, steps: int = 8) -> str | None:
    """Compile the program of a seed for this machine and compare it with eager mode. Returns the error with
    the program, or None.
    """
    import tilewright as tw

    program = generate(seed, steps)
    try:
        with tw.compile(
            Module(program).eval(), tuple(program.arguments.values()), cache=False, threads=2
        ) as library:
            reason = check(program, library)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:1500]}"
    return reason and f"seed {seed}: {reason}\n{program}"


class Module(torch.nn.Module):
    """A program as a module whose `forward` has the program's argument names."""

    def __init__(self, program: TorchProgram) -> None:
        super().__init__()
        self.run = program.function()
        names = ", ".join(program.arguments)
        scope: dict[str, Any] = {}
        exec(f"def forward(self, {names}):\n    return self.run({names})\n", scope)
        self.forward = scope["forward"].__get__(self)
