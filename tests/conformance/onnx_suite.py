"""The tests that the onnx package bundles (``onnx.backend.test``): nodes, small models, exports of PyTorch.

    python -m tests.conformance.onnx_suite
    python -m tests.conformance.onnx_suite --only gridsample --interpret
    python -m tests.conformance.onnx_suite --without-examples

The first command compiles all tests, runs them natively and updates ``onnx_suite.json``.

The compiler gets a case's inputs as examples. Where it needs a value (such as the axes to squeeze), it
compiles for the example's value, and each run checks that the value is the same. Without examples, such
values are handled at run time, or the model is refused. Results are compared in the suite's way, with its
tolerances.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

import tilewright as tw
from tilewright.errors import CompileError, UnsupportedOperatorError
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify
from tilewright.runtime.nested import Nested

from ..processes import Limits, in_processes
from .onnx_draws import DRAWN, distribution, draws

DATA = Path(__file__).with_suffix(".json")
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""The kinds of cases whose data is bundled; the suite's "real" models would be downloaded."""

CHUNK = 16
"""The number of cases that one process runs."""

_OTHER, _NUMBERS = _VALUES = ("other values", "numbers differ")

ROUNDING = {"test_dft_inverse": 2e-7, "test_dft_inverse_opset19": 2e-7}
"""Absolute tolerances of cases whose exact result is 0 and whose expected results are rounding errors of this
size (the inputs are as large as 54).
"""

HALF_RTOL = 1e-2
"""The relative tolerance for results of 16 bits or fewer. The suite rounds after every step of a composed
formula; compiled code rounds once.
"""
BFLOAT16_RTOL = 2**-6
"""The relative tolerance for results in bfloat16: two units in the last place. The suite's attention is
further from the exact results than compiled code is.
"""


