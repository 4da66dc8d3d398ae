"""Gradients of the operators in PyTorch's operator database (OpInfo): samples are exported, imported,
differentiated by the engine of `tw.grad` and `tw.train_step`, and compared with `torch.autograd`.

    python -m tests.conformance.opinfo_gradients
    python -m tests.conformance.opinfo_gradients --dtype float32 --only scatter

The gradient of the sum of all results, with random weights, by each tensor that the sample asks it of, agrees
to 1e-9 of its largest element in float64 and to 1e-5 in float32. A gradient outside of that passes if torch's
own changes by an eighth as much where the inputs change by one unit in the last place, or where float32
becomes float64. A gradient that equals central differences, where torch's does not, is counted apart.
The first sample of each operator is compiled as well, and its gradient is differentiated once more where
torch does so; all others are interpreted. Each operator runs in a process of its own, as in `opinfo_suite`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

import tilewright as tw
from tests.autodiff.operators import Gradient, differentiate
from tilewright.errors import CompileError, GradientError, UnsupportedOperatorError
from tilewright.frontends.torch import import_torch
from tilewright.frontends.torch.tensors import array_of
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify

from ..processes import Limits
from .opinfo_suite import (
    NOT_EXPORTED,
    RANDOM,
    UNSET,
    Journal,
    Sample,
    circumstances,
    first_line,
    operators,
    run_all,
    summary,
)

DATA = Path(__file__).with_suffix(".json")
STEP = 1e-6
"""The step of central differences, relative to numbers of size 1."""
UNLIKE_TORCH = "as differences, unlike torch"
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
"""The largest difference of two gradients, relative to the largest element."""


OF_THE_DATA = ("combinations", "masked_select", "repeat_interleave", "tensor_split")
"""Operators whose results have sizes that the data tell: a sum of each result is differentiated instead."""


DRAWN = ("nn.functional.multi_head_attention_forward",)
"""Operators all of whose samples drop elements at random."""


class Loss(Sample):
    """The results of a sample that depend on its differentiable tensors: floating-point numbers, complex ones
    as pairs. Results that are not unique are reduced as OpInfo asks for its own checks of gradients.
    """

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__(op.op, (sample.input, tuple(sample.args), dict(sample.kwargs)))
        self.summed = op.name in OF_THE_DATA
        self.wrapper = op.gradcheck_wrapper
        self.process = sample.output_process_fn_grad
        self.wanted = [
            k for k, x in enumerate(x for x in self.leaves if isinstance(x, torch.Tensor)) if x.requires_grad
        ]
        self.kept: list[int] | None = None

    def forward(self, *tensors: Any) -> Any:
        given = iter(tensors)
        leaves = [next(given) if isinstance(x, torch.Tensor) else x for x in self.leaves]
        x, args, kwargs = _pytree.tree_unflatten(leaves, self.structure)
        found = _pytree.tree_leaves(self.process(self.wrapper(self.function, x, *args, **kwargs)))
        if self.kept is None:
            self.kept = [k for k, y in enumerate(found) if isinstance(y, torch.Tensor) and y.requires_grad]
        kept = [found[k] for k in self.kept]
        kept = [torch.view_as_real(y.resolve_conj()) if y.is_complex() else y for y in kept]
        return tuple((y * y.cos()).sum() if self.summed else y for y in kept)


class Case:
    """A sample, its weights, and torch's gradients.

    Attributes:
        first: Torch's gradients by the differentiable tensors.
        second: The gradients of the weighted sum of these, by the tensors and then by the weights; None where
            torch has none.

    Raises:
        RuntimeError: Torch does not differentiate the sample.
    """

    def __init__(self, module: Loss, twice: bool, wide: bool = False, moved: float = 0.0) -> None:
        self.module = module
        rng = np.random.default_rng(7)
        tensors = [_changed(x, wide, moved) for x in module.tensors]
        leaves = [tensors[k].requires_grad_() for k in module.wanted]
        torch.manual_seed(0)
        results = module(*tensors)
        if not results:
            raise RuntimeError("no result depends on the inputs")

        def drawn(x: Any) -> Any:
            value = torch.from_numpy(np.asarray(rng.standard_normal(x.shape)))
            return (value if wide else value.to(x.dtype)).to(x.dtype)

        self.weights = [drawn(y) for y in results]
        for w in self.weights:
            w.requires_grad_(twice)
        self.first = _gradients(results, leaves, self.weights, create_graph=twice)
        self.outer = [drawn(g) for g in self.first]
        self.second: list[Any] | None = None
        if twice:
            try:
                live = [(g, o) for g, o in zip(self.first, self.outer, strict=True) if g.requires_grad]
                self.second = _gradients(
                    [g for g, _ in live], [*leaves, *self.weights], [o for _, o in live], create_graph=False
                )
                if any(g.isnan().any() for g in self.second):  # nothing to compare with
                    self.second = None
            except (RuntimeError, NotImplementedError):
                self.second = None
        self.first = [g.detach() for g in self.first]


def _changed(x: Any, wide: bool, moved: float) -> Any:
    """A copy of an input: of float64, or with each number changed by at most `moved` of itself."""
    x = x.detach().clone()
    if x.is_floating_point():
        x = x.double() if wide else x
        if moved:
            generator = torch.Generator().manual_seed(3)
            x = x * (1 + moved * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1))
    return x


def _gradients(ys: Sequence[Any], xs: Sequence[Any], weights: Sequence[Any], create_graph: bool) -> list[Any]:
    found = torch.autograd.grad(ys, xs, weights, allow_unused=True, create_graph=create_graph)
    return [
        torch.zeros_like(x) if g is None or g._is_zerotensor() else g for x, g in zip(xs, found, strict=True)
    ]


def outcomes(name: str, first: int, dtype: str, samples: int) -> Iterator[str]:
    """The outcomes of an operator's samples from the `first` on: see `opinfo_suite.outcomes`."""
    op = operators(dtype)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k, sample in list(enumerate(samples_of(op, dtype, samples)))[first:]:
            try:
                module = Loss(op, sample).eval()
                case = Case(module, twice=k == 0 and op.supports_gradgrad)
                with torch.no_grad():
                    copies = tuple(x.clone() for x in module.tensors)
                    program = torch.export.export(module, copies, strict=False)
            except Exception as error:  # what torch does not differentiate or export is not counted
                yield f"{NOT_EXPORTED}: {type(error).__name__}"
                continue
            yield _outcome(program, case, dtype, k == 0)


