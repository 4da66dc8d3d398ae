"""The user's description of dynamic dimensions: ``{"input_ids": {0: "batch<=8", 1: "16<=seq<=512"}}``, or
``4*n`` and integers.

A text is ``[low <=] expression [<= high]`` of named symbols. A name stands for one symbol everywhere: bounds
given in several places are intersected. A symbol without bounds lies in ``[1, infinity)``: memory for it is
planned at run time, and if the model needs a limit (for a table of positions, for example) the error says so.

Symbols have the names of the dimensions, in Unicode too. A word with another meaning in formulas (``class``,
``min``, ``v0``) gets a ``_`` at its end.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
import sys
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CompileError, DimsWarning
from ..ir.shape_solver import ShapeSolver
from ..ir.substitution import evaluate, linear_in
from ..ir.symbolic import RESERVED, Dim, Expr, free_symbols, symbol
from ..ir.symbolic_text import parse

DimsArgument = Mapping[str, Any]
DEFAULT_LOWER = 1
DEFAULT_UPPER: int | None = None


@dataclass(frozen=True)
class DimText:
    """One parsed dimension: `low <= expression <= high`; `names` are the symbols in it."""

    expression: str
    low: int | None
    high: int | None
    names: tuple[str, ...]


def symbol_name(name: str) -> str:
    """Return the name of the symbol, an identifier, for a dimension of this name: the same, or with ``_``
    appended to a word with another meaning.

    Such words are Python's keywords (formulas are parsed as Python), those of the IR's text, and ``i0``,
    ``r0``, ``v0``, ..., the indices of computations. Different names have different symbols.
    """
    word = name.rstrip("_")
    taken = keyword.iskeyword(word) or word in RESERVED or re.fullmatch(r"[irv]\d+", word)
    return f"{name}_" if taken else name


def identifier(text: str, otherwise: str) -> str:
    """Return an identifier similar to any text; `otherwise` if no letter or digit remains."""
    plain = unicodedata.normalize("NFKC", text)
    word = "".join(c if f"a{c}".isidentifier() else "_" for c in plain)
    word = word if word == plain else word.strip("_")
    return word if word.isidentifier() else f"d_{word}" if word else otherwise


def parse_dim(text: str | int, where: str) -> DimText:
    """Parse ``seq``, ``seq<=512``, ``16<=seq<=512``, ``4*n``, ``8`` or 8.

    Raises:
        CompileError: The text is none of these; `where` names its place in the message.
    """
    if isinstance(text, bool) or not isinstance(text, (int, str)):
        raise CompileError(f"{where}: a dimension is a number or a text such as 'seq<=512', not {text!r}")
    source = str(text)
    parts = [p.strip() for p in re.split(r"<=", source)]
    numbers = [int(p) if re.fullmatch(r"\d+", p) else None for p in parts]
    low = high = None
    if len(parts) == 1:
        expression = parts[0]
    elif len(parts) == 2 and numbers[0] is None and numbers[1] is not None:
        expression, high = parts[0], numbers[1]
    elif len(parts) == 2 and numbers[0] is not None and numbers[1] is None:
        low, expression = numbers[0], parts[1]
    elif len(parts) == 3 and numbers[0] is not None and numbers[1] is None and numbers[2] is not None:
        low, expression, high = numbers[0], parts[1], numbers[2]
    else:
        raise CompileError(
            f"{where}: cannot read {source!r}; write 'seq', 'seq<=512', '16<=seq<=512', '4*n' or a number"
        )
    if unicodedata.normalize("NFKC", expression).isidentifier():
        expression = symbol_name(unicodedata.normalize("NFKC", expression))
    try:
        tree = ast.parse(expression, mode="eval")
        renamed = {
            n.id: symbol_name(n.id)
            for n in ast.walk(tree)
            if isinstance(n, ast.Name) and n.id not in RESERVED
        }
        if any(new != old for old, new in renamed.items()):
            expression = re.sub(r"\w+", lambda word: renamed.get(word[0], word[0]), expression)
            tree = ast.parse(expression, mode="eval")
        names = tuple(
            dict.fromkeys(
                n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id not in ("min", "max")
            )
        )
        parse(expression, {n: symbol(n) for n in names})
    except (SyntaxError, ValueError) as error:
        reason = "" if isinstance(error, SyntaxError) else f" ({error})"
        raise CompileError(
            f"{where}: cannot read {source!r} as a dimension{reason}; write a name of letters, digits and "
            "_, a formula such as '4*n', or a number"
        ) from None
    if low is not None and high is not None and low > high:
        raise CompileError(f"{where}: no size satisfies {source!r} (lower bound {low} is above {high})")
    return DimText(expression, low, high, names)


class DimTable:
    """Collects all given dimensions, then creates the symbols, each with the bounds of all its places."""

    def __init__(self) -> None:
        self._bounds: dict[str, tuple[int | None, int | None]] = {}
        self._entries: list[tuple[DimText, str]] = []
        self._symbols: dict[str, Expr] = {}

    def add(self, dim: DimText, where: str) -> None:
        """Add a dimension's names and bounds.

        Raises:
            CompileError: Bounds are given for an expression that is not linear in one symbol, or they leave
                no value.
        """
        self._entries.append((dim, where))
        for name in dim.names:
            self._bounds.setdefault(name, (None, None))
        if dim.low is None and dim.high is None:
            return
        if len(dim.names) != 1:
            raise CompileError(
                f"{where}: bounds need an expression of one symbol, not '{dim.expression}'; a name of "
                "several words is written with '_'"
            )
        name = dim.names[0]
        plain = symbol(name)
        parts = linear_in(parse(dim.expression, {name: plain}), plain)
        coefficient, offset = parts if parts is not None else (0, 0)
        if not isinstance(coefficient, int) or not isinstance(offset, int) or coefficient <= 0:
            raise CompileError(
                f"{where}: bounds need an expression such as '4*{name}+1', not '{dim.expression}'"
            )
        low, high = self._bounds[name]
        if dim.low is not None:
            limit = max(0, math.ceil((dim.low - offset) / coefficient))
            low = limit if low is None else max(low, limit)
        if dim.high is not None:
            limit = (dim.high - offset) // coefficient
            high = limit if high is None else min(high, limit)
        if high is not None and (DEFAULT_LOWER if low is None else low) > high:
            raise CompileError(
                f"{where}: no size satisfies the bounds given for '{name}' (lower {low or DEFAULT_LOWER}, "
                f"upper {high})"
            )
        self._bounds[name] = (low, high)

    def check(self) -> None:
        """Check that the sizes of the dimensions determine every symbol.

        Raises:
            CompileError: One is undetermined; the message names a place of it.
        """
        left = undetermined([dim for dim, _ in self._entries])
        for dim, where in self._entries:
            if unknown := [name for name in dim.names if name in left]:
                names = " and ".join(f"'{name}'" for name in unknown)
                raise CompileError(
                    f"{where} is '{dim.expression}', which does not determine {names}: name another "
                    "dimension so, alone or times a "
                    "number; a name of several words is written with '_'"
                )

    def resolve(self, dim: DimText) -> Dim:
        """Return the dimension as an expression of symbols with their bounds."""
        for name in dim.names:
            if name not in self._symbols:
                low, high = self._bounds.get(name, (None, None))
                self._symbols[name] = symbol(
                    name, DEFAULT_LOWER if low is None else low, DEFAULT_UPPER if high is None else high
                )
        return parse(dim.expression, self._symbols)

    def smallest(self, e: Dim) -> int:
        """Return the value of an expression with every symbol at its lower bound, for example inputs."""
        return int(evaluate(e, {n: s.lower for n, s in self._symbols.items()}))


def undetermined(dims: Sequence[DimText]) -> set[str]:
    """Return the names in dimensions whose values do not follow from these dimensions' sizes."""
    plain = {name: symbol(name) for dim in dims for name in dim.names}
    solver = ShapeSolver([("", [parse(dim.expression, plain) for dim in dims])], partial=True)
    return {name for name, s in plain.items() if s not in solver.symbols}


