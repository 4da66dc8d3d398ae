"""`Module`: a function on tensors with parameters, that runs at once and compiles as it stands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CompileError, ShapeError
from ...ir.constant import Constant
from ...ir.types import DType, TensorType
from ..trace import Tensor, TraceError
from ..trace.dtypes import dtype_of
from ..trace.tracing import current, user_location


class Parameter(Tensor):
    """A tensor that training changes; other tensors of a module are buffers, which only belong to its state."""

    __slots__ = ()


class Placeholder(Parameter):
    """A parameter of which only shape and data type are known. A parameter with elements takes its place before the module runs.

    Raises (on any use of its elements):
        CompileError: none has.
    """

    __slots__ = ("_type",)

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        self._value, self._type = None, TensorType(dtype_of(dtype), tuple(shape))

    @property
    def type(self) -> TensorType:
        return self._type

    @property
    def shape(self) -> tuple[Any, ...]:
        return self._type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self._type.dtype.numpy
        return found

    @property
    def _array(self) -> Any:  # type: ignore[override]
        raise CompileError(
            f"a parameter of shape {self.shape} has no elements yet: load weights first (at {user_location('')})"
        )


class Deferred(Tensor):
    """A tensor whose elements are made when somebody needs them, and not kept: a weight that is only there to be compiled.

    `constant` makes them, see `Constant.made`. What a trace does to it becomes part of the traced function.
    """

    __slots__ = ("constant",)
    _lazy = True

    def __init__(self, constant: Constant) -> None:
        self._value, self.constant = None, constant

    @property
    def type(self) -> TensorType:
        return self.constant.type

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.constant.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.constant.numpy_dtype

    @property
    def _array(self) -> Any:  # type: ignore[override]
        return self.constant.array

    @property
    def _data(self) -> Constant:
        return self.constant


_wanted = threading.local()


@contextmanager
def placeholders(dtype: Any = float) -> Iterator[None]:
    """Modules made inside get parameters of `dtype` without elements: nothing is drawn or allocated. `Module.load_state_dict` gives them some."""
    before, _wanted.dtype = getattr(_wanted, "dtype", None), dtype_of(dtype)
    try:
        yield
    finally:
        _wanted.dtype = before


def parameter(shape: Sequence[int], elements: Callable[[tuple[int, ...]], Any]) -> Parameter:
    """A float32 parameter with `elements` of its shape; inside `placeholders` one without."""
    sizes = tuple(shape)
    dtype: DType | None = getattr(_wanted, "dtype", None)
    return Parameter(elements(sizes), float) if dtype is None else Placeholder(sizes, dtype)


class Module:
    """Base of modules: set parameters (`Parameter`), buffers (`Tensor`) and modules as attributes, and write ``forward``.

    Calling the module calls ``forward``. `tw.jit(module)` and `tw.compile(module, args)` trace the same ``forward``; its parameters
    are constants of the compiled model. What a trace read of a module is noted, so that `tw.jit` notices when it has been replaced.
    """

    def __init__(self) -> None:
        self.training = True

    # Attributes lie in one dictionary of their own, so that a trace sees each that is read.

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.is_traced:
            raise TraceError(
                f"{type(self).__name__}.{name} is set to a value of the run; a compiled function keeps none: return it, or keep it in a tw.State (at {user_location('')})"
            )
        if isinstance(value, Module):
            object.__setattr__(value, "_owner", (self, name))
        self.__dict__.setdefault("_state", {})[name] = value

    def __getattr__(self, name: str) -> Any:
        state = self.__dict__.get("_state", {})
        if name not in state:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        trace = current()
        if trace is not None:
            trace.observed[id(self), name] = self, name, state[name]
        return state[name]

    def __delattr__(self, name: str) -> None:
        del self.__dict__["_state"][name]

    def holds(self, name: str, value: Any) -> bool:
        """Whether an attribute is still this very value."""
        return self.__dict__["_state"].get(name) is value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    @property
    def path(self) -> str:
        """The dotted names that lead here from the outermost module."""
        owner, name = self.__dict__.get("_owner", (None, ""))
        above = owner.path if owner is not None else ""
        return f"{above}.{name}" if above else name

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        trace = current()
        if trace is None:
            return self.forward(*args, **kwargs)
        trace.path.append(self.path)
        try:
            return self.forward(*args, **kwargs)
        finally:
            trace.path.pop()

    # -- Modules, parameters, buffers --------------------------------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Modules that are attributes, by name."""
        return ((n, v) for n, v in self.__dict__.get("_state", {}).items() if isinstance(v, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all inside it, by dotted path."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        return (m for _, m in self.named_modules())

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules():
            for name, value in module.__dict__.get("_state", {}).items():
                if isinstance(value, Tensor):
                    yield f"{path}.{name}" if path else name, value

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Parameters by dotted path."""
        return ((n, t) for n, t in self._named_tensors() if isinstance(t, Parameter))

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Tensors that are no parameters, by dotted path."""
        return ((n, t) for n, t in self._named_tensors() if not isinstance(t, Parameter))

    def parameters(self) -> Iterator[Parameter]:
        return (t for _, t in self.named_parameters())

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Parameters and buffers as (read-only) arrays by dotted path."""
        return {n: t.numpy() for n, t in self._named_tensors()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Replace parameters and buffers by arrays or torch tensors of the same shapes, converted to the data types they have here.

        Raises:
            CompileError: names are missing or unknown (not `strict`: they are passed over).
            ShapeError: a shape differs.
        """
        own = dict(self._named_tensors())
        # torch counts batches beside the statistics; nothing here reads that.
        given = {n: v for n, v in state.items() if n in own or not n.endswith("num_batches_tracked")}
        missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
        if strict and (missing or unknown):
            raise CompileError(f"the state does not fit {type(self).__name__}: missing {missing}; unknown {unknown}")
        found = {}
        for name in own.keys() & given.keys():
            kind = Parameter if isinstance(own[name], Parameter) else Tensor
            found[name] = kind(given[name], own[name].dtype)
            if found[name].shape != own[name].shape:
                raise ShapeError(f"{name} is {own[name].shape} here and {found[name].shape} in the state")
        modules = dict(self.named_modules())
        for name, value in found.items():
            path, _, attribute = name.rpartition(".")
            setattr(modules[path], attribute, value)

    def save(self, path: str | Path) -> None:
        """Write the state to a `.safetensors` file (package `safetensors`)."""
        _safetensors().save_file({n: np.ascontiguousarray(a) for n, a in self.state_dict().items()}, path)

    def load(self, path: str | Path, strict: bool = True) -> None:
        """Take the state from a `.safetensors` file; see `load_state_dict`.

        Raises:
            CompileError: the file is none such, or names do not fit.
            ShapeError: a shape differs.
        """
        library = _safetensors()
        if not Path(path).exists():
            raise CompileError(f"{path}: no such file")
        try:
            state = library.load_file(path)
        except Exception as error:  # the library's own, of no common kind
            raise CompileError(f"{path}: not a whole safetensors file: {error}") from None
        self.load_state_dict(state, strict)

    # -- Mode --------------------------------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Module:
        """Training mode, here and in all modules inside: dropout drops, batch normalization uses the batch's statistics."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """The mode for use, which is also the one that compiles."""
        return self.train(False)

    def __repr__(self) -> str:
        inside = [f"  ({n}): " + repr(m).replace("\n", "\n  ") for n, m in self.named_children()]
        extra = self.extra_repr()
        return f"{type(self).__name__}({extra}" + ("\n" + "\n".join(inside) + "\n" if inside else "") + ")"

    def extra_repr(self) -> str:
        """What `repr` shows between the brackets."""
        return ", ".join(
            f"{n}={tuple(v.shape)}" for n, v in self.__dict__.get("_state", {}).items() if isinstance(v, Tensor)
        )


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise CompileError("weights are kept in safetensors files: pip install safetensors") from None
    return safetensors.numpy


class ModuleList(Module):
    """Modules in a list."""

    def __init__(self, modules: Any = ()) -> None:
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> ModuleList:
        setattr(self, str(len(self)), module)
        return self

    def __len__(self) -> int:
        return sum(1 for _ in self.named_children())

    def __iter__(self) -> Iterator[Module]:
        return (getattr(self, name) for name, _ in list(self.named_children()))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"no module {index} among {len(self)}")
        return getattr(self, str(index % len(self)))

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, str(range(len(self))[index]), module)


class Sequential(ModuleList):
    """Modules called one after the other."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


__all__ = ["Module", "ModuleList", "Parameter", "Placeholder", "Sequential", "parameter", "placeholders"]
