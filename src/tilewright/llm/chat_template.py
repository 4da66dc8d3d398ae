"""Chat templates: Jinja with the extensions that templates of Hugging Face models use.

A template comes with a model and is untrusted. It has no access to Python, and its time, memory and depth
of calls are bounded: loops and macros check the clock, operators check the size of their result, calls
count how deep they nest.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import cache, lru_cache, wraps
from typing import TYPE_CHECKING, Any

from ..errors import RequestError

if TYPE_CHECKING:
    import jinja2.parser
    from jinja2 import nodes, runtime

SECONDS = 5.0
"""Time limit of a template in seconds."""
CHARACTERS = 1 << 26
"""Largest number of characters of the result, and of every intermediate text or list."""

DEPTH = 64
"""Largest number of calls inside one another: of macros, and of recursive loops.

A call takes about seven of Python's frames. Python's own limit is no bound to rely on: a destructor that runs
at that limit fails too, and its exception reaches nobody.
"""

_end: ContextVar[float] = ContextVar("end")
_depth: ContextVar[int] = ContextVar("depth", default=0)


def render(source: str, values: dict[str, Any]) -> str:
    """The text of a template rendered with `values`.

    Raises:
        RequestError: the source is not valid Jinja, rejects the values, or exceeds a limit.
    """
    import jinja2

    token = _end.set(time.monotonic() + SECONDS)
    try:
        return "".join(_bounded(compiled(source).generate(**values), CHARACTERS))
    except jinja2.TemplateError as error:
        raise RequestError(f"the chat template rejects the messages: {error}") from error
    except (OverflowError, MemoryError, RecursionError, _TooMuch) as error:
        what = str(error) or type(error).__name__
        raise RequestError(f"the chat template exceeds a limit of time or memory: {what}") from error
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
        raise RequestError(f"the chat template fails on the messages: {error}") from error
    finally:
        _end.reset(token)


@lru_cache(maxsize=16)
def compiled(source: str) -> Any:
    """A compiled template.

    Raises:
        RequestError: the source is not valid Jinja.
    """
    import jinja2

    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise RequestError(
            f"the chat template is not valid Jinja, in line {error.lineno}: {error.message}"
        ) from error
    except RecursionError as error:
        raise RequestError("the chat template is nested too deeply") from error


class _TooMuch(Exception):
    """A limit is exceeded."""


def _bounded(pieces: Iterator[str], most: int) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise _TooMuch(f"its text has more than {most} characters")
        yield piece


@cache
def _environment() -> Any:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.visitor import NodeTransformer

    class Bounds(NodeTransformer):
        """Inserts clock checks where a template may iterate, and replaces text concatenation by a checked
        operator.
        """

        def __init__(self, environment: jinja2.Environment) -> None:
            self._environment = environment

        def visit_For(self, node: nodes.For) -> nodes.Node:
            return self._watched(node)

        def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
            return self._watched(node)

        def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
            self.generic_visit(node)
            return nodes.Call(
                nodes.EnvironmentAttribute("joined"), node.nodes, [], None, None, lineno=node.lineno
            ).set_environment(self._environment)

        def _watched(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
            self.generic_visit(node)
            call = nodes.Call(nodes.EnvironmentAttribute("look"), [], [], None, None, lineno=node.lineno)
            node.body.insert(0, nodes.ExprStmt(call, lineno=node.lineno).set_environment(self._environment))
            return node

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "*", "**", "%"])

        def _generate(self, source: nodes.Template, *arguments: Any, **options: Any) -> str:
            return super()._generate(Bounds(self).visit(source), *arguments, **options)

        def look(self) -> None:
            if time.monotonic() > _end.get():
                raise _TooMuch(f"{SECONDS:g} s")

        def joined(self, *parts: object) -> str:
            texts = [str(part) for part in parts]
            _size(sum(map(len, texts)))
            return "".join(texts)

        def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
            sized = [x for x in (left, right) if isinstance(x, str | bytes | list | tuple)]
            if operator == "+" and sized:
                _size(sum(map(len, sized)))
            elif operator == "*" and sized:
                times = right if sized[0] is left else left
                _size(len(sized[0]) * times if isinstance(times, int) else 0)
            elif operator == "**" and isinstance(left, int) and isinstance(right, int):
                _size(left.bit_length() * max(right, 0))
            elif operator == "%" and isinstance(left, str):
                _formats(left)
            return super().call_binop(context, operator, left, right)

        def call(self, context: runtime.Context, function: Any, *arguments: Any, **options: Any) -> Any:
            self.look()
            method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format.
            if isinstance(text := getattr(method, "__self__", None), str):
                name = method.__name__
                if name == "format":
                    _formats(text)
                elif name == "replace" and len(arguments) > 1:
                    _grows(text, arguments[1])
                elif name == "join" and arguments:
                    _grows(arguments[0], text)
                elif name in ("center", "expandtabs", "ljust", "rjust", "zfill"):
                    _size(max((x for x in (*arguments, *options.values()) if isinstance(x, int)), default=0))
            if (depth := _depth.get()) == DEPTH:
                raise _TooMuch(f"more than {DEPTH} nested calls")
            token = _depth.set(depth + 1)
            try:
                return super().call(context, function, *arguments, **options)
            finally:
                _depth.reset(token)

    class Generation(Extension):
        """``{% generation %} ... {% endgeneration %}`` marks the model's output for training; its body is
        rendered unchanged.
        """

        tags = {"generation"}

        def parse(self, parser: jinja2.parser.Parser) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: object, ensure_ascii: bool = False, indent: int | str | None = None, **options: Any
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, **options
        )  # Jinja's own filter escapes HTML.

    sandbox = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    sandbox.filters["tojson"] = tojson
    for name, check in _FILTERS.items():
        sandbox.filters[name] = _checked(sandbox.filters[name], check)
    sandbox.globals["raise_exception"] = raise_exception
    sandbox.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return sandbox


def _size(size: int) -> None:
    if size > CHARACTERS:
        raise _TooMuch(f"a text or list of {size} elements")


def _grows(whole: object, part: object) -> None:
    """Check the size of a text or list in which `part` may occur once per element."""
    if isinstance(whole, str | list | tuple | range) and isinstance(part, str):
        _size(len(whole) * len(part) // 4)


def _formats(text: str) -> None:
    if _WIDE.search(text):
        raise _TooMuch("a format with too large a field width")


def _widens(text: object, width: object = 0, *others: object, **more: object) -> None:
    _size(max((x * len(str(text)) for x in (width, *more.values()) if isinstance(x, int)), default=0))


_WIDE = re.compile(r"\d{6}|\*")  # six digits, or a width that is an argument
_FILTERS: dict[str, Callable[..., None]] = {
    "center": lambda text, width=0, **more: _size(max(int(width), *map(int, more.values()), 0)),
    "format": lambda text, *values, **more: _formats(str(text)),
    "indent": _widens,
    "join": lambda items, d="", *others, **more: _grows(items, d),
    "replace": lambda text, old, new, *others, **more: _grows(str(text), new),
}
"""Checks of the arguments of filters that can produce long texts."""


def _checked(filter: Callable[..., Any], check: Callable[..., None]) -> Any:
    """A filter that checks its arguments first.

    Some filters take the environment before their own arguments; Jinja marks them.
    """
    takes_environment = hasattr(filter, "jinja_pass_arg")

    @wraps(filter)
    def checked(*arguments: Any, **options: Any) -> Any:
        check(*arguments[1 if takes_environment else 0 :], **options)
        return filter(*arguments, **options)

    return checked
