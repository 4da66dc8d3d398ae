"""`Module`: a function on tensors with parameters, which runs at once and can be compiled unchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CompileError, ShapeError
from ...ir.constant import Constant
from ...ir.types import DType, TensorType
from ..trace import Tensor, TraceError
from ..trace.dtypes import DTypeLike, dtype_of
from ..trace.tensor import concrete
from ..trace.tracing import current, user_location


class Parameter(Tensor):
    """A tensor of a module that training changes; other tensors of a module are buffers.

    Args:
        data: The elements, as of `Tensor`.
        dtype: The element type to convert to; None keeps that of `data`.
    """

    __slots__ = ()


class Placeholder(Parameter):
    """A parameter with a shape and an element type, but no elements: `Module.load_state_dict` replaces it
    before the module runs.

    Raises:
        CompileError: Its elements are used.
    """

    __slots__ = ("_type",)

    def __init__(self, shape: Sequence[int], dtype: DTypeLike) -> None:
        self._value, self._type = None, TensorType(dtype_of(dtype), tuple(shape))

    @property
    def type(self) -> TensorType:
        return self._type

    @property
    def shape(self) -> tuple[Any, ...]:
        return self._type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self._type.dtype.numpy
        return dtype

    @property
    def key(self) -> int:
        return id(self)

    @property
    def _array(self) -> Any:
        raise CompileError(
            f"a parameter of shape {self.shape} has no values yet: load weights first (at "
            f"{user_location('')})"
        )


class Deferred(Tensor):
    """A tensor of any shape whose elements are computed on demand and not kept: a weight that is only
    compiled.

    A trace records the operators on it as part of the traced function.

    Args:
        constant: The element type, the shape and the function that computes the elements; see
            `Constant.made`.
    """

    __slots__ = ("constant",)
    _lazy = True

    def __init__(self, constant: Constant) -> None:
        self._value, self.constant = None, constant

    @property
    def type(self) -> TensorType:
        """The element type and shape of the tensor."""
        return self.constant.type

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.constant.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type as a NumPy dtype."""
        return self.constant.numpy_dtype

    @property
    def key(self) -> int:
        """A number that is the tensor's own."""
        return id(self)

    @property
    def _array(self) -> Any:
        return self.constant.array

    @property
    def _data(self) -> Constant:
        return self.constant


_collecting = threading.local()


@contextmanager
def buffer_updates() -> Iterator[dict[str, Tensor]]:
    """Collect the new values of buffers that modules compute inside the block, such as the running statistics
    of `BatchNorm2d` in training mode. The modules keep the old values.

    A compiled training step returns what it collects, or writes it to states:

        def step(x, y):
            with nn.buffer_updates() as buffers:
                loss, gradients = tw.value_and_grad(objective)(model, x, y)
            return loss, gradients, buffers

    Returns:
        A dictionary of tensors, in the buffers' shapes and types, by their dotted paths, as
        `Module.named_buffers` gives them for the outermost module. It is filled inside the block. A module
        that is called again in the block continues with its new values.
    """
    stack = _collecting.__dict__.setdefault("stack", [])
    found: dict[str, Tensor] = {}
    stack.append((found, _depth()))
    try:
        yield found
    finally:
        stack.pop()


def _depth() -> int:
    """How many branches and loop bodies are around the current place of the trace."""
    trace = current()
    return len(trace.builders) - 1 if trace is not None else 0


_wanted = threading.local()


@contextmanager
def placeholders(dtype: DTypeLike = float) -> Iterator[None]:
    """Make modules whose parameters have no elements: inside the block nothing is drawn or allocated.

    `Module.load_state_dict` supplies the elements.

    Args:
        dtype: The element type of the parameters.

    Raises:
        TypeError: There is no such element type.
    """
    before, _wanted.dtype = getattr(_wanted, "dtype", None), dtype_of(dtype)
    try:
        yield
    finally:
        _wanted.dtype = before


def parameter(shape: Sequence[int], elements: Callable[[tuple[int, ...]], Any]) -> Parameter:
    """Return a float32 parameter with ``elements(shape)``; inside `placeholders` one without elements.

    Args:
        shape: The size of each dimension.
        elements: A function from the shape to an array of it.
    """
    sizes = tuple(shape)
    dtype: DType | None = getattr(_wanted, "dtype", None)
    return Parameter(elements(sizes), float) if dtype is None else Placeholder(sizes, dtype)


