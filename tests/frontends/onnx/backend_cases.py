"""The node tests that ONNX bundles (``onnx.backend.test``), run through the importer and the reference interpreter.

``python tests/frontends/onnx/backend_cases.py`` prints the table of operators and outcomes that stands in ``node_tests.md``.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tilewright.errors import CompileError, UnsupportedOperatorError
from tilewright.frontends.onnx import import_onnx
from tilewright.frontends.onnx.model import NEWEST_OPSET, OLDEST_OPSET
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify
from tilewright.lowering.graph_to_tensor import lower_to_tensor


@dataclass(frozen=True)
class Case:
    name: str
    operator: str
    model: Any
    data_sets: Any
    rtol: float
    atol: float


@cache
def cases() -> tuple[Case, ...]:
    """All bundled node tests whose opset is supported."""
    from onnx.backend.test.loader import load_model_tests

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in load_model_tests(kind="node"):
            versions = [e.version for e in case.model.opset_import if e.domain == ""]
            if versions and OLDEST_OPSET <= versions[0] <= NEWEST_OPSET:
                operator = case.model.graph.node[0].op_type
                if case.name.endswith("_expanded") or "_expanded_" in case.name:
                    operator = "(expanded functions)"
                found.append(Case(case.name, operator, case.model, case.data_sets, case.rtol, case.atol))
    return tuple(found)


@cache
def outcomes() -> dict[str, str]:
    """The outcome of every case at the graph level, by name."""
    return {case.name: outcome(case) for case in cases()}


def outcome(case: Case, lowered: bool = False) -> str:
    """``pass``, ``unsupported`` (refused with a message), or what was wrong; at the tensor level when `lowered`."""
    try:
        model, baked = _import(case)
    except UnsupportedOperatorError:
        return "unsupported"
    except CompileError as error:
        refused = "is not supported" in str(error) or "is not a tensor" in str(error) or "is a sequence" in str(error)
        return "unsupported" if refused else f"CompileError: {error}"
    if lowered:
        lower_to_tensor(model)
    verify(model)
    for inputs, expected in case.data_sets:
        arrays = [_array(x) for x in inputs]
        results = Interpreter(model).run("main", arrays[: len(arrays) - baked])
        for want, got in zip(map(_array, expected), results, strict=True):
            problem = _difference(case, want, np.asarray(got))
            if problem:
                return problem
    return "pass"


def _import(case: Case) -> tuple[Any, int]:
    """The module, and how many trailing inputs were made initializers because a shape or axis is read from them."""
    try:
        return import_onnx(case.model), 0
    except UnsupportedOperatorError as error:
        if "depends on data" not in str(error) and "must be constant" not in str(error):
            raise
    inputs = case.data_sets[0][0]
    baked = max(1, len(inputs) - 1)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for entry, x in list(zip(model.graph.input, inputs, strict=True))[-baked:]:
        model.graph.initializer.append(numpy_helper.from_array(_array(x), entry.name))
    return import_onnx(model), baked


def _array(x: Any) -> Any:
    return numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x)


def _difference(case: Case, want: Any, got: Any) -> str:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"got {got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    if want.dtype.kind in "iub":
        return "" if np.array_equal(got, want) else "integers differ"
    # The reference results for 16-bit floats are rounded after every step.
    rtol = case.rtol if want.dtype.itemsize > 2 else 2e-2
    close = np.allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=max(case.atol, 1e-6), equal_nan=True
    )
    return "" if close else "numbers differ"


def table() -> Iterator[str]:
    """Lines of a Markdown table: operator, cases passed, cases refused."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for case in cases():
        result = outcomes()[case.name]
        counts[case.operator][0 if result == "pass" else 1 if result == "unsupported" else 2] += 1
    passed, refused, wrong = (sum(c[k] for c in counts.values()) for k in range(3))
    yield "# ONNX node tests"
    yield ""
    yield f"The node tests bundled with onnx {onnx.__version__}, opsets {OLDEST_OPSET} to {NEWEST_OPSET}, through the importer and the reference"
    yield f"interpreter: {passed} pass, {refused} are refused with a message, {wrong} give another result. Made by `backend_cases.py`."
    yield ""
    yield "| operator | pass | refused |"
    yield "|---|---|---|"
    for operator, (good, bad, _) in sorted(counts.items()):
        yield f"| {operator} | {good} | {bad or ''} |"


if __name__ == "__main__":
    print("\n".join(table()))
