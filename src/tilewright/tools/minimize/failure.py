"""How a model fails: it is tried in a process of its own, so that crashes and timeouts are results, too."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InternalError, ShapeError, TilewrightError, UnsupportedOperatorError
from ...ir.core import Module

_PACKAGE = str(Path(__file__).parents[2])
Inputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Failure:
    """A failure. `kind` is refused (an error of the user's model), internal (a bug of the compiler), crash,
    slow or wrong.

    `what` distinguishes failures of one kind: the exception and where it was raised, the signal, or how
    values differ. `error` is the largest difference of a wrong output over the output's magnitude.
    """

    kind: str
    stage: str
    what: str
    message: str = field(compare=False)
    error: float = field(default=0.0, compare=False)

    def is_like(self, original: Failure) -> bool:
        """Whether a smaller model still shows `original`, and not another failure or rounding."""
        large_enough = self.error >= min(original.error, 0.05) / 5
        return self == original and large_enough

    def __str__(self) -> str:
        kinds = {
            "refused": "is refused",
            "internal": "fails in the compiler",
            "crash": "crashes",
            "slow": "exceeds the time limit",
        }
        return f"{kinds.get(self.kind, 'gives a wrong result')} ({self.stage}): {self.message}"


@dataclass(frozen=True)
class Options:
    """How a model is compiled and compared; `timeout` is the most seconds of an attempt."""

    target: str = "cpu"
    precision: str | None = None
    threads: int | None = None
    timeout: float = 60.0


def attempt(
    module: Module, inputs: Inputs | None, options: Options, search: bool = False
) -> tuple[Failure | None, Inputs | None]:
    """How a module fails with these inputs, and the inputs. Without inputs it is only compiled, or with
    `search` run on random ones.
    """
    return in_process(lambda send: _attempt(module, inputs, options, search, send), options.timeout)


def in_process(
    work: Callable[[Callable[[str, Any], None]], Failure | None], timeout: float
) -> tuple[Failure | None, Inputs | None]:
    """The result of `work` in a fork of this process, or how the fork died. `work` sends ("stage", name) and
    ("inputs", arrays) while it runs.
    """
    receiver, sender = Pipe(duplex=False)
    child = os.fork()
    if not child:
        _child(work, sender)
    sender.close()
    stage, inputs, timeout_failure, ended = "start", None, None, False
    until = time.monotonic() + timeout
    try:
        while not ended and receiver.poll(max(0.0, until - time.monotonic())):
            name, value = receiver.recv()
            stage = value if name == "stage" else stage
            inputs = value if name == "inputs" else inputs
            timeout_failure, ended = (value, True) if name == "end" else (timeout_failure, ended)
    except EOFError:  # the fork died
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Failure("crash", stage, name, f"the process ended with {name}"), inputs
    finally:
        receiver.close()
    if not ended:
        os.kill(child, signal.SIGKILL)
        timeout_failure = Failure("slow", stage, "timeout", f"not finished after {timeout:g} s")
    os.waitpid(child, 0)
    return timeout_failure, inputs


def _child(work: Callable[[Callable[[str, Any], None]], Failure | None], sender: Connection) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        sender.send(("end", work(lambda name, value: sender.send((name, value)))))
    except BaseException:  # an exception that cannot be sent counts as a crash
        os._exit(1)
    os._exit(0)


def _attempt(
    module: Module, inputs: Inputs | None, options: Options, search: bool, send: Callable[[str, Any], None]
) -> Failure | None:
    from ...driver.compile import compile
    from ...driver.random_inputs import random_inputs, sample_sizes

    send("stage", "compile")
    try:
        library = compile(
            module, target=options.target, precision=options.precision, threads=options.threads, cache=False
        )
    except Exception as error:
        return raised(error, "compile")
    draws = [inputs] if inputs is not None else []
    if search:
        try:
            draws = [
                random_inputs(library.metadata, s, k) for k, s in enumerate(sample_sizes(library.metadata))
            ]
        except Exception as error:  # for example strings: then inputs have to be given
            return raised(error, "random inputs")
    for draw in draws:
        send("inputs", draw)
        send("stage", "run")
        try:
            actual = library(*draw.values())
        except Exception as error:
            if isinstance(error, TilewrightError) and _refuses(module, draw):
                continue
            return raised(error, "random inputs" if search and isinstance(error, ShapeError) else "run")
        send("stage", "compare")
        try:
            failure = _difference(
                module, draw, actual if isinstance(actual, tuple) else (actual,), options.precision
            )
        except Exception as error:
            return raised(error, "compare")
        if failure is not None:
            return failure
    return None


def _refuses(module: Module, inputs: Inputs) -> bool:
    """Whether the interpreter refuses the inputs, too."""
    from ...ir.passes import run_function

    try:
        run_function(module, "main", inputs)
    except Exception:
        return True
    return False


def raised(error: Exception, stage: str) -> Failure:
    """The failure that an exception stands for."""
    cause = (
        error.__cause__
        if isinstance(error, InternalError) and isinstance(error.__cause__, Exception)
        else error
    )
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if f.filename.startswith(_PACKAGE)]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
    if isinstance(cause, UnsupportedOperatorError):
        where = f"{where}: {cause.operators[0].operator}"
    refused = isinstance(error, TilewrightError) and not isinstance(error, InternalError)
    notes = "".join(f" ({note})" for note in getattr(cause, "__notes__", ()))
    message = f"{type(cause).__name__}: {cause}{notes}, in {where}"
    return Failure("refused" if refused else "internal", stage, f"{type(cause).__name__} in {where}", message)


def _difference(
    module: Module, inputs: Inputs, actual: tuple[Any, ...], precision: str | None
) -> Failure | None:
    """How the outputs differ from the interpreter's."""
    from ...ir.passes import run_function
    from ..verify import ATOL, ROUNDED, RTOL, compare

    with np.errstate(all="ignore"):
        expected = run_function(module, "main", inputs)
    names = module.symbol("main").attributes["result_names"]
    rough = ROUNDED.get(precision or "")
    for name, a, e in zip(names, actual, expected, strict=True):
        if e.dtype.kind in "OSU":
            if not np.array_equal(np.asarray(a), e):
                return Failure(
                    "wrong", "run", "strings", f"output '{name}' differs from the interpreter's", 1.0
                )
            continue
        largest, relative, passed, note = compare(np.asarray(a), e, rough or RTOL, rough or ATOL)
        if not passed:
            finite = e.dtype.kind in "iub" or bool(np.isfinite(e.astype(np.float64)).all())
            what = f"{note.partition(' ')[0] or 'values'}{'' if finite else ', not all of them finite'}"
            message = f"output '{name}' differs from the interpreter's by up to {largest:.3g}"
            message += f": {note}" if note else ""
            return Failure("wrong", "run", what, message, relative)
    return None


__all__ = ["Failure", "Inputs", "Options", "attempt", "in_process", "raised"]
