"""Write docs/reference/numpy.md, the functions of `tilewright.numpy`: ``python
docs/tools/numpy_names.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tilewright.numpy as tnp

CONVENTIONS = """\
Shapes and errors, unless a row says otherwise:

- Inputs are tensors, arrays, torch tensors, numbers, symbolic sizes or nested sequences, of any shape.
  `TypeError`: the elements have no type that tensors can have.
- Elementwise functions broadcast their inputs, as NumPy does, and the result has the common shape.
  `ShapeError`: the shapes do not broadcast, or the function is not defined for the element type.
- A function with `axis` works along these dimensions; negative numbers count from the last, and None stands
  for all. A reduction leaves them out of the result's shape; with `keepdims` they stay, with size 1.
  `ShapeError`: there is no such axis.
- `dtype` is the element type of the result: a NumPy dtype or its name, `bool`, `int` (int64) or `float`
  (float32). `TypeError`: there is no such type.
- Indices are integers. `IndexError`: one that is known while tracing is out of range; in a run of a compiled
  model it is `OutOfRangeError`, a subclass."""

PAGE = Path(__file__).parents[1] / "reference" / "numpy.md"


def lines() -> Iterator[str]:
    """The lines of the page."""
    yield "# tilewright.numpy"
    yield ""
    yield (
        "Functions under NumPy's names, on `tw.Tensor`. `numpy`'s "
        "own functions on tensors lead to the same code."
    )
    yield (
        "NumPy's documentation describes the arguments; a name or an "
        "argument that is not here raises `TypeError` or"
    )
    yield "`AttributeError`. `python docs/tools/numpy_names.py` writes this page."
    yield ""
    yield from CONVENTIONS.splitlines()
    for title, names, module in (
        ("Functions", [n for n in tnp.__all__ if n not in ("Tensor", "linalg")], tnp),
        ("tilewright.numpy.linalg", sorted(vars(tnp.linalg)), tnp.linalg),
    ):
        yield ""
        yield f"## {title}"
        yield ""
        yield "| name | arguments | result |"
        yield "|---|---|---|"
        for name in sorted(names, key=str.lower):
            value = getattr(module, name)
            yield f"| `{name}` | {_arguments(value)} | {_summary(value)} |"


def _arguments(value: Any) -> str:
    """The names and defaults of a function's parameters, or the value of a constant."""
    if not callable(value):
        return f"the constant `{value!r}`"
    parts = []
    for parameter in inspect.signature(value).parameters.values():
        text = str(parameter.replace(annotation=inspect.Parameter.empty))
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD or not parameter.name.startswith("_"):
            parts.append(text)
    return f"`({', '.join(parts)})`"


def _summary(value: Any) -> str:
    """The first sentence of a function's docstring; nothing for a constant."""
    paragraph = (inspect.getdoc(value) or "").split("\n\n")[0] if callable(value) else ""
    return " ".join(paragraph.split()).replace("|", "\\|")


def main() -> None:
    PAGE.write_text("\n".join(lines()) + "\n")


if __name__ == "__main__":
    main()
