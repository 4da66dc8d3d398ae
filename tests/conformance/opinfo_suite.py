"""PyTorch's operator database (``op_db`` of OpInfo): the samples of each operator are exported, compiled and
compared with eager torch.

    python -m tests.conformance.opinfo_suite
    python -m tests.conformance.opinfo_suite --dtype int64 --interpret --only scatter

The first command compiles all samples in float32, runs them natively and updates ``opinfo_suite.json``.

A sample becomes a module whose tensors are inputs and whose other arguments are constants. Samples that
``torch.export`` refuses are counted apart. Results are compared with torch's tolerances for the element type,
widened where the operator's OpInfo says so. Results that are not unique (the signs of eigenvectors) are first
processed as OpInfo asks. A result outside of the tolerances passes if its error against float64 is at most
twice that of eager torch. Each operator runs in a process of its own, so that a crash or a timeout is
recorded as the outcome of its sample. Outcomes go to a journal as they come, and the next run continues after
an interruption.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
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
from tilewright.runtime.nested import Nested

from ..processes import Limits, Work, in_processes

DATA = Path(__file__).with_suffix(".json")
DTYPES = ("float32", "int64", "bool", "bfloat16")
NOT_EXPORTED = "not exported"

UNSET = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators whose result is uninitialized memory: only its shape and element type are compared."""

RANDOM = frozenset(
    """bernoulli multinomial normal normal.number_mean rand_like randint randint_like randn randn_like
    cauchy exponential geometric log_normal normal.in_place uniform svd_lowrank pca_lowrank
    nn.functional.alpha_dropout nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d
    nn.functional.feature_alpha_dropout.with_train nn.functional.rrelu
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d""".split()
)
"""Operators that draw random numbers. Their results differ from torch's under every seed, so only types and
shapes are compared; `tests/frontends/torch/test_random.py` checks their distributions.
"""


PLACES = {"argsort": 0, "sort": 0, "kthvalue": 1, "topk": 1, "mode": 0, "median": 0, "nanmedian": 0}
"""Operators that return indices along a dimension, and the position of that dimension among the arguments
after the input. Among equal elements any index is right, unless the sample asks for a stable order.
"""


class Sample(torch.nn.Module):
    """A call of an operator as a module: its tensor arguments are inputs, the others are constants."""

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
    """The OpInfo of each operator variant that has CPU samples of an element type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {op.full_name: op for op in op_db if op.supports_dtype(getattr(torch, dtype), "cpu")}


def tolerances(op: Any, dtype: Any) -> tuple[float | None, float | None]:
    """The relative and the absolute tolerance that an OpInfo asks for, or None for torch's defaults."""
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


