"""The exceptions that users of Tilewright meet, and the optional packages whose absence some of them report.

All exceptions derive from `TilewrightError`, so one `except` catches them. Each message names the object, its
place and a remedy.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = [
    "OPTIONAL_PACKAGES",
    "ArtifactError",
    "CompileError",
    "DeviceError",
    "DimsWarning",
    "DivisionError",
    "EngineError",
    "GradientError",
    "InternalError",
    "KernelError",
    "OutOfRangeError",
    "OverloadedError",
    "ReplaceWarning",
    "RequestError",
    "ScheduleMismatchError",
    "ShapeError",
    "SizeError",
    "TilewrightError",
    "TrainingError",
    "TunedWarning",
    "UnsupportedOperator",
    "UnsupportedOperatorError",
    "WeightsError",
    "internal_errors",
    "is_installed",
    "missing_package",
]


class TilewrightError(Exception):
    """The base class of all errors that Tilewright reports."""


class CompileError(TilewrightError):
    """The model cannot be compiled for the target as it is, or an option is wrong."""


class GradientError(CompileError):
    """A derivative does not exist: operators without a gradient, a result that is no scalar or that has no
    floating-point elements.
    """


class KernelError(CompileError):
    """A kernel of the user's is wrong: its description, its source code or its results."""


class ScheduleMismatchError(CompileError):
    """A schedule changes what a kernel computes. The `message` names the element and how to see it again.

    Attributes:
        output: The number of the output that differs; None where the kernel accesses an element outside of a
            buffer.
        element: The index of the first element that differs.
        blocks: The blocks that compute the output.
        order: The number of the order of iterations that shows it; 0 is the plain order.
    """

    def __init__(
        self,
        message: str,
        output: int | None = None,
        element: tuple[int, ...] = (),
        blocks: tuple[str, ...] = (),
        order: int = 0,
    ) -> None:
        super().__init__(message)
        self.output, self.element, self.blocks, self.order = output, element, blocks, order


class DimsWarning(UserWarning):
    """A compiled model accepts fewer sizes than `dims` asked for."""


class ReplaceWarning(UserWarning):
    """A kernel of the option `replace` takes the place of nothing in the model."""


class TunedWarning(UserWarning):
    """A database of measured choices has damaged lines, nothing for this machine, or choices that this
    version compiles to other code.
    """


class SizeError(CompileError, ValueError):
    """The model declares or computes a tensor or dimension that is too large."""


@dataclass(frozen=True)
class UnsupportedOperator:
    """An operator without a translation."""

    operator: str
    """The name of the operator."""
    count: int
    """The number of places in the model."""
    locations: tuple[str, ...] = ()
    """The places."""
    hint: str = ""
    """Why it has no translation."""
    instead: str = ""
    """A way around the operator."""

    def __str__(self) -> str:
        shown = ", ".join(self.locations[:3])
        more = f" and {self.count - 3} more" if len(self.locations) > 3 else ""
        where = f": {shown}{more}" if shown else ""
        hint = f"\n      {self.hint}" if self.hint else ""
        instead = f"\n      instead: {self.instead}" if self.instead else ""
        return f"{self.operator} ({self.count}x){where}{hint}{instead}"


class UnsupportedOperatorError(CompileError):
    """The model uses operators that the compiler, or the `target`, does not support; `operators` lists all of
    them.
    """

    def __init__(self, operators: Sequence[UnsupportedOperator], target: str = "") -> None:
        self.operators = tuple(operators)
        listing = "\n".join(f"  - {operator}" for operator in self.operators)
        noun = "operator" if len(self.operators) == 1 else "operators"
        head = (
            f"target {target} cannot run the model"
            if target
            else f"the model uses {len(self.operators)} unsupported {noun}"
        )
        super().__init__(f"{head}:\n{listing}")

    def __reduce__(self) -> Any:
        return _again, (str(self), self.operators)


def _again(message: str, operators: tuple[UnsupportedOperator, ...]) -> UnsupportedOperatorError:
    error = UnsupportedOperatorError(operators)
    error.args = (message,)
    return error


class ShapeError(TilewrightError, ValueError):
    """An argument's name, rank, shape or data type does not fit the model."""


