"""`CompiledModel`: the interface of every compiled model in Python, whatever runs it."""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilewright.artifact.trailer import damaged
from tilewright.errors import (
    ArtifactError,
    CompileError,
    DeviceError,
    DivisionError,
    InternalError,
    OutOfRangeError,
    ShapeError,
    TilewrightError,
)
from tilewright.runtime.bound_call import BoundCall
from tilewright.runtime.expressions import evaluate, solve_symbols
from tilewright.runtime.inspection import Inspection
from tilewright.runtime.kernels import KernelDescription, describe_kernels
from tilewright.runtime.nested import Nested
from tilewright.runtime.state import Memory, ModelState
from tilewright.runtime.tensors import DTYPES, dtype_named, like, to_numpy
from tilewright.runtime.timeline import RawCall, Timeline, record_timeline
from tilewright.runtime.updates import prepare_updates


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model."""

    name: str
    """The name of the input or output."""
    dtype: str
    """The element type, in NumPy's spelling."""
    shape: tuple[int | str, ...]
    """The size of each dimension: an integer, or a formula such as ``2 * seq``."""


@dataclass(frozen=True)
class KernelTime:
    """Counters of one kernel: launches, and the wall time of all of them in nanoseconds."""

    name: str
    calls: int
    nanoseconds: int


@dataclass(frozen=True)
class KernelProfile:
    """One kernel in one run.

    `name` is the kernel's, `calls` are its launches; `seconds`, `bytes` moved and arithmetic operations
    (`flops`) are those of all launches together; `locations` are places in the source model. `when` is the
    condition on sizes under which a variant of a kernel runs.
    """

    name: str
    calls: int
    seconds: float
    bytes: int
    flops: int
    locations: tuple[str, ...] = ()
    when: str = ""


_EXCEPTIONS: dict[int, type[TilewrightError]] = {
    1: ShapeError,
    2: ShapeError,
    3: TilewrightError,
    4: ArtifactError,
    5: ArtifactError,
    6: ArtifactError,
    7: TilewrightError,
    8: TilewrightError,
    9: ArtifactError,
    10: OutOfRangeError,
    11: DivisionError,
    12: DeviceError,
}


def exception_for(status: int, message: str) -> TilewrightError:
    """The exception for a `tw_status` and the message of ``tw_last_error()``."""
    return _EXCEPTIONS.get(status, InternalError)(message or f"the runtime failed with status {status}")