def warn_of_fewer_sizes(
    dims: DimsArgument | None,
    asked: Sequence[tuple[str, Sequence[Any]]],
    got: Sequence[tuple[str, Sequence[Dim]]],
) -> None:
    """Issue a `DimsWarning` for each dimension of which the model accepts fewer sizes than `dims` say: only
    multiples, or smaller bounds. A lower bound of 2 counts as none if `dims` give none, since torch traces
    with sizes of at least 2.

    `asked` are the example inputs' names and shapes, `got` those of the imported model.
    """
    shapes = dict(got)
    entries_of = check_dims_argument(dims, asked)
    texts = {
        (n, axis): parse_dim(t, f"dims[{n!r}][{axis}]")
        for n, entries in entries_of.items()
        for axis, t in entries.items()
    }
    table = DimTable()
    for (name, axis), text in texts.items():
        table.add(text, f"dims[{name!r}][{axis}]")
    warned: set[tuple[str, ...]] = set()
    for (name, axis), text in texts.items():
        if name not in shapes or not text.names or text.names in warned:
            continue
        wanted, accepted = _sizes(table.resolve(text)), _sizes(shapes[name][axis])
        if wanted is None or accepted is None:
            continue
        low, high, step = accepted
        fewer = [f"from {low} on"] if low > max(wanted[0], 2 * wanted[2], step) else []
        fewer += [f"up to {high}"] if high is not None and (wanted[1] is None or high < wanted[1]) else []
        if step != wanted[2]:
            fewer.append(
                f"that are multiples of {step}"
                if low % step == 0
                else f"that are {low % step} more than multiples of {step}"
            )
        if not fewer:
            continue
        warned.add(text.names)
        bounded = f"{low}<={text.expression}" if low > wanted[0] else text.expression
        say = (
            f"{step}*{text.names[0]}"
            if step != wanted[2] and low % step == 0
            else bounded + ("" if high is None else f"<={high}")
        )
        warnings.warn(
            f"dims[{name!r}][{axis}] is {text.expression!r}, but the compiled model accepts only sizes "
            f"{' and '.join(fewer)}: the traced program does not hold for other sizes. Write {say!r} if "
            "these sizes suffice; otherwise give an example input of another size, or change the code of "
            "the model that depends on this size",
            DimsWarning,
            stacklevel=_level_of_user(),
        )


