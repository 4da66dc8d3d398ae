"""torch.export's failures as readable errors: its output is suppressed, and the error names the place in the
model and a remedy.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from ...errors import CompileError
from ..user_location import users_line

if TYPE_CHECKING:
    import torch


@contextmanager
def quiet() -> Iterator[None]:
    """Return a context in which torch prints nothing in this thread: no warnings, logs (unless TORCH_LOGS
    asks for them) or prints.

    One thread at a time may be in it.
    """
    import torch.export._trace as trace

    thread = threading.get_ident()

    def wanted(record: logging.LogRecord) -> bool:
        return record.thread != thread

    handlers = [] if os.environ.get("TORCH_LOGS") else list(_handlers())
    for handler in handlers:
        handler.addFilter(wanted)
    try:
        # torch prints the graph of a failed export, up to where it failed.
        with warnings.catch_warnings(), mock.patch.object(trace, "print", lambda *_, **__: None, create=True):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(wanted)


def _handlers() -> Iterator[logging.Handler]:
    """Yield all handlers of torch's logs."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "torch":
            yield from logger.handlers


def untraceable(model: torch.nn.Module, error: BaseException) -> CompileError:
    """Return the error for a model that torch.export cannot trace: the line of the model, torch's message,
    and a remedy.
    """
    place = users_line(error, "torch|sympy")
    where = "" if place is None else f"\n  at {place}"
    steps = "".join(f"\n  - {step}" for step in _remedies(model, str(error), error, place or ""))
    advice = f"\nWhat may help:{steps}" if steps else ""
    return CompileError(
        f"torch.export cannot trace {type(model).__name__}: {_condensed(error)}{where}{advice}"
    )


def first_lines(error: BaseException | None, limit: int = 6) -> str:
    """Return the first lines of an exception's message, in one paragraph."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [
        line
        for line in lines
        if line and not line.startswith(("The error above", "For more information", "File ", "^"))
    ]
    text = " ".join(lines[:limit]) or "no message"
    return f"{type(error).__name__}: {text[:900]}"


def _condensed(error: BaseException) -> str:
    """Return torch's message without the parts for developers of torch."""
    text = str(error)
    if match := re.search(r"data-dependent expression (.*?) \(unhinted", text):
        return _data_dependent(match[1], text)
    text = re.split(
        r"consider using data-dependent|Caused by:|For extended logs|For more|The error above"
        r"|\(Triggered internally",
        text,
    )[0]
    return f"{type(error).__name__}: {' '.join(text.split())[:600].rstrip() or 'no message'}"


def _data_dependent(condition: str, text: str) -> str:
    sizes = re.search(r"Size-like symbols: ([^)]*)", text)
    if sizes and sizes[1].strip() != "none":
        return (
            f"data-dependent: whether {condition} holds is decided by the values of tensors "
            f"({sizes[1].strip()}: sizes known only at run time)"
        )
    return (
        "data-dependent: Python needs the value of a tensor (a branch, a loop or a number), which is known "
        "only at run time"
    )


def _remedies(model: torch.nn.Module, text: str, error: BaseException, place: str) -> Iterator[str]:
    """Yield known remedies for a failure."""
    compiled = (
        "torch.compile(model, backend='tilewright'), which takes the model as it is and leaves such parts "
        "to PyTorch"
    )
    if "data-dependent" in text:
        sizes = re.search(r"Size-like symbols: ([^)]*)", text)
        if sizes and sizes[1].strip() != "none":
            yield (
                "state before the line what always holds for such a size, for example torch._check(n > "
                "0) or torch._check(n <= x.shape[0])"
            )
        if ": assert " in place:
            yield (
                "leave the assertion out, or write torch._assert_async(condition, 'message'), which the "
                "compiled model checks in each run"
            )
        yield (
            "choose between results by torch.where(condition, a, b), or between computations by "
            "torch.cond(condition, f, g, (x,))"
        )
        yield "replace .item(), int(tensor), tolist() and `if tensor:` by operations on tensors"
        yield compiled
    elif "is_causal" in text and "SymBool" in text:
        yield (
            "pass is_causal=True or is_causal=False, or a mask (attn_mask): a dynamic size cannot decide it "
            "(`q.shape[2] > 1` is True for examples longer than 1)"
        )
    elif re.search(r"must be \w+, not Sym(Bool|Int|Float)", text):
        yield (
            "the argument must be a number that is the same in every run: leave the dimension that it comes "
            "from out of dims"
        )
    elif "no attribute" not in text and re.search(
        r"\.numpy\(\)|__array__|FakeTensor|tensor subclasses|can't convert .* to numpy", text
    ):
        yield "compute with torch's operators alone: other libraries get no values while torch.export traces"
        yield (
            "make the step an operator of your own (torch.library.custom_op) and give it an importer "
            "(docs/extending/adding-an-operator.md)"
        )
        yield compiled
    elif "register a pytree" in text:
        yield (
            "return tensors, or lists, tuples and dictionaries of them (of a Hugging Face model: "
            "use_cache=False, return_dict=False)"
        )
    elif "Constraints violated" in text:
        fixes = " ".join(text.partition("Suggested fixes:")[2].partition("\n\n")[0].split())
        yield "give dims for which the model behaves the same" + (
            f"; torch suggests {fixes}" if fixes else ""
        )
        yield "give example inputs with other sizes: torch traces with these"
    elif isinstance(error, (RuntimeError, ValueError, IndexError, TypeError, AttributeError)):
        yield "see that the model runs on the example inputs in PyTorch"
    if model.training and any(_acts_differently(m) for m in model.modules()):
        yield "compile the model after model.eval(): it is in training mode"


def _acts_differently(module: torch.nn.Module) -> bool:
    """Return whether a module computes something else in training mode."""
    from torch.nn.modules.batchnorm import _NormBase
    from torch.nn.modules.dropout import _DropoutNd

    return isinstance(module, (_NormBase, _DropoutNd))


__all__ = ["first_lines", "quiet", "untraceable"]
