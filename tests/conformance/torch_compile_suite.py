"""PyTorch's operator database through ``torch.compile(backend="tilewright")``: values, and gradients where an operator has them, against eager torch.

    python -m tests.conformance.torch_compile_suite                 # brings torch_compile_suite.json up to date; goes on where it was stopped
    python -m tests.conformance.torch_compile_suite --only pool

Each sample is a call under a fixed seed; its gradients are those of all results against fixed cotangents. ``pass``: everything was compiled and is
right. ``in torch``: right too, with the named operators run by torch between compiled parts. What ``backend="aot_eager"`` does not do either is a limit
of torch's own and counted apart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from tilewright.torch_backend import FallbackWarning, tilewright

from .opinfo_suite import NOT_EXPORTED, UNSET, circumstances, difference, first_line, operators, run_all, tolerances

DATA = Path(__file__).with_suffix(".json")
JOURNAL = Path(tempfile.gettempdir()) / "tilewright_torch_compile_suite.jsonl"
IN_TORCH = "in torch"
LOOKED_AT = 64
"""Samples of an operator among which those that are run are evenly spread."""

Call = Callable[..., Any]


def outcomes(name: str, samples: int) -> Iterator[str]:
    """``pass``, ``in torch: ...``, ``not exported: ...`` or what is wrong, of samples of an operator in float32."""
    op = operators("float32")[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(
            itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd), LOOKED_AT)
        )
        for k in range(min(samples, len(found))):
            sample = found[k * len(found) // min(samples, len(found))]
            arguments = (sample.input, tuple(sample.args), dict(sample.kwargs))
            yield _outcome(op, arguments, name in UNSET, tolerances(op, torch.float32))


def _outcome(op: Any, arguments: Any, unset: bool, limits: tuple[float | None, float | None]) -> str:
    def call(x: Any, args: Any, kwargs: Any) -> Any:
        return op(x, *args, **kwargs)

    try:
        wanted = _results(call, arguments)
    except Exception as error:  # a sample that torch itself does not run
        return f"{NOT_EXPORTED}: {type(error).__name__} in eager mode"
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", FallbackWarning)
        try:
            found = _results(torch.compile(call, backend=tilewright), arguments)
            problem = _compared(found, wanted, unset, limits)
        except Exception as error:  # the outcome, told in the table
            problem = f"{type(error).__name__}: {first_line(error)}"
    if problem:
        torch._dynamo.reset()
        try:
            if _compared(_results(torch.compile(call, backend="aot_eager"), arguments), wanted, unset, limits):
                return f"{NOT_EXPORTED}: other values with aot_eager too"
        except Exception as error:
            return f"{NOT_EXPORTED}: {type(error).__name__} with aot_eager too"
        return problem
    left = sorted({o for w in told if isinstance(w.message, FallbackWarning) for o in w.message.operators})
    return f"{IN_TORCH}: {', '.join(left)}" if left else "pass"


def _results(call: Call, arguments: Any) -> list[Any]:
    """Tensors among the results, then gradients of the arguments that want them (None for one that has no influence)."""
    torch.manual_seed(1)
    leaves, structure = _pytree.tree_flatten(arguments)
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in leaves]
    results = _pytree.tree_leaves(call(*_pytree.tree_unflatten(leaves, structure)))
    results = [x for x in results if isinstance(x, torch.Tensor)]
    outputs = [x for x in results if x.requires_grad]
    inputs = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    gradients: tuple[Any, ...] = ()
    if outputs and inputs:
        generator = torch.Generator().manual_seed(2)
        cotangents = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in outputs]
        gradients = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
    return [*(x.detach() for x in results), *gradients]


def _compared(found: list[Any], wanted: list[Any], unset: bool, limits: tuple[float | None, float | None]) -> str:
    if len(found) != len(wanted):
        return f"{len(found)} results and gradients instead of {len(wanted)}"
    for k, (got, want) in enumerate(zip(found, wanted, strict=True)):
        if (got is None) != (want is None):
            return f"wrong: gradient {k} is {got if got is None else 'there'}"
        if want is not None and (problem := difference(got, want, unset, limits)):
            return f"{problem} (result {k} of {len(wanted)})"
    return ""


def summary(found: dict[str, list[str]]) -> dict[str, Any]:
    """Counts, and for each operator that does not wholly pass its outcomes with their numbers."""
    rows = {n: [r for r in rows if not r.startswith(NOT_EXPORTED)] for n, rows in found.items()}
    every = [r for results in rows.values() for r in results]
    whole, parts = every.count("pass"), sum(r.startswith(IN_TORCH) for r in every)
    return {
        "operators": sum(bool(results) for results in rows.values()),
        "samples": len(every),
        "right": whole + parts,
        "right, wholly compiled": whole,
        "not torch's to trace": sum(map(len, found.values())) - len(every),
        "not_passed": {n: dict(Counter(r)) for n, r in sorted(found.items()) if any(o != "pass" for o in r)},
    }


def read_journal(path: Path) -> dict[str, list[str]]:
    """What an interrupted run had found, without a line that it did not finish."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            found.update(json.loads(line) if line else {})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators whose name contains this; the data is left alone")
    parser.add_argument("--samples", type=int, default=4, help="of each operator")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=120.0, help="for one operator")
    parser.add_argument(
        "--journal", type=Path, default=JOURNAL, help="outcomes as they come; what it has is not run again"
    )
    options = parser.parse_args()
    found = {} if options.only else read_journal(options.journal)
    names = [n for n in operators("float32") if options.only in n and n not in found]
    judge = partial(outcomes, samples=options.samples)
    for name, results in run_all(names, judge, options.processes, options.seconds):
        found[name] = results
        if not options.only:
            with options.journal.open("a") as file:
                file.write("\n" + json.dumps({name: results}))
        for outcome, count in Counter(r for r in results if r != "pass").items():
            print(f"{name}: {count} of {len(results)}: {outcome}", flush=True)
    row = summary(found)
    print(", ".join(f"{key} {value}" for key, value in row.items() if isinstance(value, int)))
    if not options.only:
        DATA.write_text(json.dumps({**row, **circumstances(options.samples)}, indent=1, sort_keys=True) + "\n")
        options.journal.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
