"""Compare a compiled library with its source model, run by the model's own framework on random inputs.

ONNX models run in ONNX Runtime where it is installed, else in ONNX's reference evaluator. PyTorch models run
eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.driver.random_inputs import random_inputs, sample_sizes
from tilewright.errors import CompileError, TilewrightError

if TYPE_CHECKING:
    import torch

    from tilewright.runtime.model import CompiledModel

RTOL = 1e-4
ATOL = 1e-5
ROUNDED = {"bf16": 2e-2, "f16": 3e-3}
"""Both tolerances for artifacts of a lower precision: a few times the rounding of one operand."""
OF_DTYPES = {"float64": (1e-9, 1e-10), "float16": (3e-3, 3e-3), "bfloat16": (2e-2, 2e-2)}
"""Relative and absolute tolerances of values by their type; other floats have `RTOL` and `ATOL`."""


def tolerances(dtype: np.dtype, precision: str = "") -> tuple[float, float]:
    """The relative tolerance of a value, and the absolute one as a share of its largest magnitude.

    Args:
        dtype: The value's type.
        precision: The precision that the library was compiled with, of its metadata.
    """
    rtol, atol = OF_DTYPES.get(dtype.name, (RTOL, ATOL))
    least = ROUNDED.get(precision, 0.0)
    return max(rtol, least), max(atol, least)


@dataclass(frozen=True)
class OutputComparison:
    """One output at one set of sizes. Errors are against the source framework; `max_rel` is relative to the
    output's largest magnitude.
    """

    output: str
    sizes: Mapping[str, int]
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    passed: bool
    note: str = ""


@dataclass
class Comparison:
    """All comparisons of one call of `verify`; `reference` names the framework that the library was compared
    with.
    """

    reference: str
    rtol: float
    atol: float
    rows: list[OutputComparison] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return bool(self.rows) and all(row.passed for row in self.rows)

    def text(self) -> str:
        """The comparison as a table of plain text: one line for each output and set of sizes, and a
        verdict.
        """
        lines = [
            f"compared with {self.reference} (rtol {self.rtol:g}, atol {self.atol:g} of the output's "
            "magnitude)"
        ]
        width = max([len(row.output) for row in self.rows], default=0)
        for row in self.rows:
            sizes = ", ".join(f"{k}={v}" for k, v in row.sizes.items())
            verdict = "ok" if row.passed else "DIFFERS"
            lines.append(
                f"  {row.output:<{width}}  {row.shape!s:<18} max abs {row.max_abs:.2e}  max rel "
                f"{row.max_rel:.2e}  "
                f"{verdict}{'  ' + row.note if row.note else ''}{'  [' + sizes + ']' if sizes else ''}"
            )
        failed = sum(not row.passed for row in self.rows)
        lines.append(
            "all outputs agree" if not failed else f"{failed} of {len(self.rows)} comparisons differ"
        )
        return "\n".join(lines)


def compare(
    actual: np.ndarray, expected: np.ndarray, rtol: float = RTOL, atol: float = ATOL
) -> tuple[float, float, bool, str]:
    """Compare one output: (largest absolute error, that over the largest magnitude, verdict, note).

    Floats agree when ``|actual - expected| <= rtol * |expected| + atol * max(1, max |expected|)`` everywhere,
    and infinities and NaNs are in the same places. Integers and booleans must be equal.
    """
    if actual.shape != expected.shape:
        return float("inf"), float("inf"), False, f"shape {actual.shape}, expected {expected.shape}"
    note = "" if actual.dtype == expected.dtype else f"dtype {actual.dtype}, expected {expected.dtype}"
    if not expected.size:
        return 0.0, 0.0, not note, note
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    special = ~np.isfinite(e)
    if not np.array_equal(np.where(np.isfinite(a), 0, a), np.where(special, e, 0), equal_nan=True):
        return float("inf"), float("inf"), False, "infinities or NaNs differ"
    a, e = np.where(special, 0, a), np.where(special, 0, e)
    error = np.abs(a - e)
    magnitude = float(np.abs(e).max())
    largest = float(error.max())
    if expected.dtype.kind in "iub":
        passed = largest == 0
    else:
        passed = bool((error <= rtol * np.abs(e) + atol * max(1.0, magnitude)).all())
    return largest, largest / magnitude if magnitude else largest, passed and not note, note


def verify(
    library: CompiledModel,
    model: object,
    args: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    sizes: Sequence[Mapping[str, int]] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    progress: Callable[..., None] | None = None,
) -> Comparison:
    """Run `library` and `model` on the same random inputs and compare every output.

    Args:
        library: The compiled model.
        model: The model that was given to `tilewright.compile`.
        args: Its example inputs, for a torch module.
        kwargs: Its example inputs by name, for a torch module.
        sizes: Sizes of the dynamic dimensions, one run for each (default: the smallest, a large and a random
            one).
        seed: The seed of the random inputs.
        rtol: Relative tolerance; the default depends on the library's precision.
        atol: Absolute tolerance, as a share of the output's largest magnitude; the default depends on the
            precision.
        progress: Called with the stage, the number of runs done and the number of all.

    Raises:
        CompileError: The model's framework is not installed or cannot run the model.
        TilewrightError: The numbers of outputs differ.
    """
    name, run = source_runner(model, args, kwargs)
    precision = library.metadata.get("precision", "")
    rtol = ROUNDED.get(precision, RTOL) if rtol is None else rtol
    atol = ROUNDED.get(precision, ATOL) if atol is None else atol
    comparison = Comparison(name, rtol, atol)
    changed = [entry["name"] for entry in library.metadata["inputs"] if entry.get("updated")]
    if library.metadata.get("states"):
        library.state.reset()
    chosen = list(sizes) if sizes is not None else sample_sizes(library.metadata, seed=seed)
    for index, assignment in enumerate(chosen):
        if progress is not None:
            progress("verifying", index, len(chosen))
        inputs = random_inputs(library.metadata, assignment, seed + index)
        own = {k: x.copy() for k, x in inputs.items()} if changed else inputs
        try:
            expected = run(own)
        except Exception as error:
            where = ", ".join(f"{k}={v}" for k, v in assignment.items())
            raise CompileError(f"{name} cannot run the model itself ({where}): {error}") from error
        actual = library(*inputs.values())
        actual = actual if isinstance(actual, tuple) else (actual,)
        if len(actual) != len(expected):
            raise TilewrightError(f"the library has {len(actual)} outputs, {name} gives {len(expected)}")
        pairs = [(spec.name, a, e) for spec, a, e in zip(library.outputs, actual, expected, strict=True)]
        for label, a, e in (*pairs, *((f"{k} (updated)", inputs[k], own[k]) for k in changed)):
            a, e = np.asarray(a), np.asarray(e)
            comparison.rows.append(
                OutputComparison(label, dict(assignment), a.shape, *compare(a, e, rtol, atol))
            )
    return comparison


Runner = Callable[[dict[str, np.ndarray]], list[np.ndarray]]


def source_runner(
    model: Any,
    args: Sequence[Any] | Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    threads: int = 0,
) -> tuple[str, Runner]:
    """The name of a model's own framework, and a function that runs the model in it: inputs by name to a list
    of outputs.

    `threads` 0 leaves the framework's default.

    Raises:
        CompileError: It is not a model, or its framework is not installed.
    """
    if isinstance(model, str | Path):
        if Path(model).suffix.lower() != ".pt2":
            return onnx_runner(str(model), threads)
        _needs("torch")
        from ..frontends.torch.archive import load_program

        return torch_runner(load_program(Path(model)), None, None)
    if type(model).__module__.startswith("onnx"):
        return onnx_runner(model.SerializeToString(), threads)
    if isinstance(args, Mapping):
        kwargs = {**args, **(kwargs or {})}
        args = None
    bases = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(model).__mro__}
    if not bases & {"torch.Module", "torch.ExportedProgram"} and callable(model) and not kwargs:
        return function_runner(model)
    return torch_runner(model, args, kwargs)


def _needs(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError:
        raise CompileError(f"running the source model needs {package}: pip install {package}") from None


def onnx_runner(model: str | bytes, threads: int = 0, optimize: bool = True) -> tuple[str, Runner]:
    """Run an ONNX file or serialized model in ONNX Runtime, or in the reference evaluator without it. With
    `optimize` off, ONNX Runtime runs the nodes as they are.
    """
    try:
        import onnxruntime
    except ImportError:
        onnx = _needs("onnx")
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(
            onnx.load(model) if isinstance(model, str) else onnx.load_from_string(model)
        )
        return "the ONNX reference evaluator", lambda inputs: list(evaluator.run(None, inputs))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if threads:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CompileError(f"ONNX Runtime cannot load the model: {error}") from error
    return f"ONNX Runtime {onnxruntime.__version__}", lambda inputs: list(session.run(None, inputs))


def function_runner(function: Callable[..., Any]) -> tuple[str, Runner]:
    """Run a function over `tilewright.Tensor`, or a module of `tilewright.nn`, eagerly, operator by
    operator.
    """
    from ..frontends.trace import Tensor

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        result = function(*(Tensor(array) for array in inputs.values()))
        return [np.asarray(value) for value in (result if isinstance(result, tuple | list) else (result,))]

    return "the function itself", run


def torch_runner(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> tuple[str, Runner]:
    """Run a torch module or an ExportedProgram eagerly; `args` and `kwargs` show where a module's tensors
    go.
    """
    torch = _needs("torch")
    from torch.utils import _pytree as pytree

    from ..frontends.torch.tensors import array_of
    from ..runtime.tensors import like

    if isinstance(model, torch.export.ExportedProgram):
        structure = model.call_spec.in_spec
        example: list[Any] = pytree.tree_leaves(model.example_inputs) if model.example_inputs else []
        if not example:
            names = model.graph_signature.user_inputs
            example = [torch.empty(0) if isinstance(name, str) else name for name in names]
        callee = model.module()
    elif isinstance(model, torch.nn.Module):
        if args is None and kwargs is None:
            raise CompileError("running a torch module needs the example inputs it was compiled with")
        example, structure = pytree.tree_flatten((tuple(args or ()), dict(kwargs or {})))
        callee = model
    else:
        raise CompileError(f"{type(model).__name__} is not a model that can be run for comparison")
    places = [k for k, leaf in enumerate(example) if isinstance(leaf, torch.Tensor)]

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        if len(inputs) != len(places):
            raise CompileError(f"the library has {len(inputs)} inputs, the torch model {len(places)} tensors")
        leaves = list(example)
        for place, array in zip(places, inputs.values(), strict=True):
            leaves[place] = like(np.ascontiguousarray(array), leaves[place])
        call_args, call_kwargs = pytree.tree_unflatten(leaves, structure)
        with torch.no_grad():
            result = callee(*call_args, **call_kwargs)
        return [array_of(t, "a result") for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]

    return f"PyTorch {torch.__version__}", run
