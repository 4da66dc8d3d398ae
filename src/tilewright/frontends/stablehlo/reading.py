"""Reading StableHLO with jaxlib's MLIR: the module, and the names and shapes of its inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CompileError
from ...ir.symbolic import Dim
from ...ir.types import DType, TensorType
from ..dims import DimsArgument, DimTable, DimText, check_dims_argument, identifier, parse_dim

MAGIC = b"ML\xefR"
"""MLIR bytecode begins so."""


@dataclass
class Program:
    """`main` is the MLIR function; `inputs` are all of the model's, and `kept` are the numbers of those that `main` takes."""

    module: Any
    main: Any
    inputs: list[tuple[str, TensorType, bool]]
    """Name, type (of complex numbers that of their parts), and whether these are complex numbers."""
    kept: Sequence[int]
    constants: Sequence[Any] = ()
    """Arrays that `main` takes behind its inputs: a model's variables."""
    results: Sequence[str] = ()
    """Names of the results; none where the program tells them."""


def bindings() -> Any:
    """jaxlib's ``ir``, with its StableHLO dialects.

    Raises:
        CompileError: jaxlib is not installed.
    """
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import chlo, func, stablehlo
    except ImportError:
        raise CompileError("StableHLO is read with jaxlib: pip install 'tilewright[jax]'") from None
    return ir, stablehlo, chlo, func


def context() -> Any:
    """An MLIR context that knows what JAX writes."""
    ir, stablehlo, chlo, _ = bindings()
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.passmanager import PassManager

    found, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)  # func among them
    found.append_dialect_registry(registry)
    stablehlo.register_dialect(found)
    chlo.register_dialect(found)
    stablehlo.register_stablehlo_passes()
    with (
        found,
        ir.Location.unknown(),
    ):  # a pass that loads what it depends on: the dialect of quantized types, which has no binding
        PassManager.parse("builtin.module(vhlo-legalize-to-stablehlo)").run(ir.Module.create().operation)
    try:  # what tells how tensors are spread over devices
        from jaxlib.mlir.dialects import sdy

        sdy.register_dialect(found)
    except ImportError:
        pass
    return found


def _parsed(source: bytes, name: str) -> tuple[Any, dict[str, Any]]:
    """The MLIR module of a text or a portable artifact, and its functions by name, `main` among them."""
    ir, stablehlo, *_ = bindings()
    with context() as made, ir.Location.unknown():
        try:
            if source.startswith(MAGIC):
                module = stablehlo.deserialize_portable_artifact(made, source)
            else:
                module = ir.Module.parse(_shallow(source.decode()))
        except CompileError as error:
            raise CompileError(f"{name}: {error}") from None
        except Exception as error:
            reason = next((m[1] for m in re.finditer(r'error: (?:"-":)?(.*)', str(error))), str(error).splitlines()[0])
            raise CompileError(f"{name}: not StableHLO that jaxlib reads: {reason}") from None
        _expand(module)
    functions = {op.sym_name.value: op for op in module.body.operations if op.operation.name == "func.func"}
    if "main" not in functions:
        raise CompileError(f"{name}: has no function 'main'")
    return module, functions


def program_of(
    source: bytes, name: str, labels: Sequence[str], constants: Sequence[Any], results: Sequence[str]
) -> Program:
    """A program of fixed shapes whose first arguments are called `labels`; those behind them are `constants`."""
    module, functions = _parsed(source, name)
    types = [a.type for a in functions["main"].regions[0].blocks[0].arguments]
    if len(types) != len(labels) + len(constants) or any(None in shape_of(t) for t in types):
        raise CompileError(f"{name}: {len(types)} arguments for {len(labels)} inputs and {len(constants)} variables")
    inputs = [
        (label, TensorType(dtype_of(t), tuple(d or 0 for d in shape_of(t))), is_complex(t))
        for label, t in zip(labels, types, strict=False)
    ]
    return Program(module, functions["main"], inputs, range(len(inputs)), constants, results)


