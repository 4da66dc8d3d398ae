"""PyTorch's operator database (``op_db`` of OpInfo): each operator's samples exported, compiled, compared with eager torch.

    python -m tests.conformance.opinfo_suite                        # float32, compiled, run natively; brings opinfo_suite.json up to date
    python -m tests.conformance.opinfo_suite --dtype int64 --interpret --only scatter

A sample becomes a module whose tensors are inputs and whose other arguments are constants. One that ``torch.export`` refuses is counted apart.
Results are compared with torch's tolerances for the element type, widened where the operator's OpInfo does so. Each operator runs in a process of
its own: one that crashes or takes too long is told as such.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

import tilewright as tw
from tilewright.errors import CompileError, UnsupportedOperatorError
from tilewright.frontends.torch import import_torch
from tilewright.frontends.torch.tensors import array_of
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify

DATA = Path(__file__).with_suffix(".json")
DTYPES = ("float32", "int64", "bool", "bfloat16")
NOT_EXPORTED = "not exported"

UNSET = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators whose result is memory as it was found: only its shape and element type are compared."""


class Sample(torch.nn.Module):
    """A call of an operator: the tensors among its arguments are inputs, the rest is fixed."""

    def __init__(self, function: Any, arguments: Any) -> None:
        super().__init__()
        self.function = function
        self.leaves, self.structure = _pytree.tree_flatten(arguments)
        self.tensors = tuple(x.detach() for x in self.leaves if isinstance(x, torch.Tensor))

    def forward(self, *tensors: Any) -> Any:
        given = iter(tensors)
        leaves = [next(given) if isinstance(x, torch.Tensor) else x for x in self.leaves]
        x, args, kwargs = _pytree.tree_unflatten(leaves, self.structure)
        return self.function(x, *args, **kwargs)


@cache
def operators(dtype: str) -> dict[str, Any]:
    """The OpInfo of each operator variant that has samples of an element type on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {op.full_name: op for op in op_db if op.supports_dtype(getattr(torch, dtype), "cpu")}


def tolerances(op: Any, dtype: Any) -> tuple[float | None, float | None]:
    """Relative and absolute tolerance that an OpInfo asks for; None for torch's default."""
    rtol, atol = [], []
    for decorator in op.decorators:
        if getattr(decorator, "device_type", None) not in (None, "cpu"):
            continue
        for d in getattr(decorator, "decorators", [decorator]):
            found = getattr(d, "d", {}).get(dtype)
            if found is not None:
                rtol.append(getattr(found, "rtol", 0.0))
                atol.append(getattr(found, "atol", found))
    if not atol:
        return None, None
    default = torch.testing._comparison.default_tolerances(dtype)
    return max(default[0], *rtol), max(default[1], *atol)


def outcomes(name: str, dtype: str, samples: int, native: bool) -> Iterator[str]:
    """``pass``, ``not exported: ...``, ``refused: ...`` with the reason, or what is wrong, of an operator's first samples."""
    op, element = operators(dtype)[name], getattr(torch, dtype)
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for sample in itertools.islice(op.sample_inputs("cpu", element), samples):
            module = Sample(op, (sample.input, tuple(sample.args), dict(sample.kwargs))).eval()
            yield _outcome(module, name in UNSET, tolerances(op, element), native)


def _outcome(module: Sample, unset: bool, limits: tuple[float | None, float | None], native: bool) -> str:
    try:
        wanted = [x for x in _pytree.tree_leaves(module(*_copies(module))) if x is not None]
        program = torch.export.export(module, _copies(module), strict=False)
    except Exception as error:  # torch's own limits are no concern of this suite
        return f"{NOT_EXPORTED}: {type(error).__name__}"
    try:
        found = _compiled(program, module) if native else _interpreted(program, module)
    except UnsupportedOperatorError as error:
        return f"refused: {'; '.join(f'{o.operator}: {o.hint}' if o.hint else o.operator for o in error.operators)}"
    except CompileError as error:
        return f"refused: {first_line(error)}"
    except Exception as error:  # the outcome, told in the table
        return f"{type(error).__name__}: {first_line(error)}"
    if len(found) != len(wanted):
        return f"{len(found)} results instead of {len(wanted)}"
    return next(
        (d for got, want in zip(found, wanted, strict=True) if (d := difference(got, want, unset, limits))), "pass"
    )


def _copies(module: Sample) -> tuple[Any, ...]:
    """The inputs, each in memory of its own: operators may write into them."""
    return tuple(x.clone() for x in module.tensors)


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else ""


def _compiled(program: Any, module: Sample) -> list[Any]:
    with tw.compile(program, cache=False) as library:
        found = library(*_copies(module))
    return [torch.as_tensor(x) for x in (found if isinstance(found, tuple) else (found,))]


def _interpreted(program: Any, module: Sample) -> list[Any]:
    imported = import_torch(program)
    verify(imported)
    arrays = [array_of(x, f"input {k}") for k, x in enumerate(module.tensors)]
    return [_tensor(x) for x in Interpreter(imported).run("main", arrays)]


