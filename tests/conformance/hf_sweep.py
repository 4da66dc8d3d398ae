"""Models of Hugging Face's `transformers`, made from configurations with random weights, are exported,
compiled and compared with eager torch.

    python -m tests.conformance.hf_sweep                 # small models that hf_sweep.json lacks
    python -m tests.conformance.hf_sweep --again         # also models whose last outcome was wrong
    python -m tests.conformance.hf_sweep --again --only NAME ...    # these models
    python -m tests.conformance.hf_sweep --interpret     # run on the interpreter
    python -m tests.conformance.hf_sweep --time          # real widths on two threads, in milliseconds

Results are compared at two sizes. ``--interpret`` finds missing and wrong imports in a tenth of the time.
``--time`` also times eager torch and Inductor.

Batch and sequence are dynamic where `torch.export` allows it; otherwise the model is exported for each of two
sizes. Where torch refuses to export a model, torch's reason is recorded and
``torch.compile(backend="tilewright")`` is tried. Every model runs in a process of its own with limits on
memory and time. The data is written after each model, so that an interrupted run loses nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

import tilewright as tw
from tilewright.errors import CompileError, UnsupportedOperatorError
from tilewright.frontends.torch import import_torch
from tilewright.frontends.torch.export import export_program
from tilewright.integrations.torch_compile import FallbackWarning, tilewright
from tilewright.ir.interpreter import Interpreter

from ..processes import bytes_of_data
from .hf_models import ARCHITECTURES, FAMILIES, REAL, SIZES, TINY, Architecture, Widths

DATA = Path(__file__).with_suffix(".json")
MEMORY = 6 << 30
"""Bytes of data that a child process may use beyond those it starts with. Address space is not limited:
simulated devices reserve much of it.
"""
ALLOWED = 2e-4
"""The largest error that counts as right, relative to the output's largest magnitude. It allows for float32
sums in another order over a few layers.
"""
TURN = 0.25
"""Seconds for which each engine runs in turn when times are measured."""
ORDER = sorted(ARCHITECTURES, key=lambda name: FAMILIES.index(ARCHITECTURES[name].family))
Row = dict[str, Any]
Report = Callable[[Row], None]
Make = Callable[[Any], Callable[..., Any]]


# -- Models and inputs ---------------------------------------------------------------------------------------


def model_of(architecture: Architecture, widths: Widths) -> Any:
    """The model in evaluation mode, with weights under which every part influences the results."""
    import transformers

    torch.manual_seed(0)
    kind: Any = getattr(transformers, architecture.model)
    model = kind(kind.config_class(**architecture.config(widths))).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            _disturb(name, value)
            if value.ndim > 1 or name.endswith("weight"):
                _enlarge(name, value)
        for name, value in model.named_buffers():
            _disturb(name, value)
    return model


def _disturb(name: str, value: Any) -> None:
    """Add noise to tensors that start as zeros or ones, so that mistakes in them change the results."""
    if value.is_floating_point() and value.numel() > 1 and ("running_mean" in name or value.std() == 0):
        noise = torch.rand_like(value) * 0.1
        value.add_(noise if "running_var" in name else noise - 0.05)


def _enlarge(name: str, value: Any) -> None:
    """Scale a weight up so that its outputs are about as large as its inputs. With the small initial weights
    of training, biases would dominate and attention would be uniform.
    """
    many = value[0].numel() if name.endswith("weight") else value.shape[-1]
    size = value.square().mean().sqrt().item()
    value.mul_(max(1.0, many**-0.5 / size))


def inputs_of(architecture: Architecture, widths: Widths, which: int, seed: int = 0) -> dict[str, Any]:
    """Inputs at one of the four sizes: 0 is the example, 1 and 2 are for comparison, 3 is for measurement."""
    generator = torch.Generator().manual_seed(seed + which)
    sizes = {name: found[which] for name, found in _sizes(architecture).items()}
    made = {}
    for name, (kind, shape) in architecture.inputs(widths).items():
        made[name] = _filled(kind, [sizes[d] if isinstance(d, str) else d for d in shape], widths, generator)
    return made


def _sizes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    return SIZES | dict(architecture.sizes or {})


def _filled(kind: str, shape: list[int], widths: Widths, generator: Any) -> Any:
    if kind == "normal":
        return torch.randn(shape, generator=generator)
    if kind == "ones":
        return torch.ones(shape, dtype=torch.int64)
    if kind == "boxes":  # left, top, right, bottom
        return torch.randint(0, 100, shape, generator=generator).sort(-1).values[..., [0, 1, 2, 3]]
    if kind == "mask":  # the last position of each row is padding
        mask = torch.ones(shape, dtype=torch.int64)
        mask[..., -1] = 0
        return mask
    tokens = torch.randint(3, widths.vocabulary - 2, shape, generator=generator)
    if kind.startswith("image "):
        tokens[:, 1 : 1 + int(kind.split()[1])] = widths.vocabulary - 1
    return tokens


def dims_of(architecture: Architecture, widths: Widths) -> dict[str, dict[int, str]]:
    """The dynamic dimensions of the inputs, in the form that `tw.compile` takes. Convolutions shorten samples
    and frames, so their lower bounds are half of the smallest size used.
    """
    ranges = {name: (min(found[:3]) // 2, 4 * max(found[:3])) for name, found in _sizes(architecture).items()}
    ranges |= {"batch": (1, 8), "sequence": (1, 128), "target": (1, 64)}
    ranges |= {name: (least, ranges[name][1]) for name, least in architecture.least.items()}
    found = {
        name: {
            axis: f"{ranges[d][0]}<={d}<={ranges[d][1]}" for axis, d in enumerate(shape) if isinstance(d, str)
        }
        for name, (_, shape) in architecture.inputs(widths).items()
    }
    return {name: axes for name, axes in found.items() if axes}


def leaves(value: Any) -> list[Any]:
    """The tensors of a model's result, in order."""
    return [x for x in _pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


# -- Right or wrong ------------------------------------------------------------------------------------------


def for_cpu(program: Any) -> Any:
    """Compile an exported program for this machine's CPU."""
    return tw.compile(program, cache=False)


@dataclass(frozen=True)
class Prepared:
    """A small model, three sets of inputs, and what PyTorch gives for them."""

    model: Any
    examples: list[dict[str, Any]]
    wanted: list[list[Any]]
    row: Row
    """The report on the export."""
    programs: list[Any]
    """Exported programs for the second and the third set; empty if torch does not export the model."""


@lru_cache(maxsize=1)
def prepared(name: str, fixed: bool = False) -> Prepared:
    """Make and export a small model. The last one is kept, for processes that are forked from this one."""
    architecture = ARCHITECTURES[name]
    model = model_of(architecture, TINY)
    examples = [inputs_of(architecture, TINY, which) for which in range(3)]
    wanted = [_seeded(model, kwargs) for kwargs in examples]
    result = partial(Prepared, model, examples, wanted)
    dims = {} if fixed else dims_of(architecture, TINY)
    try:
        exported, why, program = _exported(model, examples[0], dims)
    except CompileError as error:
        return result({"exported": "no", "why": f"torch: {_line(error)}"}, [])
    theirs = _error(_seeded(program.module(), examples[0]), wanted[0])
    if _judged({"": theirs}) != "right":
        why = f"torch: the exported program gives other results than the model ({theirs})"
        return result({"exported": "no", "why": why}, [])
    left = exported.split(" and ")
    free = {
        name: {axis: text for axis, text in axes.items() if text.split("<=")[1] in left}
        for name, axes in dims.items()
    }
    free = {name: axes for name, axes in free.items() if axes}
    programs = (
        [program, program]
        if exported == "dynamic"
        else [_export(model, e, free or None) for e in examples[1:]]
    )
    return result({"exported": exported} | ({"why": why} if why else {}), programs)


def check(name: str, report: Report, make: Make = for_cpu, fixed: bool = False) -> None:
    """Report the outcome of one small model: ``exported``, ``compiled`` (how), ``seconds``, ``errors`` by
    sizes, and ``outcome``.

    Args:
        name: The architecture.
        report: Takes each part of the outcome.
        make: Makes a function of an exported program.
        fixed: Whether no size is dynamic.
    """
    found = prepared(name, fixed)
    examples, wanted, programs = found.examples, found.wanted, found.programs
    if not any(x.is_floating_point() and x.std() > 0 for x in wanted[1]):
        report({"outcome": "every result is the same number: nothing to compare"})
        return
    report(found.row)
    if not programs:
        _check_compile(found.model, examples, wanted, report)
        return
    errors, seconds, library, made = {}, 0.0, None, None
    for program, kwargs, want in zip(programs, examples[1:], wanted[1:], strict=True):
        if program is not made:
            start = time.perf_counter()
            library, made = make(program), program
            seconds += time.perf_counter() - start
        errors[_described(kwargs)] = _error(leaves(library(**kwargs)), want)
        report(
            {"seconds": round(seconds, 1), "errors": errors}
            | ({"kernels": library.report.kernels_after} if hasattr(library, "report") else {})
        )
    report({"outcome": _judged(errors)})


def _seeded(model: Any, kwargs: dict[str, Any]) -> list[Any]:
    """A model's results under a fixed seed, so that random choices (such as masked patches) are the same
    every time.
    """
    torch.manual_seed(0)
    return leaves(model(**kwargs))


def _interpreted(program: Any) -> Callable[..., list[Any]]:
    """A function that runs the imported graph on the interpreter, which needs no compilation."""
    interpreter = Interpreter(import_torch(program))
    return lambda **kwargs: [
        torch.from_numpy(np.array(x)) for x in interpreter.run("main", [x.numpy() for x in kwargs.values()])
    ]


def _check_compile(model: Any, examples: list[Any], wanted: list[Any], report: Report) -> None:
    """Compare ``torch.compile`` with eager torch. Parts that Dynamo cannot trace or that have no importer run
    in torch. `graphs` counts Dynamo's graphs; `in torch` names the operators without an importer.
    """
    graphs = 0

    def backend(module: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return tilewright(module, inputs)

    errors: dict[str, Any] = {}
    compiled = torch.compile(model, backend=backend)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        try:
            for kwargs, want in zip(examples[1:], wanted[1:], strict=True):
                errors[_described(kwargs)] = _error(_seeded(compiled, kwargs), want)
        except Exception:
            if _is_traced(model, examples[1]):
                raise
            report({"outcome": "not exported, nor traced by torch.compile"})
            return
    left = sorted(
        {name for w in caught if isinstance(w.message, FallbackWarning) for name in w.message.operators}
    )
    report(
        {"through": "torch.compile", "errors": errors, "graphs": graphs}
        | ({"in torch": left} if left else {})
    )
    outcome = _judged(errors)
    if outcome != "right":
        torch._dynamo.reset()
        theirs = _error(_seeded(torch.compile(model, backend="eager"), examples[1]), wanted[1])
        outcome = (
            outcome
            if _judged({"": theirs}) == "right"
            else f"not exported; torch.compile alone differs as well ({theirs})"
        )
    report({"outcome": outcome})


def _is_traced(model: Any, kwargs: dict[str, Any]) -> bool:
    """Whether torch.compile can trace the model with torch's own backend ``aot_eager``."""
    torch._dynamo.reset()
    try:
        torch.compile(model, backend="aot_eager")(**kwargs)
    except Exception:
        return False
    return True


def _exported(model: Any, kwargs: dict[str, Any], dims: dict[str, dict[int, str]]) -> tuple[str, str, Any]:
    """Three values: ``dynamic``, ``static`` or the names of the dynamic dimensions; torch's reason where not
    all dimensions are dynamic; and the exported program.
    """
    if not dims:
        return "static", "", _export(model, kwargs, None)
    try:
        program = _export(model, kwargs, dims)
    except CompileError as error:
        return "static", f"torch: {_line(error)}", _export(model, kwargs, None)
    given = {n.name: n.meta["val"].shape for n in program.graph.nodes if n.op == "placeholder"}
    fixed = {
        text.split("<=")[1]
        for name, axes in dims.items()
        for axis, text in axes.items()
        if name in given and isinstance(given[name][axis], int)
    }
    if not fixed:
        return "dynamic", "", program
    left = {text.split("<=")[1] for axes in dims.values() for text in axes.values()} - fixed
    return (
        " and ".join(sorted(left)) or "static",
        f"torch: traced for one {' and '.join(sorted(fixed))}",
        program,
    )


def _export(model: Any, kwargs: dict[str, Any], dims: dict[str, dict[int, str]] | None) -> Any:
    return export_program(model, None, {k: v.clone() for k, v in kwargs.items()}, dims)


def _described(kwargs: Mapping[str, Any]) -> str:
    return " ".join("x".join(map(str, x.shape)) for x in kwargs.values())


def _error(found: list[Any], wanted: list[Any]) -> float | str:
    """The largest error of any output, relative to the output's largest magnitude, or a text where shapes or
    types differ. The magnitude counts as at least a hundredth of the largest of all outputs, because the
    terms of one output may cancel.
    """
    if [(x.shape, x.dtype) for x in found] != [(x.shape, x.dtype) for x in wanted]:
        return f"{[tuple(x.shape) for x in found]} instead of {[tuple(x.shape) for x in wanted]}"
    worst = 0.0
    least = 0.01 * max(
        (x[x.isfinite()].abs().amax().item() for x in wanted if x.is_floating_point() and x.isfinite().any()),
        default=0.0,
    )
    for got, want in zip(found, wanted, strict=True):
        if not want.is_floating_point():
            if not torch.equal(got, want):
                return f"other {str(want.dtype).removeprefix('torch.')} values"
            continue
        finite = want.isfinite()
        if not torch.equal(finite, got.isfinite()) or not torch.equal(got[~finite], want[~finite]):
            return "NaN or infinity in other places"
        got, want = got[finite].double(), want[finite].double()
        if want.numel():
            worst = max(
                worst, ((got - want).abs().max() / want.abs().max().clamp_min(max(least, 1e-6))).item()
            )
    return float(f"{worst:.1e}")


def _judged(errors: Mapping[str, float | str]) -> str:
    wrong = [e for e in errors.values() if isinstance(e, str) or e > ALLOWED]
    return f"wrong: {wrong[0]}" if wrong else "right"


def _line(error: BaseException) -> str:
    if isinstance(error, UnsupportedOperatorError):
        return "; ".join(f"{o.operator}: {o.hint}" if o.hint else o.operator for o in error.operators)[:300]
    return str(error).splitlines()[0][:300] if str(error) else ""


# -- Time ----------------------------------------------------------------------------------------------------


def measure(name: str, report: Report) -> None:
    """Report the median milliseconds of one model at real widths for ``tilewright``, ``eager`` and
    ``inductor``, which run in turns.
    """
    architecture = ARCHITECTURES[name]
    torch.set_num_threads(2)
    model = model_of(architecture, REAL)
    kwargs = inputs_of(architecture, REAL, 3)
    library = tw.compile(_export(model, kwargs, None), threads=2, cache=False)
    engines = {"tilewright": lambda: library(**kwargs), "eager": lambda: model(**kwargs)}
    report({"sizes": _described(kwargs), "error": _error(leaves(library(**kwargs)), leaves(model(**kwargs)))})
    torch._inductor.config.freezing = True
    inductor = torch.compile(model, dynamic=False)
    try:
        inductor(**kwargs)
        engines["inductor"] = lambda: inductor(**kwargs)
    except Exception as error:  # Inductor does not compile every model
        report({"inductor": f"{type(error).__name__}: {_line(error)}"})
    report(
        {engine: round(1e3 * statistics.median(found), 3) for engine, found in take_turns(engines).items()}
    )


def take_turns(engines: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of every call of each engine, from eight turns of each."""
    times: dict[str, list[float]] = {engine: [] for engine in engines}
    for call in engines.values():
        call()
    for _ in range(8):
        for engine, call in engines.items():
            end = time.perf_counter() + TURN
            while True:
                start = time.perf_counter()
                call()
                times[engine].append(time.perf_counter() - start)
                if time.perf_counter() > end:
                    break
    return times


# -- Every model in a process --------------------------------------------------------------------------------


def run(name: str, work: Callable[[str, Report], None], seconds: float) -> Row:
    """The report of `work` on a model, with the way it ended if it did not finish. The child process may
    use `seconds` of processor time and four times as much wall time.
    """
    here, there = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=_child, args=(there, name, work, seconds))
    process.start()
    there.close()
    row: Row = {}
    deadline = time.monotonic() + 4 * seconds
    while True:
        if not connection.wait([here], timeout=max(0.0, deadline - time.monotonic())):
            process.kill()
            process.join()
            return row | {"outcome": f"more than {seconds:.0f} s"}
        try:
            row |= here.recv()
        except EOFError:
            process.join()
            if process.exitcode == -signal.SIGXCPU:
                return row | {"outcome": f"more than {seconds:.0f} s"}
            return row if process.exitcode == 0 else row | {"outcome": f"crash: exit code {process.exitcode}"}


def _child(there: Any, name: str, work: Callable[[str, Report], None], seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 9))
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    limit = bytes_of_data() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        with torch.no_grad():
            work(name, there.send)
    except UnsupportedOperatorError as error:
        there.send({"outcome": f"refused: {_line(error)}"})
    except Exception as error:  # every exception is recorded as the outcome
        there.send({"outcome": f"{type(error).__name__}: {_line(error)}"})
    there.send({"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10})


def _pending(document: Row, options: argparse.Namespace) -> Iterator[str]:
    for name in ORDER:
        architecture = ARCHITECTURES[name]
        if options.family not in ("", architecture.family) or (options.only and name not in options.only):
            continue
        row = document["models"].get(name, {})
        if options.time:
            if row.get("outcome") == "right" and (options.again or options.only or "time" not in row):
                yield name
        elif options.only or not row or (options.again and row.get("outcome") != "right"):
            yield name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="run these architectures, even if they have results"
    )
    parser.add_argument("--family", default="")
    parser.add_argument(
        "--again", action="store_true", help="also run architectures whose last outcome was not right"
    )
    parser.add_argument(
        "--time", action="store_true", help="measure times of architectures with right results"
    )
    parser.add_argument(
        "--seconds", type=float, help="processor seconds for a model (default: 240; with --time 900)"
    )
    parser.add_argument(
        "--interpret",
        action="store_true",
        help="interpret instead of compiling; the results file is not written",
    )
    parser.add_argument("--results", type=Path, default=DATA)
    options = parser.parse_args()
    import transformers

    torch.set_num_threads(1)
    path = options.results
    document: Row = json.loads(path.read_text()) if path.exists() else {"models": {}}
    work = measure if options.time else partial(check, make=_interpreted if options.interpret else for_cpu)
    for name in list(_pending(document, options)):
        found = run(name, work, options.seconds or (900 if options.time else 240))
        if options.interpret:
            print(name, json.dumps(found), flush=True)
            continue
        # Another process may have written the file in the meantime.
        document = json.loads(path.read_text()) if path.exists() else {"models": {}}
        rows = document["models"]
        if options.time:
            rows[name]["time"] = found
        else:
            kept = {"time": rows[name]["time"]} if "time" in rows.get(name, {}) else {}
            rows[name] = {
                "family": ARCHITECTURES[name].family,
                "class": ARCHITECTURES[name].model,
                **found,
                **kept,
            }
        document |= {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores",
            "torch": torch.__version__.partition("+")[0],
            "transformers": transformers.__version__,
        }
        document["models"] = {n: rows[n] for n in ORDER if n in rows}
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(name, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