class CompiledModel(ABC):
    """A compiled model, called like a function.

    ``model(x, ...)`` takes NumPy arrays, torch tensors, objects with `__dlpack__`, Python numbers and
    sequences. Arguments are given by position in the order of `inputs`, by name, or as one dictionary by
    name. The dictionary is needed for names that have another meaning in a call, such as "out". The result
    has the kind of the first argument: one tensor, or a tuple where the model has several outputs.

    Where the model's own inputs or outputs are lists of tensors or optional (``metadata["nested"]``), calls
    take and return lists and None. `inputs`, `outputs`, `out` and `bind` describe the single tensors.

    A model that draws random numbers has a last input more, the seed (``metadata["seed"]`` is its name). A
    call may leave it out and then draws a new seed.

    The tensors that a model keeps from call to call are in `state`. Inputs that the model changes
    (``updated`` in the metadata) are changed in the tensors that the caller passes. These must be writable
    and share no memory with another argument. Outputs never share memory with inputs.
    """

    metadata: dict[str, Any]
    """The artifact's metadata: inputs, outputs, symbols and their bounds, target, kernels, memory."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def kernels(self) -> dict[str, KernelDescription]:
        """The kernels by name: how each was scheduled, and the knobs that `tilewright.pin` sets."""
        return describe_kernels(self.metadata["kernels"])

    def _describe(self, metadata: dict[str, Any], where: str) -> None:
        self.metadata = metadata
        with damaged(where, "its metadata"):
            self.inputs, self.outputs = (
                tuple(TensorSpec(t["name"], t["dtype"], tuple(t["shape"])) for t in metadata[side])
                for side in ("inputs", "outputs")
            )
            self._names = tuple(spec.name for spec in self.inputs)
            self._dtypes = tuple(dtype_named(spec.dtype) for spec in self.inputs)
            self._late = any(t.get("late", False) for t in metadata["outputs"])
            self._output_dtypes = tuple(dtype_named(spec.dtype) for spec in self.outputs)
            self._nested = Nested.of(metadata)
            self._seed: str | None = metadata.get("seed")
            self._updated = tuple(k for k, t in enumerate(metadata["inputs"]) if t.get("updated", False))
            self._share(metadata, where)

    def _share(self, metadata: dict[str, Any], where: str) -> None:
        """Set up the parts that the functions of a library share."""
        self._turn = threading.RLock()
        """Held during calls of a model with states, and while states are read or written."""
        self._keeps = bool(metadata.get("states"))
        self.state = ModelState(metadata.get("states", ()), self._state_memory, self._turn)
        entries = metadata.get("functions", {"main": metadata})
        self.functions = {
            name: self if name == "main" else self._function(name, e) for name, e in entries.items()
        }

    functions: dict[str, CompiledModel]
    """All functions by name: ``library.functions["decode"](...)``, also ``library.decode(...)``. The library
    itself is "main", if there is such a function. Functions share weights, states and working memory.
    """

    def _function(self, name: str, entry: dict[str, Any]) -> CompiledModel:
        raise ArtifactError(f"function '{name}': this kind of library has one function only")

    if not TYPE_CHECKING:  # for a type checker every misspelled attribute would be a function

        def __getattr__(self, name: str) -> CompiledModel:
            function = self.__dict__.get("functions", {}).get(name)
            if function is None:
                raise AttributeError(f"{type(self).__name__!r} has no attribute or function '{name}'")
            return function

    state: ModelState
    """The tensors that a call writes and the next one reads, by name. They can be read, replaced and
    reset.
    """

    def _state_memory(self) -> Memory:
        raise InternalError("this kind of library keeps no state")

    def after_error(self, name: str, end: Callable[[], None]) -> None:
        """Have `end` called after a failed run, before its error is raised. It ends what the run has begun
        and not waited for, which may still write to the model's memory.

        Args:
            name: A later call with the same name replaces `end`.
            end: A function that raises nothing.

        Raises:
            CompileError: Nothing runs beside the kernels of this kind of library.
        """
        raise CompileError("collective operations run in native libraries only; compile the model for a CPU")

    origin: Any = None
    """The compilation that made the model in this process, with ``ir(level, library)``; None for a loaded
    artifact.
    """
    report: Any = None
    """The compiler's `tilewright.driver.report.Report`; None for a loaded artifact."""

    def ir(self, level: str = "graph") -> str:
        """The model's text at a level of the IR.

        Args:
            level: "graph", "tensor", "loop", "host", or a level of the target's code: "llvm" and "asm" for
                CPUs, "wgsl" for WebGPU. The message about an unknown level lists them.

        Raises:
            ArtifactError: The model was loaded from a file, which contains no IR.
            CompileError: There is no such level.
        """
        if self.origin is None:
            raise ArtifactError(
                "an artifact carries no IR: compile the model with tilewright.compile to look at it"
            )
        text: str = self.origin.ir(level, self)
        return text

    def inspect(self, /, *args: Any, **kwargs: Any) -> Inspection:
        """Run the model and show values inside of it. The model is compiled again with them as results.

        Args:
            *args: The arguments of a call. Strings among them are names of values to show: the path of a
                module stands for its result, ``layers.3.attention``; a path with an operator for that
                operator's result, ``layers.3.attention/softmax``; ``*`` stands for any text, and the last
                value that fits is shown.
            **kwargs: The arguments by name.

        Returns:
            The values by name, and the first NaN or infinity with what it was computed from. The run begins
            with the model's states and leaves them as they are.

        Raises:
            ArtifactError: The model was loaded from a file, which contains no IR, or Python runs a part of
                it.
            CompileError: No value has one of the names; the message has similar ones.
        """
        if self.origin is None:
            raise ArtifactError(
                "values inside are found by compiling again, and an artifact carries no IR: call inspect on "
                "what tilewright.compile returned"
            )
        names = [x for x in args if isinstance(x, str)]
        found: Inspection = self.origin.inspect(
            self, names, [x for x in args if not isinstance(x, str)], kwargs
        )
        return found

    def code_text(self, level: str) -> str | None:
        """The target's code at `level`; None where there is no such level."""
        return None

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        """Write the model as an artifact. A failure leaves no partly written file.

        Args:
            path: The file to write. Its suffix selects the kind of artifact.
            weights: "inside" writes the weights into the file. "beside" writes them to a file
                ``model.weights`` next to it, which is mapped when the artifact is loaded and shared by all
                processes that load it. None keeps the present place; a model just compiled has its weights
                inside.
            prefix: The prefix of the functions in C, in place of ``tw``, so that a program can be linked with
                several models. ``prefix="encoder"`` exports ``encoder_run`` and writes ``encoder.h``.

        Returns:
            The path of the artifact.

        Raises:
            ArtifactError: A file cannot be written, or the weights cannot go to that place.
        """
        raise ArtifactError(f"{path}: this kind of library cannot be saved")

    def symbols_of(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The values of the symbolic dimensions for inputs of these shapes, in the order of `inputs`.

        Raises:
            ShapeError: A size contradicts the declaration or another input.
        """
        return solve_symbols(self.metadata.get("solver", ()), self._names, shapes)

    def profile(self, /, *args: object, repeat: int = 10, **kwargs: object) -> list[KernelProfile]:
        """Time every kernel over several runs.

        Args:
            *args: Inputs, as for a call of the model.
            repeat: The number of runs whose times are averaged. One run before them is not measured.
            **kwargs: Inputs by name, as for a call of the model.

        Returns:
            Per kernel the average seconds of one run with its bytes and arithmetic operations, slowest first.

        Raises:
            ShapeError: An input does not fit the model.
            TilewrightError: The target's runtime does not measure kernels.
        """
        arrays = self._arrays(args, kwargs)
        symbols = self.symbols_of([a.shape for a in arrays])
        self(*arrays)  # the first run allocates memory and starts threads
        total: dict[str, KernelTime] = {}
        for _ in range(repeat):
            for row in self.profile_raw(*arrays):
                known = total.get(row.name, KernelTime(row.name, 0, 0))
                total[row.name] = KernelTime(row.name, row.calls, known.nanoseconds + row.nanoseconds)
        rows = []
        for kernel in self.metadata.get("kernels", []):
            row = total[kernel["name"]]
            if not row.calls:
                continue  # a kernel of another function
            flops, moved = (evaluate(kernel[k], symbols) * row.calls for k in ("flops", "bytes"))
            rows.append(
                KernelProfile(
                    row.name,
                    row.calls,
                    row.nanoseconds * 1e-9 / repeat,
                    moved,
                    flops,
                    tuple(kernel["locations"]),
                    kernel.get("when", ""),
                )
            )
        return sorted(rows, key=lambda row: -row.seconds)

    def profile_raw(self, /, *args: object, **kwargs: object) -> list[KernelTime]:
        """Run once and measure every kernel; return launches and nanoseconds in the metadata's order.

        Args:
            *args: Inputs, as for a call of the model.
            **kwargs: Inputs by name, as for a call of the model.

        Raises:
            TilewrightError: The target's runtime does not measure kernels.
        """
        raise TilewrightError("this target's runtime does not measure kernels")

    def timeline(self, /, *args: object, repeat: int = 10, cold: bool = False, **kwargs: object) -> Timeline:
        """Time each launch of a call, with the operators, the layer and the line of the model that it
        computes.

        Args:
            *args: Inputs, as for a call of the model.
            repeat: The number of calls, of which the one with the median time is returned. One call before
                each of them is not measured.
            cold: Whether each call finds caches that hold other data: a block of memory larger than the
                caches is written before it.
            **kwargs: Inputs by name, as for a call of the model.

        Raises:
            ShapeError: An input does not fit the model.
            TilewrightError: The target's runtime does not measure launches.
        """
        arrays = self._arrays(args, kwargs)
        return record_timeline(self, arrays, repeat, cold)

    def _arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[np.ndarray]:
        """The inputs of a call as arrays, in order."""
        args, kwargs = _from_dictionary(args, kwargs)
        values = self._in_order(args, kwargs) if kwargs or len(args) != len(self._names) else args
        return [to_numpy(v, n, d) for v, n, d in zip(values, self._names, self._dtypes, strict=True)]

    def call_raw(self, /, *args: object, **kwargs: object) -> RawCall:
        """Run once and measure the call, each launch, and the threads' parts in it.

        Args:
            *args: Inputs, as for a call of the model.
            **kwargs: Inputs by name, as for a call of the model.

        Raises:
            TilewrightError: The target's runtime does not measure launches.
        """
        raise TilewrightError(
            "this library's runtime does not measure launches: compile the model again, with this version "
            "and for a native target"
        )

    @abstractmethod
    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        """Run on contiguous arrays; fill `out`, or return new arrays."""

    @abstractmethod
    def close(self) -> None:
        """Free the model's memory and threads. Later calls raise `ArtifactError`. May be called twice."""

    def __call__(self, /, *args: object, out: object = None, **kwargs: object) -> Any:
        """Run the model once.

        Args:
            args: Inputs by position, or one dictionary of all inputs by name.
            out: A NumPy array or torch tensor, or a tuple of them, to fill and return in place of new ones.
                They are contiguous and of exactly the outputs' shapes and data types. A tensor that shares
                memory with an input is filled after the run.
            kwargs: Inputs by name.

        Returns:
            One tensor, or a tuple of them, of the kind of the first argument.

        Raises:
            ShapeError: An argument is missing, unknown, or of the wrong data type, rank or size; or tensors
                of `out` overlap each other.
            OutOfRangeError: An index of the model lies outside of its dimension.
            DivisionError: The model divides an integer by zero.
            DeviceError: The device's driver reports an error; devices only.
            ArtifactError: The library is closed, or there is not enough memory.
        """
        values = self._values(args, kwargs)
        arrays = [to_numpy(v, n, d) for v, n, d in zip(values, self._names, self._dtypes, strict=True)]
        finish = prepare_updates(values, arrays, self._updated, self._names) if self._updated else None
        for array, spec in zip(arrays, self.inputs, strict=True):
            if array.dtype not in DTYPES and spec.dtype != "string":
                raise ShapeError(f"input '{spec.name}': expected {spec.dtype}, got {array.dtype}")
        targets = None if out is None else self._targets(out)
        filled = None if targets is None else self._apart(targets, arrays)
        results = self._execute(arrays, filled)
        if finish is not None:
            finish()
        if targets is not None and filled is not None:
            for target, array in zip(targets, filled, strict=True):
                if array is not target:
                    target[...] = array
            return out
        if values and type(values[0]) is not np.ndarray:
            results = [r if r.dtype.kind == "O" else like(r, values[0]) for r in results]
        if self._nested is not None:
            return self._nested.unflatten(results)
        return results[0] if len(results) == 1 else tuple(results)

    def _values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The tensors of a call in the artifact's order."""
        self._refuse_without_main()
        args, kwargs = _from_dictionary(args, kwargs)
        if self._seed is not None and self._seed not in kwargs:
            expected = len(self._names if self._nested is None else self._nested.inputs)
            if len(args) < expected and len(args) != len(self._names):
                kwargs = {**kwargs, self._seed: secrets.randbits(63)}
        if self._nested is not None and (kwargs or not self._nested.is_flat(args, len(self._names))):
            args, kwargs = self._nested.flatten(args, kwargs), {}
        return self._in_order(args, kwargs) if kwargs or len(args) != len(self._names) else args

    def bind(self, /, *args: object, out: object = None, **kwargs: object) -> BoundCall:
        """Check and prepare a call for many runs: shapes, data types and memory are checked here only.

        Args:
            args: Inputs by position, or one dictionary of all inputs by name: contiguous tensors on the CPU,
                whose memory the runs read in place.
            out: The tensors that runs fill, which share no memory with the inputs. By default the model runs
                once to make them.
            kwargs: Inputs by name.

        Returns:
            A `BoundCall`. ``call()`` runs the model on the present contents of the inputs.

        Raises:
            ShapeError: As `__call__`, and where a tensor would have to be copied or tensors overlap.
        """
        self._refuse_without_main()
        self._refuse_late("bound")
        args, kwargs = _from_dictionary(args, kwargs)
        values = self._in_order(args, kwargs)
        arrays = [to_numpy(v, n, d) for v, n, d in zip(values, self._names, self._dtypes, strict=True)]
        for array, value, spec in zip(arrays, values, self.inputs, strict=True):
            if not _same_memory(array, value):
                raise ShapeError(
                    f"input '{spec.name}': only a contiguous tensor of {spec.dtype} in memory can be bound"
                )
        if self._updated:
            prepare_updates(values, arrays, self._updated, self._names)
        has_run = out is None
        if has_run:
            out = tuple(self._execute(arrays, None)) if self._nested is not None else self(*values)
        targets = self._targets(out)
        for index, target in enumerate(targets):
            for other in (*arrays, *targets[:index]):
                if np.may_share_memory(target, other):
                    raise ShapeError(
                        f"output '{self.outputs[index].name}': 'out' overlaps another tensor of the call"
                    )
        return self._bound(values, out, arrays, targets, has_run)

    def _bound(
        self,
        inputs: tuple[Any, ...],
        out: object,
        arrays: list[np.ndarray],
        targets: list[np.ndarray],
        has_run: bool,
    ) -> BoundCall:
        """The bound call of these tensors. `arrays` and `targets` share the memory of `inputs` and `out`;
        `has_run` says that `out` comes from a run.
        """

        def run() -> int:
            self._execute(arrays, targets)
            return 0

        if not has_run:
            run()  # reports errors now
        return BoundCall(inputs, out, run)

    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        names = self._names
        listing = ", ".join(f"'{name}'" for name in names)
        if len(args) > len(names):
            raise ShapeError(f"the model has {len(names)} inputs ({listing}), got {len(args)} arguments")
        for name in kwargs:
            if name not in names:
                raise ShapeError(f"the model has no input '{name}'; its inputs are {listing}")
            if name in names[: len(args)]:
                raise ShapeError(f"input '{name}' is given twice, by position and by name")
        missing = [name for name in names[len(args) :] if name not in kwargs]
        if missing:
            hint = "".join(
                f"; '{name}=' is an option of the call: {BY_NAME}" for name in missing if name in _OPTIONS
            )
            raise ShapeError(
                f"missing input {', '.join(repr(name) for name in missing)}; the inputs are {listing}{hint}"
            )
        return (*args, *(kwargs[name] for name in names[len(args) :]))

    def _refuse_without_main(self) -> None:
        if self not in self.functions.values():
            names = ", ".join(f"'{name}'" for name in self.functions)
            raise ShapeError(
                f"the library has no function 'main'; its functions are {names}: call "
                "library.functions[...](...)"
            )

    def _refuse_late(self, what: str) -> None:
        for spec, entry in zip(self.outputs, self.metadata["outputs"], strict=True):
            if entry.get("late", False):
                shape = ", ".join(map(str, spec.shape))
                raise ShapeError(
                    f"output '{spec.name}' ({shape}) has a size known only after the run: it cannot be {what}"
                )

    def _targets(self, out: object) -> list[np.ndarray]:
        self._refuse_late("given as 'out'")
        given = out if isinstance(out, tuple | list) else (out,)
        if len(given) != len(self.outputs):
            raise ShapeError(f"the model has {len(self.outputs)} outputs, got {len(given)} tensors in 'out'")
        targets = []
        for tensor, spec, dtype in zip(given, self.outputs, self._output_dtypes, strict=True):
            if isinstance(tensor, np.ma.MaskedArray):
                raise ShapeError(
                    f"output '{spec.name}': 'out' is a masked array; give the array behind it (.data)"
                )
            array = to_numpy(tensor, spec.name, dtype)
            if array.dtype not in DTYPES or not array.flags.writeable or not _same_memory(array, tensor):
                raise ShapeError(
                    f"output '{spec.name}': 'out' must be a writable, contiguous tensor of {spec.dtype}"
                )
            if array.ndim != len(spec.shape):
                raise ShapeError(
                    f"output '{spec.name}': expected {len(spec.shape)} dimensions, got {array.ndim}"
                )
            targets.append(array)
        return targets

    def _apart(self, targets: list[np.ndarray], arrays: list[np.ndarray]) -> list[np.ndarray]:
        """`targets`, with new arrays in place of those that share memory with an input, since a model may
        read an input after it has begun to write an output.

        Raises:
            ShapeError: An output overlaps another one, or an input that the model changes.
        """
        separate = []
        for index, target in enumerate(targets):
            name = self.outputs[index].name
            for k, other in enumerate(targets[:index]):
                if np.may_share_memory(target, other):
                    raise ShapeError(
                        f"output '{name}': 'out' overlaps that of output '{self.outputs[k].name}'"
                    )
            for k in self._updated:
                if np.may_share_memory(target, arrays[k]):
                    raise ShapeError(
                        f"output '{name}': 'out' overlaps input '{self._names[k]}', which the model changes"
                    )
            shared = any(np.may_share_memory(target, array) for array in arrays)
            separate.append(np.empty_like(target) if shared else target)
        return separate

    def __enter__(self) -> CompiledModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a compiled model cannot be pickled: save() it and tilewright.load() the file in the other "
            "process"
        )