class Module:
    """Base class of modules. Assign parameters (`Parameter`), buffers (`Tensor`) and modules as attributes,
    and define ``forward``.

    A call of the module calls ``forward``. `tw.jit(module)` and `tw.compile(module, args)` trace the same
    ``forward``; the module's parameters become constants of the compiled model. A trace notes the attributes
    it reads, so `tw.jit` compiles again when one is replaced.

    Raises:
        TraceError: A traced tensor is assigned to an attribute.
    """

    def __init__(self) -> None:
        self.training = True

    # Attributes are kept in a dictionary of their own, so that a trace notes each that is read.

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Tensor) and value.is_traced:
            raise TraceError(
                f"{type(self).__name__}.{name} is set to a traced tensor, which a compiled function "
                f"cannot keep there: return it, or keep it in a tw.State (at {user_location('')})"
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

    def holds(self, name: str, value: object) -> bool:
        """Return whether the attribute called `name` is still the same object `value`."""
        return self.__dict__["_state"].get(name) is value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's results; subclasses define this method with parameters of their own.

        Args:
            *args: The arguments of the module's call.
            **kwargs: The arguments of the module's call by name.

        Raises:
            NotImplementedError: The subclass does not.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    @property
    def path(self) -> str:
        """The attribute names, joined by dots, that lead from the outermost module to this one."""
        owner, name = self.__dict__.get("_owner", (None, ""))
        above = owner.path if owner is not None else ""
        return f"{above}.{name}" if above else name

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        trace = current()
        if trace is None:
            return self.forward(*args, **kwargs)
        trace.path.append(self.path)
        try:
            return self.forward(*args, **kwargs)
        finally:
            trace.path.pop()

    # -- Modules, parameters, buffers
    # ---------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Return the modules that are attributes, by name."""
        return ((n, v) for n, v in self.__dict__.get("_state", {}).items() if isinstance(v, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this module and all nested ones, by dotted path after `prefix`, outer ones first."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """Return this module and all nested ones, outer ones first."""
        return (m for _, m in self.named_modules())

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules():
            for name, value in module.__dict__.get("_state", {}).items():
                if isinstance(value, Tensor):
                    yield f"{path}.{name}" if path else name, value

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Return the parameters of this module and all nested ones, by dotted path."""
        return ((n, t) for n, t in self._named_tensors() if isinstance(t, Parameter))

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Return the tensors that are no parameters, of any shape and type, of this module and all nested
        ones, by dotted path.
        """
        return ((n, t) for n, t in self._named_tensors() if not isinstance(t, Parameter))

    def parameters(self) -> Iterator[Parameter]:
        """Return the parameters of this module and all nested ones."""
        return (t for _, t in self.named_parameters())

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return parameters and buffers as read-only arrays of their shapes and types, by dotted path.

        Raises:
            CompileError: A parameter has no elements yet; see `placeholders`.
        """
        return {n: t.numpy() for n, t in self._named_tensors()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Replace parameters and buffers by arrays or torch tensors of the same shapes.

        Args:
            state: The arrays by dotted path. They are converted to the element types that the module has.
            strict: Whether every name of the module must be in `state`, and the reverse.

        Raises:
            CompileError: Names are missing or unknown; without `strict` such names are ignored.
            ShapeError: A shape differs.
        """
        tensors = dict(self._named_tensors())
        # PyTorch counts batches beside the statistics; nothing here uses the number.
        arrays = {n: v for n, v in state.items() if n in tensors or not n.endswith("num_batches_tracked")}
        missing, unknown = sorted(tensors.keys() - arrays.keys()), sorted(arrays.keys() - tensors.keys())
        if strict and (missing or unknown):
            raise CompileError(
                f"the state does not fit {type(self).__name__}: missing {missing}; unknown {unknown}"
            )
        loaded = {}
        for name in tensors.keys() & arrays.keys():
            kind = Parameter if isinstance(tensors[name], Parameter) else Tensor
            loaded[name] = kind(arrays[name], tensors[name].dtype)
            if loaded[name].shape != tensors[name].shape:
                raise ShapeError(
                    f"{name} is {tensors[name].shape} here and {loaded[name].shape} in the state"
                )
        modules = dict(self.named_modules())
        for name, value in loaded.items():
            path, _, attribute = name.rpartition(".")
            setattr(modules[path], attribute, value)

    def save(self, path: str | Path) -> None:
        """Write parameters and buffers to a `.safetensors` file.

        Args:
            path: The file to write; an existing one is replaced.

        Raises:
            CompileError: The package `safetensors` is not installed, or a parameter has no elements yet.
        """
        _safetensors().save_file({n: np.ascontiguousarray(a) for n, a in self.state_dict().items()}, path)

    def load(self, path: str | Path, strict: bool = True) -> None:
        """Load parameters and buffers from a `.safetensors` file.

        Args:
            path: The file to read.
            strict: Whether every name of the module must be in the file, and the reverse.

        Raises:
            CompileError: The file does not exist or is damaged, names do not fit, or `safetensors` is not
                installed.
            ShapeError: A shape differs.
        """
        library = _safetensors()
        if not Path(path).exists():
            raise CompileError(f"{path}: no such file")
        try:
            state = library.load_file(path)
        except Exception as error:  # The library's exceptions have no common base class.
            raise CompileError(f"{path}: not a valid safetensors file, or truncated: {error}") from None
        self.load_state_dict(state, strict)

    # -- Buffers that a call changes
    # -----------------------------------------------------------------------------

    def current_buffer(self, name: str) -> Tensor:
        """Return a buffer's value, inside of `buffer_updates` the newest that was collected, in its shape and
        type.

        Args:
            name: The attribute's name.
        """
        stack = getattr(_collecting, "stack", [])
        held: Tensor = getattr(self, name)
        return stack[-1][0].get(self._path_of(name), held) if stack else held

    def update_buffer(self, name: str, value: Tensor) -> None:
        """Give a buffer a new value in a call of the module: inside of `buffer_updates` it is collected, else
        the attribute is set.

        Args:
            name: The attribute's name.
            value: The new value, of the shape and type of the old one.

        Raises:
            CompileError: The module is compiled and nothing collects the value, or the value is computed in a
                branch or a loop.
        """
        trace = current()
        known = value if trace is None or not value.is_traced else None
        if trace is not None and value._value is not None:
            elements = trace.elements(value._value)
            known = None if elements is None else concrete(np.asarray(elements))
        path, stack = self._path_of(name), getattr(_collecting, "stack", [])
        if known is None and _depth() > (stack[-1][1] if stack else 0):
            raise CompileError(
                f"'{path}' is changed inside a branch or a loop, which a run may skip or repeat: "
                "collect it there with tw.nn.buffer_updates(), or call model.eval() first (at "
                f"{user_location('')})"
            )
        if stack:
            stack[-1][0][path] = value if known is None else known
        elif known is None:
            raise CompileError(
                f"{type(self).__name__} in training mode computes a new '{path}', which a compiled function "
                "cannot keep in the module: collect it with tw.nn.buffer_updates() and return it, or call "
                f"model.eval() first (at {user_location('')})"
            )
        else:
            setattr(self, name, known)

    def _path_of(self, name: str) -> str:
        return f"{self.path}.{name}".lstrip(".")

    # -- Mode
    # ---------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Module:
        """Set the training mode here and in all nested modules; return the module.

        In training mode `Dropout` drops elements, and `BatchNorm2d` uses the batch's statistics. Compiled
        functions then need keys (`tw.random.using`) and collect new statistics (`buffer_updates`).
        """
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Set the mode for inference; return the module."""
        return self.train(False)

    def __repr__(self) -> str:
        inside = [f"  ({n}): " + repr(m).replace("\n", "\n  ") for n, m in self.named_children()]
        extra = self.extra_repr()
        return f"{type(self).__name__}({extra}" + ("\n" + "\n".join(inside) + "\n" if inside else "") + ")"

    def extra_repr(self) -> str:
        """Return the text that `repr` shows between the brackets."""
        return ", ".join(
            f"{n}={tuple(v.shape)}"
            for n, v in self.__dict__.get("_state", {}).items()
            if isinstance(v, Tensor)
        )


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise CompileError("weights are kept in safetensors files: pip install safetensors") from None
    return safetensors.numpy


class ModuleList(Module):
    """A list of modules, by index as `list` has them.

    Args:
        modules: The modules in order.

    Raises:
        IndexError: An index lies outside of the list.
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> ModuleList:
        """Add a module at the end; return the list."""
        setattr(self, str(len(self)), module)
        return self

    def __len__(self) -> int:
        return sum(1 for _ in self.named_children())

    def __iter__(self) -> Iterator[Module]:
        return (getattr(self, name) for name, _ in list(self.named_children()))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"module {index} is out of range for a list of {len(self)} modules")
        return getattr(self, str(index % len(self)))

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, str(range(len(self))[index]), module)


class Sequential(ModuleList):
    """Modules that are called in order, each on the result of the one before; `x` may be anything the first
    takes.

    Args:
        *modules: The modules in order.
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: object) -> Any:
        """Return the result of the last module; `x` is the argument of the first."""
        for module in self:
            x = module(x)
        return x


__all__ = ["Module", "ModuleList", "Parameter", "Placeholder", "Sequential", "parameter", "placeholders"]
