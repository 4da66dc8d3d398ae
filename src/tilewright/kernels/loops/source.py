"""The source of a loop program: its syntax tree, the names that it sees, and errors at its lines."""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from ...errors import KernelError
from ...ir.location import Location


class Problem(Exception):
    """A mistake in a part of a loop program; `Source.error` adds the place."""


class Missing:
    """Stands for a name that is not defined."""


class Source:
    """The source of a Python function."""

    def __init__(self, function: Callable[..., Any], kernel: str, caller: Source | None = None) -> None:
        """Read the source of a function.

        Args:
            function: The function.
            kernel: The name of the kernel, for errors.
            caller: The function that calls it, if it is not the kernel's own.

        Raises:
            KernelError: The source cannot be read.
        """
        self.function, self.kernel, self.caller = function, kernel, caller
        self.file = function.__code__.co_filename
        try:
            lines, start = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError) as error:
            raise KernelError(
                f"kernel {kernel!r}: the source of {function.__qualname__!r} cannot be read ({error}); "
                "define it by `def` in a file or a notebook"
            ) from None
        (node,) = tree.body
        if not isinstance(node, ast.FunctionDef):
            raise KernelError(
                f"kernel {kernel!r}, {self.file}:{start}: {function.__qualname__!r} is not defined by `def`, "
                "which a loop program needs"
            )
        self.tree, self.lines, self.start = node, lines, start
        self.head = node.lineno + start - 1
        """The line of the `def`."""
        self._indent = len(lines[0]) - len(lines[0].lstrip())
        self._nonlocals = inspect.getclosurevars(function).nonlocals

    def line(self, node: ast.AST) -> int:
        """The line of a part of the tree in the file."""
        return self.start + getattr(node, "lineno", 1) - 1

    def location(self, node: ast.AST) -> Location:
        """The place of a part of the tree, as operations keep it."""
        return Location(self.kernel, self.file, self.line(node))

    def error(self, node: ast.AST, text: str) -> KernelError:
        """An error of this `text` that shows the line of `node`."""
        message = f"kernel {self.kernel!r}, {self.file}:{self.line(node)}: {text}"
        number = getattr(node, "lineno", 1) - 1
        if 0 <= number < len(self.lines):
            line = self.lines[number].rstrip()
            begin = getattr(node, "col_offset", 0) + self._indent
            one_line = getattr(node, "end_lineno", None) == number + 1
            end = getattr(node, "end_col_offset", 0) + self._indent if one_line else len(line)
            cut = len(line) - len(line.lstrip())
            message += f"\n    {line[cut:]}\n    {' ' * max(0, begin - cut)}{'^' * max(1, end - begin)}"
        if self.caller is not None:
            message += f"\nin {self.function.__qualname__!r}, which the kernel calls"
        return KernelError(message)

    def lookup(self, name: str) -> Any:
        """The meaning of a name outside of the function: a variable around it, a global, or a builtin; else
        `Missing`.
        """
        for names in (self._nonlocals, self.function.__globals__, vars(builtins)):
            if name in names:
                return names[name]
        return Missing

    def undefined(self, name: str, known: Iterable[str]) -> Problem:
        """The problem that a name is not defined."""
        like = difflib.get_close_matches(name, [*known, *self._nonlocals, *self.function.__globals__], n=1)
        return Problem(f"the name {name!r} is not defined" + (f"; did you mean {like[0]!r}?" if like else ""))


__all__ = ["Missing", "Problem", "Source"]