def read(model: Any, dims: DimsArgument | None) -> Program:
    """The program of a ``jax.export.Exported`` or a file; see `import_stablehlo`."""
    exported = None if isinstance(model, (str, Path)) else model
    source = exported.mlir_module_serialized if exported is not None else Path(model).read_bytes()
    name = str(model) if exported is None else f"the exported function {exported.fun_name}"
    module, functions = _parsed(source, name)
    main = functions["main"]
    arguments = list(main.regions[0].blocks[0].arguments)
    if exported is None:
        kept: Sequence[int] = range(len(arguments))
        labels = [_argument_name(a, functions) for a in arguments]
        shapes: list[Any] = [shape_of(a.type) for a in arguments]
        dtypes = [dtype_of(a.type) for a in arguments]
        pairs = [is_complex(a.type) for a in arguments]
    else:
        kept = list(exported.module_kept_var_idx)
        if len(kept) != len(arguments):
            raise CompileError(f"{name}: was exported for several platforms; export it with platforms=['cpu']")
        places = dict(zip(kept, arguments, strict=True))
        avals = exported.in_avals
        labels = [_argument_name(places[k], functions) if k in places else "" for k in range(len(avals))]
        shapes = [[d if isinstance(d, int) else str(d) for d in a.shape] for a in avals]
        pairs = [a.dtype.kind == "c" for a in avals]
        dtypes = [DType.of(np.empty(0, a.dtype).real) for a in avals]
    names = _distinct([label or f"arg{k}" for k, label in enumerate(labels)])
    resolved = _resolve(list(zip(names, shapes, strict=True)), dims)
    inputs = [(n, TensorType(t, s), p) for n, t, s, p in zip(names, dtypes, resolved, pairs, strict=True)]
    return Program(module, main, inputs, kept)


MAX_NESTED = 500
"""How deep brackets may be nested in a text: MLIR's parser uses up the stack with them."""


def _shallow(text: str) -> str:
    depth = 0
    for bracket in re.findall(r"[{}()\[\]]", re.sub(r'"(?:[^"\\\n]|\\.)*"', "", text)):
        depth += 1 if bracket in "{([" else -1
        if depth > MAX_NESTED:
            raise CompileError(f"brackets are nested more than {MAX_NESTED} deep")
    return text