def _tensor(x: Any) -> Any:
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def difference(got: Any, want: Any, unset: bool, limits: tuple[float | None, float | None]) -> str:
    want = torch.as_tensor(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"wrong: got {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    rtol, atol = limits if want.is_floating_point() else (None, None)
    try:
        if not unset:
            torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError:
        return f"wrong: {_error(got, want)}"
    return ""


def _error(got: Any, want: Any) -> str:
    if not want.is_floating_point():
        return "other values"
    off = (got.double() - want.double()).abs()
    if not torch.equal(got.isfinite(), want.isfinite()):
        return "NaN or infinity in other places"
    off = off[off.isfinite()]
    return f"differs by up to {off.max().item() if off.numel() else 0:.2g}"


# -- Every operator in a process ------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    name: str
    process: Any
    deadline: float
    outcomes: list[str] = field(default_factory=list)


def run_all(
    names: Sequence[str], judge: Callable[[str], Iterator[str]], processes: int, seconds: float
) -> Iterator[tuple[str, list[str]]]:
    """The outcomes that `judge` gives of operators, as they end; a crash or the end of the time stands as the last outcome."""
    context = get_context("fork")
    torch.set_num_threads(1)
    list(judge("abs"))  # what is imported late is so once, here, before processes fork
    pending = list(reversed(names))
    running: dict[Any, _Run] = {}
    while pending or running:
        while pending and len(running) < processes:
            here, there = context.Pipe(duplex=False)
            name = pending.pop()
            process = context.Process(target=_send, args=(there, judge, name), daemon=True)
            process.start()
            there.close()
            running[here] = _Run(name, process, time.monotonic() + seconds)
        for here in connection.wait(list(running), timeout=1.0):
            try:
                running[here].outcomes.append(here.recv())
            except EOFError:
                run = running.pop(here)
                run.process.join()
                if run.process.exitcode:
                    run.outcomes.append(f"crash: exit code {run.process.exitcode}")
                yield run.name, run.outcomes
        for here, run in list(running.items()):
            if time.monotonic() > run.deadline:
                run.process.kill()
                del running[here]
                yield run.name, [*run.outcomes, f"more than {seconds:.0f} s"]


def _send(there: Any, judge: Callable[[str], Iterator[str]], name: str) -> None:
    try:
        for outcome in judge(name):
            there.send(outcome)
    except Exception as error:  # of the samples' makers
        there.send(f"{NOT_EXPORTED}: no samples, {type(error).__name__}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators whose name contains this; the data is left alone")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--samples", type=int, default=8, help="of each operator, the first so many")
    parser.add_argument("--interpret", action="store_true", help="by the interpreter, not compiled")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=120.0, help="for one operator")
    parser.add_argument("--part", default="0/1", help="a part of all operators: 1/2 is the second half")
    parser.add_argument("--results", type=Path, help="where outcomes are written; without --only and --part the data")
    options = parser.parse_args()
    number, parts = map(int, options.part.split("/"))
    names = [n for n in operators(options.dtype) if options.only in n][number::parts]
    found: dict[str, list[str]] = {}
    judge = partial(outcomes, dtype=options.dtype, samples=options.samples, native=not options.interpret)
    for name, results in run_all(names, judge, options.processes, options.seconds):
        found[name] = results
        for outcome, count in Counter(r for r in results if r != "pass").items():
            print(f"{name}: {count} of {len(results)}: {outcome}", flush=True)
    row = summary(found)
    print(", ".join(f"{key} {row[key]}" for key in ("operators", "samples", NOT_EXPORTED, "passed", "whole")))
    path = options.results or (DATA if not options.only and parts == 1 else None)
    if path is not None:
        document = json.loads(path.read_text()) if path.exists() else {}
        by = "interpreted" if options.interpret else "compiled"
        document[options.dtype] = {**row, **circumstances(options.samples), "by": by}
        path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def summary(found: dict[str, list[str]]) -> dict[str, Any]:
    """Counts, and for each operator that does not wholly pass its outcomes with their numbers."""
    exported = {n: [r for r in rows if not r.startswith(NOT_EXPORTED)] for n, rows in found.items()}
    return {
        "operators": sum(bool(rows) for rows in exported.values()),
        "whole": sum(bool(rows) and all(r == "pass" for r in rows) for rows in exported.values()),
        "samples": sum(map(len, exported.values())),
        "passed": sum(r == "pass" for rows in exported.values() for r in rows),
        NOT_EXPORTED: sum(map(len, found.values())) - sum(map(len, exported.values())),
        "not_passed": {n: dict(Counter(rows)) for n, rows in found.items() if any(r != "pass" for r in rows)},
    }


def circumstances(samples: int) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {platform.system()}",
        "torch": torch.__version__.partition("+")[0],
        "samples_per_operator": samples,
    }


if __name__ == "__main__":
    main()
