"""PyTorch's operator database through ``torch.compile(backend="tilewright")``: values, and gradients where an
operator has them, are compared with eager torch.

    python -m tests.conformance.torch_compile_suite
    python -m tests.conformance.torch_compile_suite --only pool

The first command updates ``torch_compile_suite.json``; it continues an interrupted run.

Each sample is a call under a fixed seed, with gradients of all results for fixed cotangents. ``pass`` means
that everything was compiled and is right: within torch's tolerances of eager's result, or with an error
against float64 that is at most twice eager's. ``in torch`` is right too, but the named operators ran in torch
between compiled parts. Samples that ``backend="aot_eager"`` does not run correctly either are a limit of
torch and are counted apart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from tilewright.integrations.torch_compile import FallbackWarning, tilewright

from ..processes import Limits
from .opinfo_suite import (
    NOT_EXPORTED,
    UNSET,
    circumstances,
    difference,
    first_line,
    nearer,
    operators,
    run_all,
    tolerances,
)

DATA = Path(__file__).with_suffix(".json")
IN_TORCH = "in torch"
LOOKED_AT = 64
"""How many samples of an operator are generated; the ones that run are evenly spread among them."""

Call = Callable[..., Any]


def outcomes(name: str, first: int, samples: int) -> Iterator[str]:
    """The outcomes of an operator's float32 samples from the `first` on: ``pass``, ``in torch: ...``, ``not
    exported: ...`` or a description of the error.
    """
    op = operators("float32")[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(
            itertools.islice(
                op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd), LOOKED_AT
            )
        )
        for k in range(first, min(samples, len(found))):
            sample = found[k * len(found) // min(samples, len(found))]
            arguments = (sample.input, tuple(sample.args), dict(sample.kwargs))
            # the determined part of a result: eigenvectors without their signs, for example
            determined = sample.output_process_fn_grad
            yield _outcome(op, arguments, determined, name in UNSET, tolerances(op, torch.float32))


def _outcome(
    op: Any, arguments: Any, determined: Call, unset: bool, limits: tuple[float | None, float | None]
) -> str:
    def call(x: Any, args: Any, kwargs: Any) -> Any:
        return op(x, *args, **kwargs)

    results = partial(_results, determined=determined)
    try:
        wanted = results(call, arguments)
    except Exception as error:  # torch itself does not run this sample
        return f"{NOT_EXPORTED}: {type(error).__name__} in eager mode"
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", FallbackWarning)
        try:
            found = results(torch.compile(call, backend=tilewright), arguments)
            problem = _compared(found, wanted, unset, limits)
            if problem and nearer(found, wanted, results(call, arguments, torch.float64)):
                problem = ""
        except Exception as error:  # every exception is recorded as the outcome
            problem = f"{type(error).__name__}: {first_line(error)}"
    if problem:
        torch._dynamo.reset()
        try:
            if _compared(results(torch.compile(call, backend="aot_eager"), arguments), wanted, unset, limits):
                return f"{NOT_EXPORTED}: other values with aot_eager too"
        except Exception as error:
            return f"{NOT_EXPORTED}: {type(error).__name__} with aot_eager too"
        return problem
    left = sorted({o for w in told if isinstance(w.message, FallbackWarning) for o in w.message.operators})
    return f"{IN_TORCH}: {', '.join(left)}" if left else "pass"


def _results(call: Call, arguments: Any, dtype: Any = torch.float32, *, determined: Call) -> list[Any]:
    """The tensors among the results, followed by the gradients of the arguments that require them (None for
    an argument without influence). Tensors of float32 are converted to `dtype`.
    """
    torch.manual_seed(1)
    leaves, structure = _pytree.tree_flatten(arguments)
    leaves = [_copy(x, dtype) if isinstance(x, torch.Tensor) else x for x in leaves]
    results = _pytree.tree_leaves(determined(call(*_pytree.tree_unflatten(leaves, structure))))
    results = [x for x in results if isinstance(x, torch.Tensor)]
    outputs = [x for x in results if x.requires_grad]
    inputs = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    gradients: tuple[Any, ...] = ()
    if outputs and inputs:
        generator = torch.Generator().manual_seed(2)
        cotangents = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in outputs]
        gradients = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
    return [*(x.detach() for x in results), *gradients]


def _copy(x: Any, dtype: Any) -> Any:
    copy = x.detach().clone().to(dtype if x.dtype is torch.float32 else x.dtype)
    return copy.requires_grad_(x.requires_grad)


def _compared(
    found: list[Any], wanted: list[Any], unset: bool, limits: tuple[float | None, float | None]
) -> str:
    if len(found) != len(wanted):
        return f"{len(found)} results and gradients instead of {len(wanted)}"
    for k, (got, want) in enumerate(zip(found, wanted, strict=True)):
        if (got is None) != (want is None):
            return f"wrong: gradient {k} is {got if got is None else 'there'}"
        if want is not None and (problem := difference(got, want, unset, limits)):
            return f"{problem} (result {k} of {len(wanted)})"
    return ""


def summary(found: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Counts of samples by outcome, over all operators."""
    every: Counter[str] = Counter()
    for rows in found.values():
        for outcome, count in rows.items():
            every[next((k for k in (NOT_EXPORTED, IN_TORCH, "pass") if outcome.startswith(k)), "other")] += (
                count
            )
    return {
        "operators": len(found),
        "samples": every.total() - every[NOT_EXPORTED],
        "right": every["pass"] + every[IN_TORCH],
        "right, wholly compiled": every["pass"],
        "not torch's to trace": every[NOT_EXPORTED],
    }


def write(path: Path, found: dict[str, dict[str, int]], samples: int) -> None:
    """Write counts, circumstances and the outcomes of every operator. The file is replaced at once, so that
    an interruption leaves the old one.
    """
    document = {**summary(found), **circumstances(samples), "outcomes": dict(sorted(found.items()))}
    text = re.sub(r"\{\s+([^{}]*?)\s+\}", r"{ \1 }", json.dumps(document, indent=1))
    aside = path.with_suffix(".part")
    aside.write_text(text + "\n")
    aside.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="operators whose name contains this; the results file is not written"
    )
    parser.add_argument("--samples", type=int, default=2, help="samples of each operator")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=60.0, help="processor seconds for a sample")
    parser.add_argument("--anew", action="store_true", help="also run operators that have results")
    options = parser.parse_args()
    found: dict[str, dict[str, int]] = {}
    if not options.only and not options.anew and DATA.exists():
        found = json.loads(DATA.read_text())["outcomes"]
    names = [n for n in operators("float32") if options.only in n and n not in found]
    random.Random(0).shuffle(names)  # so that an interrupted run has seen a random sample of all operators
    judge = partial(outcomes, samples=options.samples)
    for name, results in run_all(names, judge, options.processes, Limits(options.seconds)):
        found[name] = dict(Counter(results))
        for outcome, count in found[name].items():
            if outcome != "pass":
                print(f"{name}: {count} of {len(results)}: {outcome}", flush=True)
        if not options.only:
            write(DATA, found, options.samples)
    print(", ".join(f"{key} {value}" for key, value in summary(found).items()))


if __name__ == "__main__":
    main()