def _expand(module: Any) -> None:
    """Have jaxlib's own pass take ``chlo.ragged_dot`` apart, and the rest of CHLO with it; without it there are importers for the rest."""
    ir, stablehlo, *_ = bindings()
    from jaxlib.mlir.passmanager import PassManager

    names: set[str] = set()

    def note(op: Any) -> Any:
        names.add(op.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    if "chlo.ragged_dot" in names:
        if "chlo.scan" in names:  # of which the pass forgets that it goes backward
            raise CompileError("chlo.ragged_dot and chlo.scan in one program are not supported")
        stablehlo.register_stablehlo_passes()
        try:
            PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
        except ir.MLIRError as error:
            raise CompileError(f"jaxlib does not take chlo.ragged_dot apart: {error}") from None


def element_dtype(text: str) -> DType:
    """The data type that MLIR calls `text`.

    Raises:
        CompileError: complex and other types without counterpart.
    """
    try:
        return DType.named(text)
    except ValueError:
        raise CompileError(f"the element type {text} is not supported") from None


def dtype_of(type: Any) -> DType:
    """The element type of an MLIR tensor type; of complex numbers that of their parts, of quantized ones that of what is stored."""
    ir, *_ = bindings()
    if not isinstance(type, ir.RankedTensorType):
        raise CompileError(f"values of type {type} are not supported, only tensors")
    text = str(type.element_type)
    if text.startswith("!quant."):
        return element_dtype(re.sub(r"!quant\.\w+<(u?)(i?\d+).*", lambda m: f"{m[1]}i{m[2].strip('i')}", text))
    return element_dtype(text.removeprefix("complex<").removesuffix(">"))


def is_complex(type: Any) -> bool:
    """Whether an MLIR tensor type is one of complex numbers."""
    return str(getattr(type, "element_type", "")).startswith("complex<")


def is_tuple(type: Any) -> bool:
    """Whether an MLIR type is a tuple of types."""
    return str(type).startswith("tuple<")


def scalar_type(type: Any) -> Any:
    """The type of one element of an MLIR tensor type, as a tensor."""
    ir, *_ = bindings()
    return ir.RankedTensorType.get([], type.element_type)


def shape_of(type: Any) -> tuple[int | None, ...]:
    """The dimensions of an MLIR tensor type; None for one that is not known."""
    return tuple(None if type.is_dynamic_dim(d) else type.get_dim_size(d) for d in range(type.rank))


def constant_of(op: Any) -> np.ndarray[Any, Any]:
    """The data of a ``stablehlo.constant``, as an array that needs nothing of MLIR's."""
    type = op.results[0].type
    dtype, shape = dtype_of(type), [d for d in shape_of(type) if d is not None]
    TensorType(dtype, shape)  # refuses what is too large to exist
    try:
        value = op.attributes["value"]
        if value.is_splat:
            return np.broadcast_to(np.asarray(value.get_splat_value().value, dtype.numpy), shape)
        return np.array(value).astype(dtype.numpy).reshape(shape)
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # jaxlib has no access to complex numbers, bf16 and narrower ones, and resources
        text = op.get_asm()
    start = text.find("dense<")
    if start < 0:
        raise CompileError("constant data that stand outside of the program (dense_resource) are not read")
    text = text[start + len("dense<") : text.index("> :", start)]
    if not is_complex(type):
        return _printed(text, dtype, shape)
    parts = np.ascontiguousarray(_printed(text, dtype, (*shape, 2)))
    return parts.view(f"c{2 * dtype.numpy.itemsize}").reshape(shape)


def _printed(text: str, dtype: DType, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """The data of ``dense<...>`` as MLIR prints it: numbers, or the bytes of all of them in hexadecimal digits."""
    if text.startswith('"0x'):
        flat = np.frombuffer(bytes.fromhex(text[3:-1]), dtype.numpy)
    else:
        words = re.findall(r"0x[0-9A-F]+|[-\w.+]+", text)
        unsigned = np.dtype(f"u{dtype.numpy.itemsize}")
        flat = np.array([_number(word, dtype, unsigned) for word in words], dtype.numpy)
    if flat.size == int(np.prod(shape)):
        return flat.reshape(shape)
    return np.broadcast_to(flat.reshape(-1) if flat.size == 1 else flat, shape)  # one number, or pair, for all


def _number(word: str, dtype: DType, unsigned: np.dtype[Any]) -> Any:
    if word.startswith("0x"):  # an infinity or a NaN
        return np.array(int(word, 16), unsigned).view(dtype.numpy)
    return word == "true" if word in ("true", "false") else float(word) if dtype.is_float else int(word)


def _argument_name(argument: Any, functions: dict[str, Any]) -> str:
    """``params_w`` for an argument that JAX called ``params['w']``; where JAX wraps the function, its argument tells the name."""
    found = re.match(r'loc\("([^"]*)"', str(argument.location))
    if found is None:
        for use in argument.uses:
            op = getattr(use.owner, "operation", use.owner)
            callee = functions.get(op.attributes["callee"].value) if op.name == "func.call" else None
            if callee is not None:
                inner = callee.regions[0].blocks[0].arguments[use.operand_number]
                found = found or re.match(r'loc\("([^"]*)"', str(inner.location))
    label = re.sub(r"\W+", "_", found.group(1)).strip("_") if found is not None else ""
    return f"arg_{label}" if label[:1].isdigit() else label


def _distinct(names: list[str]) -> list[str]:
    return [n if names.count(n) == 1 else f"{n}_{k}" for k, n in enumerate(names)]


def _resolve(inputs: Sequence[tuple[str, Sequence[Any]]], dims: DimsArgument | None) -> list[tuple[Dim, ...]]:
    """Shapes (whole numbers, texts, or None for a nameless dimension) with symbols that have the bounds `dims` gives."""
    given = check_dims_argument(dims, [(n, [d if d is not None else "?" for d in shape]) for n, shape in inputs])
    table, parsed = DimTable(), []
    for name, shape in inputs:
        row: list[DimText] = []
        for axis, size in enumerate(shape):
            where = f"dims[{name!r}][{axis}]"
            own = parse_dim(identifier(f"{name}_{axis}", "d") if size is None else size, where)
            text = parse_dim(given[name][axis], where) if axis in given.get(name, {}) else own
            if size is not None and text.expression.replace(" ", "") != own.expression.replace(" ", ""):
                raise CompileError(f"{where} is '{text.expression}', but the model was exported with '{size}' there")
            table.add(text, where)
            row.append(text)
        parsed.append(row)
    table.check()
    return [tuple(table.resolve(d) for d in row) for row in parsed]


__all__ = [
    "Program",
    "bindings",
    "constant_of",
    "context",
    "dtype_of",
    "element_dtype",
    "is_complex",
    "is_tuple",
    "read",
    "scalar_type",
    "shape_of",
]