_OPTIONS = ("out", "repeat")
"""Arguments of calls and of `profile` that are not inputs."""

BY_NAME = "give inputs by position, or all as one dictionary by name"


def _from_dictionary(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call; a single dictionary by position becomes arguments by name."""
    if len(args) != 1 or not isinstance(args[0], Mapping):
        return args, kwargs
    if twice := sorted(set(args[0]) & set(kwargs)):
        raise ShapeError(f"input '{twice[0]}' is given twice, in the dictionary and by name")
    return (), {**args[0], **kwargs}


def goes_beside(path: str | Path, weights: str | None) -> bool:
    """Whether `CompiledModel.save` writes the weights beside the artifact, from its argument `weights`.

    Raises:
        ArtifactError: The argument is neither None, "inside" nor "beside".
    """
    if weights not in (None, "inside", "beside"):
        raise ArtifactError(f"{path}: weights={weights!r} must be 'inside' or 'beside'")
    return weights == "beside"


class LibraryFunction(CompiledModel):
    """One function of a library of several."""

    def __init__(self, library: Any, name: str, index: int, entry: dict[str, Any]) -> None:
        """The library makes its functions; `CompiledModel.functions` contains them.

        Args:
            library: The library that the function belongs to.
            name: The name of the function.
            index: The function's number at run time.
            entry: The function's part of the library's metadata.
        """
        self.library, self.name, self.index = library, name, index
        shared = {k: v for k, v in library.metadata.items() if k not in ("functions", "seed", "nested")}
        self._describe({**shared, **entry}, name)

    def _share(self, metadata: dict[str, Any], where: str) -> None:
        self._turn, self._keeps, self.state = self.library._turn, self.library._keeps, self.library.state
        self.functions = {self.name: self}

    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        results: list[np.ndarray] = self.library._execute_function(self, arrays, out)
        return results

    def ir(self, level: str = "graph") -> str:
        """The text of the whole library; see `CompiledModel.ir`."""
        text: str = self.library.ir(level)
        return text

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        """Write the whole library; see `CompiledModel.save`."""
        saved: Path = self.library.save(path, weights=weights, prefix=prefix)
        return saved

    def close(self) -> None:
        """Close the whole library."""
        self.library.close()

    def __repr__(self) -> str:
        signature = ", ".join(f"{s.name}: {s.dtype}[{', '.join(map(str, s.shape))}]" for s in self.inputs)
        return f"LibraryFunction({self.name!r}, {signature})"


def _same_memory(array: np.ndarray, tensor: object) -> bool:
    """Whether `array`, made by `to_numpy` from `tensor`, shares its memory and is not a copy."""
    again = tensor if isinstance(tensor, np.ndarray) else to_numpy(tensor, "out", array.dtype)
    return array.size == 0 or array.ctypes.data == again.ctypes.data