@dataclass(frozen=True)
class Case:
    kind: str
    name: str
    model: Any
    data_sets: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float

    @property
    def opset(self) -> str:
        """The version of the model's default opset ("18"), or of its only other domain."""
        found = {e.domain: e.version for e in self.model.opset_import}
        return str(found.get("", found.get("ai.onnx", next(iter(found), "?"))))

    @property
    def full_name(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def in_python(self) -> bool:
        """Whether the case has strings or image files, which run in Python as no target supports them."""
        values = (*self.model.graph.input, *self.model.graph.output)
        strings = any(v.type.tensor_type.elem_type == onnx.TensorProto.STRING for v in values)
        return strings or any(n.op_type == "ImageDecoder" for n in self.model.graph.node)


@cache
def cases() -> tuple[Case, ...]:
    """All bundled cases."""
    return tuple(_cases())


def _cases() -> Iterator[Case]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:
            for case in load_model_tests(kind=kind):
                if case.model is not None:
                    yield Case(kind, case.name, case.model, _values(case.data_sets), case.rtol, case.atol)
                elif case.model_dir is not None:
                    folder = Path(case.model_dir)
                    model = onnx.load(folder / "model.onnx")
                    yield Case(kind, case.name, model, list(_stored(folder, model)), case.rtol, case.atol)


def _values(data_sets: Any) -> list[tuple[list[Any], list[Any]]]:
    return [([_value(x) for x in inputs], [_value(x) for x in outputs]) for inputs, outputs in data_sets]


def _value(x: Any) -> Any:
    """A tensor as an array, a sequence as a list, and an absent optional value as None."""
    if isinstance(x, onnx.TensorProto):
        return numpy_helper.to_array(x)
    if isinstance(x, list):
        return [_value(item) for item in x]
    return x if x is None or isinstance(x, dict) else np.asarray(x)


def _stored(folder: Path, model: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    for data in sorted(folder.glob("test_data_set_*")):
        sides = []
        for side, entries in (("input", model.graph.input), ("output", model.graph.output)):
            count = len(list(data.glob(f"{side}_*.pb")))
            sides.append([_read(data / f"{side}_{k}.pb", entries[k].type) for k in range(count)])
        yield sides[0], sides[1]


def _read(path: Path, type_: Any) -> Any:
    kind = type_.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


Run = Callable[[Any, list[Any], list[Any] | None], list[Any]]
"""A function that runs a model on inputs, with or without them as examples, and returns the results."""


def outcome(case: Case, run: Run, examples: bool = True) -> str:
    """``pass``; ``drawn: ...`` where only random numbers differ; ``refused: ...`` with the reason; or a
    description of the error.
    """
    try:
        for inputs, expected in case.data_sets:
            found = run(case.model, inputs, inputs if examples else None)
            if len(found) != len(expected):
                return f"{len(found)} results instead of {len(expected)}"
            problems = [
                d for want, got in zip(expected, found, strict=True) if (d := _difference(case, want, got))
            ]
            if problems and draws(case.model) and set(problems) <= {*_VALUES}:
                return distribution(case.model, inputs, found) or DRAWN
            if problems:
                return problems[0]
    except UnsupportedOperatorError as error:
        return (
            "refused: "
            f"{'; '.join(f'{o.operator}: {o.hint}' if o.hint else o.operator for o in error.operators)}"
        )
    except CompileError as error:
        return f"refused: {str(error).splitlines()[0]}"
    except Exception as error:  # every exception is recorded as the outcome
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return "pass"


def outcomes(numbers: Sequence[int], first: int, run: Run, examples: bool = True) -> Iterator[str]:
    """The outcomes of the cases with some numbers, from the first on."""
    return (outcome(cases()[number], run, examples) for number in numbers[first:])


def compiled(model: Any, inputs: list[Any], examples: list[Any] | None) -> list[Any]:
    """Compile a model for this machine's CPU, and run it."""
    with tw.compile(model, examples, cache=False) as library:
        found = library(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


def interpreted(model: Any, inputs: list[Any], examples: list[Any] | None) -> list[Any]:
    """Run a model on the interpreter."""
    module = import_onnx(model, None, examples)
    verify(module)
    nested = (
        Nested(*module.symbol("main").attributes["nested"])
        if module.symbol("main").attributes["nested"]
        else None
    )
    if module.symbol("main").seed:
        inputs = [*inputs, np.array(1, np.int64)]
    found = Interpreter(module).run("main", inputs if nested is None else nested.flatten(inputs, {}))
    if nested is None:
        return list(found)
    results = nested.unflatten(found)
    return list(results) if isinstance(results, tuple) else [results]


def _difference(case: Case, want: Any, got: Any) -> str:
    if isinstance(want, list):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return "another sequence"
        return next((d for w, g in zip(want, got, strict=True) if (d := _difference(case, w, g))), "")
    if want is None:
        return "" if got is None else "a value where there is none"
    got = np.asarray(got)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"got {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    if want.dtype.kind in "iubOUS":
        return "" if np.array_equal(got, want) else _OTHER
    rtol = case.rtol if want.dtype.itemsize > 2 else max(case.rtol, HALF_RTOL)
    if want.dtype == ml_dtypes.bfloat16:
        rtol = max(rtol, BFLOAT16_RTOL)
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    atol = ROUNDING.get(case.name, max(case.atol, 1e-7))
    close = np.allclose(got.astype(wide), want.astype(wide), rtol=rtol, atol=atol, equal_nan=True)
    return "" if close else _NUMBERS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="cases whose name contains this; the results file is not written"
    )
    parser.add_argument(
        "--interpret",
        action="store_true",
        help="interpret instead of compiling; the results file is written only with --without-examples",
    )
    parser.add_argument(
        "--left",
        action="store_true",
        help="run only cases that did not pass; other results are kept",
    )
    parser.add_argument(
        "--without-examples",
        action="store_true",
        help="compile without example inputs, and record how many cases pass and which are refused",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=60.0, help="processor seconds for a case")
    options = parser.parse_args()
    known = json.loads(DATA.read_text())["not_passed"] if options.left else {}
    asked = [k for k, case in enumerate(cases()) if options.only in case.name]
    chosen = [k for k in asked if not options.left or cases()[k].full_name in known]
    chunks = [chosen[k : k + CHUNK] for k in range(0, len(chosen), CHUNK)]
    run = interpreted if options.interpret else compiled
    work = partial(outcomes, run=run, examples=not options.without_examples)
    found = {case.full_name: {"opset": case.opset, "outcome": "pass"} for case in (cases()[k] for k in asked)}
    for numbers, results in in_processes(chunks, work, options.processes, Limits(options.seconds)):
        for number, result in zip(numbers, results, strict=True):
            case = cases()[number]
            found[case.full_name] = {"opset": case.opset, "outcome": result}
            if result != "pass":
                print(f"{case.name}: {result}", flush=True)
    counts = Counter("pass" if r["outcome"] == "pass" else r["outcome"].split(":")[0] for r in found.values())
    print(", ".join(f"{n} {what}" for what, n in counts.most_common()))
    if not options.only and (options.without_examples or not options.interpret):
        document = json.loads(DATA.read_text()) if DATA.exists() else {}
        if options.without_examples:
            document["without_examples"] = _without_examples(found, options.interpret)
        else:
            document.update(_document(found))
        DATA.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def _without_examples(found: dict[str, dict[str, str]], interpreted: bool) -> dict[str, Any]:
    return {
        "by": "the interpreter" if interpreted else "compiled",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "passed": sum(r["outcome"] == "pass" for r in found.values()),
        "not_passed": {name: row["outcome"] for name, row in found.items() if row["outcome"] != "pass"},
    }


def _document(found: dict[str, dict[str, str]]) -> dict[str, Any]:
    by_opset: dict[str, Counter[str]] = {}
    for row in found.values():
        by_opset.setdefault(row["opset"], Counter())["pass" if row["outcome"] == "pass" else "other"] += 1
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {platform.system()}",
        "onnx": onnx.__version__,
        "wider_tolerance": {
            "of 16 bits and fewer": (
                f"rtol {HALF_RTOL}: the suite rounds after every step of a composed formula"
            ),
            "of bfloat16": f"rtol {BFLOAT16_RTOL}: two units in the last place",
            **{
                name: f"atol {atol}: the expected result has rounding where the exact one is 0"
                for name, atol in ROUNDING.items()
            },
        },
        "passed": sum(r["outcome"] == "pass" for r in found.values()),
        "in_python": sum(case.in_python for case in cases() if found[case.full_name]["outcome"] == "pass"),
        "cases": len(found),
        "by_opset": {k: dict(v) for k, v in by_opset.items()},
        "not_passed": {name: row["outcome"] for name, row in found.items() if row["outcome"] != "pass"},
    }


if __name__ == "__main__":
    main()
