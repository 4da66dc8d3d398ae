"""Evaluation of the statements of a loop program."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import KernelError, TilewrightError
from .arrays import Array
from .assignments import Assignments
from .carried import run_carried
from .expressions import describe, is_symbolic, plain, primitive_of
from .facts import consequences
from .source import Problem, Source
from .state import Unassigned, Variable
from .values import Node, choose, is_scalar, negation

_ADVICE = {
    "While": "loop by `range` to the greatest number of iterations, and use `if`",
    "Break": "use `if` in the rest of the loop",
    "Continue": "use `if` around the rest of the loop",
    "Assert": "indices are checked by themselves; tw.claim(...) promises a condition",
    "With": "a kernel computes numbers",
    "Try": "a kernel raises no exceptions",
    "Raise": "a kernel raises no exceptions",
    "Global": "return values by outputs",
    "Nonlocal": "return values by outputs",
    "FunctionDef": "define the function outside of the kernel",
    "Import": "import outside of the kernel",
    "ImportFrom": "import outside of the kernel",
    "Delete": "a kernel has no references",
}
MOST_UNROLLED = 1024


class Returned:
    """The value that a function returned."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Statements(Assignments):
    """Runs statements at the state's place in the program."""

    inlined: tuple[Source, ...] = ()

    def run(self, statements: Sequence[ast.stmt]) -> Returned | None:
        """Run statements in order, up to a `return`."""
        for k, statement in enumerate(statements):
            if isinstance(statement, ast.If):
                result = self._run_if(statement, statements[k + 1 :])
                if result is not None:
                    return result
                continue
            if isinstance(statement, ast.Return):
                if not self.inlined:
                    raise self.source.error(
                        statement, "a kernel returns nothing; write its results to parameters"
                    )
                return Returned(None if statement.value is None else self.value(statement.value))
            self._statement(statement)
        return None

    def _statement(self, node: ast.stmt) -> None:
        method = getattr(self, f"_{type(node).__name__.lower()}_statement", None)
        if method is None:
            name = type(node).__name__
            advice = f"; {_ADVICE[name]}" if name in _ADVICE else ""
            raise self.source.error(node, f"{name} is not possible in a kernel{advice}")
        location = self.source.location(node)
        try:
            with self.emitter.at(location):
                method(node)
        except Problem as problem:
            raise self.source.error(node, str(problem)) from None
        except KernelError:
            raise
        except TilewrightError as error:
            raise self.source.error(node, str(error)) from None

    def _pass_statement(self, node: ast.Pass) -> None:
        """Nothing."""

    def _expr_statement(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a text between statements
        if isinstance(node.value, ast.Call):
            primitive = primitive_of(self.value(node.value.func))
            if primitive is not None and primitive.kind == "claim":
                self._claim(node.value)
                return
            self.value(node.value)
            return
        raise Problem("the statement has no effect; assign its value")

    def _claim(self, node: ast.Call) -> None:
        for a in node.args:
            c = self.condition(self.scalar(a))
            if c is False:
                raise self.source.error(a, "the claim does not hold")
            if c is not True:
                (self.facts if self.conditions else self.claims).extend(consequences(c))

    # -- Conditions ------------------------------------------------------------------------------------------

    def _run_if(self, node: ast.If, rest: Sequence[ast.stmt]) -> Returned | None:
        c = self.condition_of(node.test)
        if isinstance(c, bool):
            return self.run(node.body if c else node.orelse)
        if _returns(node):
            with self.under(c):
                first, _ = self._branch([*node.body, *rest])
            with self.under(negation(c)):
                second, _ = self._branch([*node.orelse, *rest])
            if first is None or second is None:
                raise self.source.error(node, "only one branch returns a value")
            try:
                return Returned(choose(c, plain(first.value), plain(second.value)))
            except Problem as problem:
                raise self.source.error(node, str(problem)) from None
        with self.under(c):
            _, ones = self._branch(node.body)
        with self.under(negation(c)):
            _, others = self._branch(node.orelse)
        self._merge(node, c, ones, others)
        return None

    def condition_of(self, test: ast.expr) -> bool | Node:
        """The condition of an `if`."""
        x = self.scalar(test)
        try:
            return self.condition(x)
        except Problem as problem:
            raise self.source.error(test, str(problem)) from None

    def _branch(self, statements: Sequence[ast.stmt]) -> tuple[Returned | None, dict[str, Any]]:
        """Run statements; return their result and the variables, which are as before."""
        before = dict(self.variables)
        facts = len(self.facts)
        try:
            return self.run(statements), self.variables
        finally:
            self.variables = before
            del self.facts[facts:]

    def _merge(self, node: ast.If, c: Node, ones: dict[str, Any], others: dict[str, Any]) -> None:
        for name in {**ones, **others}:
            a, b = ones.get(name), others.get(name)
            if a is b:
                continue
            line = next(v.line for v in (a, b) if isinstance(v, Variable))
            value: Any = Unassigned
            if isinstance(a, Variable) and isinstance(b, Variable) and not a.parts and not b.parts:
                if Unassigned not in (a.value, b.value):
                    value = self._merged(node, name, c, a.value, b.value)
            self.variables[name] = Variable(
                value,
                tuple(self.loops),
                self.source.line(node) if value is Unassigned else line,
                len(self.conditions),
            )

    def _merged(self, node: ast.If, name: str, c: Node, a: Any, b: Any) -> Any:
        if a is b:
            return a
        if is_scalar(a) and is_scalar(b):
            try:
                return choose(c, a, b)
            except Problem as problem:
                raise self.source.error(node, f"{name!r} has two types: {problem}") from None
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple(self._merged(node, name, c, x, y) for x, y in zip(a, b, strict=True))
        raise self.source.error(node, f"{name!r} is {describe(a)} or {describe(b)}")

    # -- Loops -----------------------------------------------------------------------------------------------

    def _for_statement(self, node: ast.For) -> None:
        if node.orelse:
            raise self.source.error(node.orelse[0], "`else` of a loop is not possible in a kernel")
        found = self.loops_of(node.target, node.iter, "")
        if found is None:
            self._unroll(node)
            return
        if any(isinstance(loop.extent, int) and loop.extent <= 0 for _, loop, _ in found):
            return
        variables = {}
        for target, _, value in found:
            assert isinstance(target, ast.Name)
            variables[target.id] = value
        loops = [loop for _, loop, _ in found]
        if loops[0].kind == "range":
            carried = [
                name
                for name in _assigned(node.body)
                if isinstance(self.variables.get(name), Variable)
                and list(self.variables[name].loops) == self.loops[: len(self.variables[name].loops)]
                and name not in variables
            ]
            if carried:
                for name in carried:
                    if self._is_outer(name):
                        self._assign_name(ast.copy_location(ast.Name(name, ast.Store()), node), 0, node)
                run_carried(self, node, loops[0], variables, carried)
                return
        outer = len(self.loops)
        with self.looping(*loops):
            self.bind(variables, node)
            self.run(node.body)
        self._finish(outer)

    def bind(self, variables: dict[str, Any], node: ast.For) -> None:
        """Give the variables of loops their values."""
        for name, value in variables.items():
            if isinstance(self.variables.get(name), Array):
                raise self.source.error(node.target, f"{name!r} is an array")
            self.variables[name] = Variable(value, tuple(self.loops), self.source.line(node))

    def _unroll(self, node: ast.For) -> None:
        values = self.value(node.iter)
        if isinstance(values, Array) or is_symbolic(values):
            raise self.source.error(
                node.iter,
                f"a loop runs over tw.axis(...), range(...) or known values, not {describe(values)}",
            )
        try:
            items = list(values)
        except TypeError as error:
            raise self.source.error(node.iter, str(error)) from None
        if len(items) > MOST_UNROLLED:
            raise self.source.error(node.iter, f"{len(items)} iterations are too many to be written out")
        for item in items:
            self._assign(node.target, item, node)
            self.run(node.body)

    # -- Functions -------------------------------------------------------------------------------------------

    def inline(
        self, function: types.FunctionType, args: list[Any], by_name: dict[str, Any], node: ast.Call
    ) -> Any:
        """The result of a function of the user's on elements: its statements are run."""
        if len(self.inlined) > 32:
            raise Problem(f"{function.__qualname__!r} calls itself without an end")
        try:
            bound = inspect.signature(function).bind(*args, **by_name)
        except TypeError as error:
            raise Problem(f"{function.__qualname__!r}: {error}") from None
        bound.apply_defaults()
        source = Source(function, self.source.kernel, self.source)
        with self._called(source):
            self.variables = {
                n: v if isinstance(v, Array) else Variable(plain(v), tuple(self.loops), source.start)
                for n, v in bound.arguments.items()
            }
            result = self.run(source.tree.body)
        return None if result is None else plain(result.value)

    @contextmanager
    def _called(self, source: Source) -> Iterator[None]:
        saved = self.source, self.inlined, self.variables
        self.source, self.inlined = source, (*self.inlined, source)
        try:
            yield
        finally:
            self.source, self.inlined, self.variables = saved


def _returns(node: ast.stmt) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def _assigned(statements: Sequence[ast.stmt]) -> list[str]:
    """The names that statements assign, in order."""
    names: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] = None
    return list(names)


__all__ = ["Returned", "Statements"]