class OutOfRangeError(TilewrightError, IndexError):
    """An index in a run of a model lies outside of its dimension."""


class DeviceError(TilewrightError):
    """The driver of a device is missing, has no such device, or reports an error."""


class DivisionError(TilewrightError, ZeroDivisionError):
    """A run of a model divided an integer by zero."""


class ArtifactError(TilewrightError):
    """A compiled file cannot be written, read or run on this machine."""


class WeightsError(TilewrightError):
    """A file of weights is incomplete, has an unknown format, or does not fit its model."""


class TrainingError(TilewrightError):
    """A training step cannot go on: its loss or a gradient is not finite. Parameters and the optimizer's
    state are those of the step before.
    """


class RequestError(TilewrightError, ValueError):
    """A request to a language model is not valid: too long a prompt, a wrong grammar, a parameter out of its
    range.
    """


class OverloadedError(TilewrightError):
    """The engine accepts no request now: its queue is full, or it is stopping."""


class EngineError(TilewrightError):
    """A request failed while it was served, without an error of its own."""


class InternalError(TilewrightError):
    """A bug of the compiler, or of a pass or an operator that is defined outside of it.

    `elsewhere` is a sentence that names the definition outside; without it the message asks for a report.
    """

    def __init__(self, message: str, elsewhere: str = "") -> None:
        blame = elsewhere or "This is a bug in Tilewright, not in your model. Please report it."
        super().__init__(f"{message}\n{blame}")


OPTIONAL_PACKAGES: Mapping[str, tuple[str, str]] = {
    "onnx": ("'tilewright[onnx]'", "ONNX models"),
    "torch": ("'tilewright[torch]'", "PyTorch models"),
    "jax": ("'tilewright[jax]'", "JAX models and StableHLO"),
    "jaxlib": ("'tilewright[jax]'", "JAX models and StableHLO"),
    "tensorflow": ("'tilewright[tensorflow]'", "TensorFlow SavedModels"),
    "wgpu": ("'tilewright[webgpu]'", "running artifacts for the target webgpu"),
    "wasmtime": ("wasmtime", "running artifacts for the target wasm32"),
    "safetensors": ("'tilewright[nn]'", "files of weights"),
    "sklearn": ("'tilewright[tune]'", "tuning"),
    "distributed": ("'tilewright[tune-distributed]'", "tuning on several machines"),
    **dict.fromkeys(
        (
            "h11",
            "httpx",
            "jinja2",
            "llguidance",
            "prometheus_client",
            "pydantic",
            "starlette",
            "tokenizers",
            "uvicorn",
        ),
        ("'tilewright[llm]'", "language models"),
    ),
    "transformers": ("transformers", "models of Hugging Face"),
    "onnxruntime": ("onnxruntime", "running ONNX models for comparison"),
    "onnxscript": ("onnxscript", "exporting PyTorch models to ONNX"),
    "threadpoolctl": ("threadpoolctl", "comparing with other engines"),
}
"""Optional packages by the name that is imported: the argument of ``pip install``, and the purpose."""


def is_installed(name: str) -> bool:
    """Whether the package `name` can be found; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # another object takes the module's place in this process
        return False


def missing_package(error: ImportError) -> str | None:
    """The message for `error`, a failed import of an optional package; None for any other import."""
    name = (error.name or "").partition(".")[0]
    if name not in OPTIONAL_PACKAGES:
        return None
    install, purpose = OPTIONAL_PACKAGES[name]
    if isinstance(error, ModuleNotFoundError):
        return f"the package {name}, for {purpose}, is not installed: pip install {install}"
    return (
        f"the package {name} is installed, but cannot be imported ({error}): "
        f"pip install --force-reinstall {install}"
    )


@contextmanager
def internal_errors() -> Iterator[None]:
    """Report an unexpected exception inside the block as an `InternalError`.

    Errors of this module and `MemoryError` pass unchanged.

    Raises:
        CompileError: An optional package is not installed or cannot be imported; the message says how to
            install it.
        InternalError: Any other exception left the block.
    """
    try:
        yield
    except (TilewrightError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, ImportError) and (absent := missing_package(error)) is not None:
            raise CompileError(absent) from error
        raise InternalError(f"{type(error).__name__}: {error}") from error