def samples_of(op: Any, dtype: str, count: int) -> list[Any]:
    """`count` samples of an operator that ask for gradients, evenly spread over all."""
    torch.manual_seed(0)
    found = [
        s
        for s in op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=True)
        if not s.kwargs.get("dropout_p")
    ]
    return [found[k * len(found) // count] for k in range(count)] if len(found) > count else found


def _outcome(program: Any, case: Case, dtype: str, native: bool) -> str:
    try:
        return _judged(program, case, dtype, native)
    except GradientError as error:
        return f"refused: no gradient of {', '.join(sorted(_operators(error)))}"
    except UnsupportedOperatorError as error:
        return f"refused: {'; '.join(o.operator for o in error.operators)}"
    except CompileError as error:
        return f"refused: {first_line(error)}"
    except Exception as error:  # every exception is recorded as the outcome
        return f"{type(error).__name__}: {first_line(error)}"


def _operators(error: GradientError) -> set[str]:
    """The names of the operators that an error refuses."""
    return {line.split()[1] for line in str(error).splitlines()[1:]}


def _judged(program: Any, case: Case, dtype: str, native: bool) -> str:
    module = import_torch(program)
    verify(module)
    once = differentiate(module, case.module.wanted)
    given = [array_of(x.detach(), "an input") for x in case.module.tensors]
    seed = [np.int64(0)] if module.symbol("main").seed else []
    given = [*given, *seed, *(array_of(w.detach(), "a weight") for w in case.weights)]
    places = dict(zip(once.wanted, range(len(once.wanted)), strict=True))
    tolerance = TOLERANCE[dtype]

    def whole(found: Sequence[Any], wanted: Sequence[int], gradient: Gradient, zeros: Sequence[Any]) -> Any:
        at = dict(zip(gradient.wanted, found, strict=True))
        return [at.get(k, np.zeros(z.shape)) for k, z in zip(wanted, zeros, strict=True)]

    wanted = case.module.wanted
    runs = [("", _interpreted)] + ([("compiled: ", _compiled)] if native else [])
    for how, run in runs:
        found = whole(run(once, given), wanted, once, case.first)
        problem = difference(found, case.first, tolerance)
        if problem and not near(found, case, dtype, 1):
            if as_differences(found, case, 1):
                return UNLIKE_TORCH
            return f"wrong: {how}{problem}"
    if case.second is None:
        return "pass"
    count = len(given) - len(case.weights)
    sources = [*wanted, *range(count, len(given))]
    twice = differentiate(once.backward, sources)
    outer = [case.outer[wanted.index(k)].numpy() for k in places]
    found = whole(_interpreted(twice, [*given, *outer]), sources, twice, case.second)
    largest = max((float(g.detach().abs().max()) for g in case.second if g.numel()), default=1.0)
    problem = difference(found, case.second, tolerance, max(largest, 1e-3))
    if problem and not near(found, case, dtype, 2):
        if as_differences(found, case, 2):
            return UNLIKE_TORCH
        return f"wrong: second order: {problem}"
    return "pass"


def _interpreted(gradient: Gradient, given: Sequence[Any]) -> Any:
    with np.errstate(all="ignore"):
        return Interpreter(gradient.backward).run("main", list(given))


def _compiled(gradient: Gradient, given: Sequence[Any]) -> Any:
    names = gradient.backward.symbol("main").arg_names
    with tw.compile(gradient.backward, cache=False) as library:
        found = library(**dict(zip(names, given, strict=True)))
    return found if isinstance(found, tuple) else (found,) if gradient.wanted else ()


def difference(found: Sequence[Any], wanted: Sequence[Any], tolerance: float, least: float = 1e-3) -> str:
    """A description of how gradients differ, relative to the largest element of each or to `least`."""
    for k, (got, want) in enumerate(zip(found, wanted, strict=True)):
        got, want = _wide(got), _wide(want)
        if got.shape != want.shape:
            return f"gradient {k} has shape {got.shape}, not {want.shape}"
        finite = np.isfinite(want)
        if not np.array_equal(np.where(finite, 0, got), np.where(finite, 0, want), equal_nan=True):
            return f"gradient {k} has other numbers in place of infinity or NaN"
        off = np.abs(np.where(finite, got - want, 0)).max(initial=0)
        scale = np.abs(np.where(finite, want, 0)).max(initial=0)
        scale = max(scale, least)
        if not off <= tolerance * scale:
            return f"gradient {k} differs by {off / scale:.1g} of the largest element"
    return ""


def _wide(x: Any) -> Any:
    """A float64 array of a tensor or an array."""
    return x.detach().double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, np.float64)


def near(found: Sequence[Any], case: Case, dtype: str, order: int) -> bool:
    """Whether gradients are about as exact as torch's own: see the module's text."""
    try:
        others = [Case(case.module, order == 2, moved=float(np.finfo(dtype).eps))]
        others += [Case(case.module, order == 2, wide=True)] if dtype == "float32" else []
    except Exception:  # torch does not run it with such inputs
        return False
    eager = case.first if order == 1 else case.second
    changed = [other.first if order == 1 else other.second for other in others]
    assert eager is not None
    for k, got in enumerate(found):
        ours, theirs, *near = map(_wide, (got, eager[k], *(c[k] for c in changed)))
        error, *apart = (np.abs(x - theirs).max(initial=0) for x in (ours, *near))
        if not error <= 8 * max(apart):
            return False
    return True


def as_differences(found: Sequence[Any], case: Case, order: int) -> bool:
    """Whether gradients equal central differences in float64 along random directions, and those of torch do
    not everywhere.
    """
    rng = np.random.default_rng(5)
    module, count = case.module, len(case.module.wanted)
    inputs = [_changed(x, True, 0.0) for x in module.tensors]
    sources = [inputs[k] for k in module.wanted] + [w.detach().double() for w in case.weights]
    tolerance = STEP if case.weights[0].dtype == torch.float64 else 1e-4
    theirs = case.first if order == 1 else case.second
    assert theirs is not None

    def value(given: Sequence[Any]) -> float:
        tensors = [x.clone() for x in inputs]
        for k, x in zip(module.wanted, given, strict=False):
            tensors[k] = x.detach().clone().requires_grad_()
        ys: Sequence[Any] = module(*tensors)
        weights: Sequence[Any] = given[count:]
        if order == 2:
            ys = _gradients(ys, [tensors[k] for k in module.wanted], weights, create_graph=False)
            weights = case.outer
        return sum(float((y.detach() * w).sum()) for y, w in zip(ys, weights, strict=True))

    other = False
    for k, (got, torchs) in enumerate(zip(found, theirs, strict=True)):
        for _ in range(2):
            v = torch.from_numpy(np.asarray(rng.standard_normal(sources[k].shape)))
            ends = [value([*sources[:k], sources[k] + h * v, *sources[k + 1 :]]) for h in (STEP, -STEP)]
            wanted = (ends[0] - ends[1]) / (2 * STEP)
            ours, eager = (float((_wide(g) * v.numpy()).sum()) - wanted for g in (got, torchs))
            if not abs(ours) <= tolerance * max(abs(wanted), 1):
                return False
            other |= abs(eager) > max(1e-9, 10 * abs(ours))
    return other


def differentiable(dtype: str) -> list[str]:
    """The names of the operators with gradients, without those whose results are drawn or not set."""
    return [
        n
        for n, op in operators(dtype).items()
        if op.supports_autograd and n not in RANDOM and n not in UNSET and n not in DRAWN
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="operators whose name contains this; no file is written")
    parser.add_argument("--dtype", default="float64", choices=sorted(TOLERANCE))
    parser.add_argument(
        "--samples", type=int, default=8, help="the most samples of an operator, evenly spread"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor seconds for a sample")
    parser.add_argument(
        "--journal", type=Path, help="file of earlier outcomes; operators in it do not run again"
    )
    parser.add_argument("--fresh", action="store_true", help="discard earlier outcomes")
    options = parser.parse_args()
    path = (
        options.journal or Path(tempfile.gettempdir()) / f"tilewright_opinfo_gradients_{options.dtype}.jsonl"
    )
    journal = Journal(path, options.fresh)
    names = [n for n in differentiable(options.dtype) if options.only in n and n not in journal.found]
    judge = partial(outcomes, dtype=options.dtype, samples=options.samples)
    for name, results in run_all(names, judge, options.processes, Limits(options.seconds)):
        journal.add(name, results)
    row = summary(journal.found)
    print(", ".join(f"{key} {row[key]}" for key in ("operators", "samples", NOT_EXPORTED, "passed", "whole")))
    if not options.only:
        document = json.loads(DATA.read_text()) if DATA.exists() else {}
        document[options.dtype] = {**row, **circumstances(options.samples)}
        DATA.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