def samples_of(name: str, dtype: str, count: int) -> list[Any]:
    """`count` samples of an operator, evenly spread over all of its samples."""
    op = operators(dtype)[name]
    torch.manual_seed(0)
    found = list(op.sample_inputs("cpu", getattr(torch, dtype)))
    return [found[k * len(found) // count] for k in range(count)] if len(found) > count else found


def outcomes(name: str, first: int, dtype: str, samples: int, native: bool) -> Iterator[str]:
    """The outcomes of an operator's samples from the `first` on: ``pass``, ``not exported: ...``, ``refused:
    ...`` with the reason, or a description of the error.
    """
    op = operators(dtype)[name]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for sample in samples_of(name, dtype, samples)[first:]:
            module = Sample(op, (sample.input, tuple(sample.args), dict(sample.kwargs))).eval()
            limits = tolerances(op, getattr(torch, dtype))
            unset = name in UNSET or name in RANDOM or sample.kwargs.get("dropout_p", 0) > 0
            unique = sample.output_process_fn_grad
            if name in PLACES and not sample.kwargs.get("stable"):
                unique = partial(elements_at, sample, PLACES[name])
            yield _outcome(module, unset, limits, native, unique)


def elements_at(sample: Any, position: int, result: Any) -> Any:
    """A result in which the indices (its last tensor) are replaced by the elements at them, so that equal
    elements may come in any order. If the result has as many indices as the input has elements, the sorted
    indices are added.
    """
    *values, places = result if isinstance(result, (tuple, list)) else (result,)
    # `median` without a dimension returns no indices
    if not sample.input.ndim or not values and places.shape != sample.input.shape:
        return result
    dim = sample.kwargs.get("dim", sample.args[position] if len(sample.args) > position else -1)
    places = places if places.ndim == sample.input.ndim else places.unsqueeze(dim)
    every = [places.sort(dim)[0]] if places.shape == sample.input.shape else []
    return (*values, sample.input.gather(dim, places), *every)


def _outcome(
    module: Sample,
    unset: bool,
    limits: tuple[float | None, float | None],
    native: bool,
    unique: Callable[[Any], Any],
) -> str:
    """The outcome of one sample. `unique` reduces results to the part that is determined."""
    try:
        torch.manual_seed(0)
        result = module(*_copies(module))
        wanted, structure = _pytree.tree_flatten(result)
        wanted = [x for x in wanted if x is not None]
        program = torch.export.export(module, _copies(module), strict=False)
    except Exception as error:  # samples that torch itself does not export are not counted
        return f"{NOT_EXPORTED}: {type(error).__name__}"
    try:
        found = _compiled(program, module) if native else _interpreted(program, module)
    except UnsupportedOperatorError as error:
        return (
            "refused: "
            f"{'; '.join(f'{o.operator}: {o.hint}' if o.hint else o.operator for o in error.operators)}"
        )
    except CompileError as error:
        return f"refused: {first_line(error)}"
    except Exception as error:  # every exception is recorded as the outcome
        return f"{type(error).__name__}: {first_line(error)}"
    if len(found) != len(wanted):
        return f"{len(found)} results instead of {len(wanted)}"
    if structure.num_leaves == len(wanted):
        found, wanted = (
            _pytree.tree_leaves(unique(_pytree.tree_unflatten(x, structure))) for x in (found, wanted)
        )
    if len(found) != len(wanted):
        return f"{len(found)} comparable results instead of {len(wanted)}"
    problem = next(
        (d for got, want in zip(found, wanted, strict=True) if (d := difference(got, want, unset, limits))),
        "pass",
    )
    if problem != "pass" and nearer(found, wanted, _exact(module, unique)):
        return "pass"
    return problem


def _exact(module: Sample, unique: Callable[[Any], Any]) -> list[Any]:
    """The results in float64, or an empty list if the operator does not run in float64."""
    try:
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)  # integers become float64, too
        return [torch.as_tensor(x) for x in _pytree.tree_leaves(unique(module(*map(_wide, module.tensors))))]
    except Exception:  # the operator takes one element type only
        return []
    finally:
        torch.set_default_dtype(torch.float32)


def _real(x: Any) -> bool:
    return bool(x.is_floating_point() or x.is_complex())


def _wide(x: Any) -> Any:
    """A copy with elements of twice the width, if they are real or complex floats."""
    return (x.to(torch.complex128) if x.is_complex() else x.double()) if _real(x) else x.clone()


def _copies(module: Sample) -> tuple[Any, ...]:
    """Copies of the inputs, because operators may write into them."""
    return tuple(x.clone() for x in module.tensors)


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else ""


def _compiled(program: Any, module: Sample) -> list[Any]:
    with tw.compile(program, cache=False) as library:
        found = library(*_copies(module))
    return [
        x if isinstance(x, torch.Tensor) else _tensor(x)
        for x in (found if isinstance(found, tuple) else (found,))
    ]


def _interpreted(program: Any, module: Sample) -> list[Any]:
    imported = import_torch(program)
    verify(imported)
    main = imported.symbol("main")
    given = [*module.tensors, *([torch.tensor(0)] if main.seed else [])]
    border = Nested(*main.nested) if main.nested else None
    parts = given if border is None else border.flatten(given, {})
    found = [_tensor(y) for y in Interpreter(imported).run("main", [array_of(x, "an input") for x in parts])]
    found = found[: len(found) - len(main.updates)]  # the new values of changed inputs follow the outputs
    return found if border is None else _pytree.tree_leaves(border.unflatten(found))


def _tensor(x: Any) -> Any:
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def difference(got: Any, want: Any, unset: bool, limits: tuple[float | None, float | None]) -> str:
    got = (
        got if isinstance(want, torch.Tensor) else got.to(torch.as_tensor(want).dtype)
    )  # a result that is a Python number
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


def nearer(found: list[Any], wanted: list[Any], exact: list[Any]) -> bool:
    """Whether every result is at most twice as far from the float64 result as eager torch's, or is right
    where eager torch's is not finite.
    """
    wanted = [None if x is None else torch.as_tensor(x) for x in wanted]
    if [x is None for x in found] != [x is None for x in exact]:
        return False
    for got, want, best in zip(found, wanted, exact, strict=True):
        if got is None:
            continue
        if got.shape != want.shape or got.dtype != want.dtype or not _real(want):
            return False
        off, eager = (_distance(_wide(x), best) for x in (got, want))
        if off.numel() and eager.max() == torch.inf:
            if difference(got, best.to(got.dtype), False, (None, None)):
                return False
        elif off.numel() and not off.max() <= 2 * eager.max():
            return False
    return True


def _distance(x: Any, exact: Any) -> Any:
    same = (x == exact) | (x.isnan() & exact.isnan())
    return torch.where(same, 0, (x - exact).abs().nan_to_num(torch.inf).double())


def _error(got: Any, want: Any) -> str:
    if not _real(want):
        return "other values"
    off = (_wide(got) - _wide(want)).abs()
    if not torch.equal(got.isfinite(), want.isfinite()):
        return "NaN or infinity in other places"
    off = off[off.isfinite()]
    return f"differs by up to {off.max().item() if off.numel() else 0:.2g}"


# -- Every operator in a process -----------------------------------------------------------------------------


def run_all(
    names: Sequence[str], judge: Work[str], processes: int, limits: Limits
) -> Iterator[tuple[str, list[str]]]:
    """The names of operators and their outcomes from `judge`, in the order in which they finish."""
    torch.set_num_threads(1)
    for warm in ("add", "addr"):  # imports that happen on first use happen here, once, before processes fork
        list(judge(warm, 0))
    return in_processes(names, partial(_judged, judge), processes, limits)


def _judged(judge: Work[str], name: str, first: int) -> Iterator[str]:
    try:
        yield from judge(name, first)
    except Exception as error:  # raised while making the samples
        yield f"{NOT_EXPORTED}: no samples, {type(error).__name__}"


class Journal:
    """Outcomes by operator in a file to which a running suite appends lines."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path = path
        if fresh:
            path.unlink(missing_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.found: dict[str, list[str]] = dict(map(json.loads, lines))

    def add(self, name: str, results: list[str]) -> None:
        self.found[name] = results
        with self.path.open("a") as file:
            file.write(json.dumps([name, results]) + "\n")
        for outcome, count in Counter(r for r in results if r != "pass").items():
            print(f"{name}: {count} of {len(results)}: {outcome}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="operators whose name contains this; the results file is not written"
    )
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument(
        "--samples", type=int, default=32, help="run at most this many samples of an operator, evenly spread"
    )
    parser.add_argument(
        "--interpret",
        action="store_true",
        help="interpret instead of compiling; the results file is not written",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=60.0, help="processor seconds for a sample")
    parser.add_argument(
        "--journal", type=Path, help="file of earlier outcomes; operators in it are not run again"
    )
    parser.add_argument("--fresh", action="store_true", help="discard earlier outcomes")
    options = parser.parse_args()
    how = "interpreted" if options.interpret else "compiled"
    path = options.journal or Path(tempfile.gettempdir()) / f"tilewright_opinfo_{options.dtype}_{how}.jsonl"
    journal = Journal(path, options.fresh)
    names = [n for n in operators(options.dtype) if options.only in n and n not in journal.found]
    judge = partial(outcomes, dtype=options.dtype, samples=options.samples, native=not options.interpret)
    for name, results in run_all(names, judge, options.processes, Limits(options.seconds)):
        journal.add(name, results)
    row = summary(journal.found)
    print(", ".join(f"{key} {row[key]}" for key in ("operators", "samples", NOT_EXPORTED, "passed", "whole")))
    if not options.interpret and not options.only:
        document = json.loads(DATA.read_text()) if DATA.exists() else {}
        document[options.dtype] = {**row, **circumstances(options.samples), "by": how}
        DATA.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def summary(found: dict[str, list[str]]) -> dict[str, Any]:
    """Counts, and for each operator that does not pass entirely, how many samples had which outcome."""
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