def _sizes(e: Dim) -> tuple[int, int | None, int] | None:
    """Return the least and the largest value of an expression that is linear in one symbol, and the distance
    of its values; None for any other expression.
    """
    if not isinstance(e, Expr) or len(free_symbols(e)) != 1:
        return None
    (s,) = free_symbols(e)
    parts = linear_in(e, s)
    if parts is None or not isinstance(parts[0], int) or not isinstance(parts[1], int) or parts[0] <= 0:
        return None
    a, b = parts
    low = DEFAULT_LOWER if s.lower is None else s.lower
    assert isinstance(a, int) and isinstance(b, int)
    return a * low + b, None if s.upper is None else a * s.upper + b, a


def _level_of_user() -> int:
    """Return the distance in frames from the caller to the first frame outside of this package."""
    package, level, frame = str(Path(__file__).parents[1]), 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    return level


def describe_inputs(inputs: Sequence[tuple[str, Sequence[Any]]]) -> str:
    """Return ``input_ids (batch, seq), mask (batch, seq)`` for messages."""
    return ", ".join(f"{name} ({', '.join(map(str, shape))})" for name, shape in inputs)


def check_dims_argument(
    dims: DimsArgument | None, inputs: Sequence[tuple[str, Sequence[Any]]]
) -> dict[str, dict[int, Any]]:
    """Return `dims` with axes counted from the front; a sequence stands for all dimensions of an input, None
    leaves a dimension unchanged.

    Raises:
        CompileError: An input or axis is unknown; the message lists the inputs and their dimensions.
    """
    result: dict[str, dict[int, Any]] = {}
    shapes = dict(inputs)
    known = f"inputs: {describe_inputs(inputs)}"
    if dims is not None and not isinstance(dims, Mapping):
        raise CompileError(
            f"dims is a dictionary such as {{'input_ids': {{1: 'seq<=512'}}}}, not {type(dims).__name__}; "
            f"{known}"
        )
    for name, axes in (dims or {}).items():
        if name not in shapes:
            raise CompileError(f"dims names {name!r}, which is not an input of the model; {known}")
        entries = (
            axes.items()
            if isinstance(axes, Mapping)
            else enumerate(axes)
            if isinstance(axes, (list, tuple))
            else None
        )
        if entries is None:
            raise CompileError(
                f"dims[{name!r}] is a dictionary such as {{1: 'seq<=512'}}, not {axes!r}; {known}"
            )
        rank = len(shapes[name])
        for axis, text in entries:
            if not isinstance(axis, int) or not -rank <= axis < rank:
                raise CompileError(
                    f"dims[{name!r}] names dimension {axis!r}, but '{name}' has {rank} dimensions; {known}"
                )
            if text is not None:
                result.setdefault(name, {})[axis % rank] = text
    return result
