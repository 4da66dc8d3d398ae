"""Read StableHLO with jaxlib's MLIR: the module, and the names and shapes of its inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CompileError
from ...ir.symbolic import Dim
from ...ir.types import DType, TensorType
from ..dims import DimsArgument, DimTable, DimText, check_dims_argument, identifier, parse_dim

if TYPE_CHECKING:
    import jax
    from jaxlib.mlir import ir as mlir

MAGIC = b"ML\xefR"
"""The first bytes of MLIR bytecode."""


@dataclass
class Program:
    """A program as MLIR.

    `main` is the MLIR function. `inputs` are all inputs of the model; `kept` are the numbers of those that
    `main` takes.
    """

    module: Any
    main: Any
    inputs: list[tuple[str, TensorType, bool]]
    """Name, type (for complex numbers that of their parts), and whether the input is complex."""
    kept: Sequence[int]
    constants: Sequence[Any] = ()
    """Arrays that `main` takes after its inputs: a model's variables."""
    results: Sequence[str] = ()
    """Names of the results; empty if the program itself names them."""


def bindings() -> Any:
    """Return jaxlib's modules ``ir``, ``stablehlo``, ``chlo`` and ``func``.

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
    """Return an MLIR context with all dialects that JAX emits."""
    ir, stablehlo, chlo, _ = bindings()
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.passmanager import PassManager

    mlir, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)  # includes func
    mlir.append_dialect_registry(registry)
    stablehlo.register_dialect(mlir)
    chlo.register_dialect(mlir)
    stablehlo.register_stablehlo_passes()
    # Running a pass loads the dialects it depends on: the one of quantized types has no binding.
    with mlir, ir.Location.unknown():
        PassManager.parse("builtin.module(vhlo-legalize-to-stablehlo)").run(ir.Module.create().operation)
    try:  # the dialect for the distribution of tensors over devices
        from jaxlib.mlir.dialects import sdy

        sdy.register_dialect(mlir)
    except ImportError:
        pass
    return mlir


def _parsed(source: bytes, name: str) -> tuple[Any, dict[str, Any]]:
    """Parse a text or a portable artifact; return the MLIR module and its functions by name, `main` among
    them.

    Raises:
        CompileError: jaxlib cannot read it, or it has no function ``main``.
    """
    ir, stablehlo, *_ = bindings()
    with context() as mlir, ir.Location.unknown():
        try:
            if source.startswith(MAGIC):
                module = stablehlo.deserialize_portable_artifact(mlir, source)
            else:
                module = ir.Module.parse(_shallow(source.decode()))
        except CompileError as error:
            raise CompileError(f"{name}: {error}") from None
        except Exception as error:
            reason = next(
                (m[1] for m in re.finditer(r'error: (?:"-":)?(.*)', str(error))), str(error).splitlines()[0]
            )
            raise CompileError(f"{name}: not StableHLO that jaxlib reads: {reason}") from None
        _expand(module)
    functions = {op.sym_name.value: op for op in module.body.operations if op.operation.name == "func.func"}
    if "main" not in functions:
        raise CompileError(f"{name}: has no function 'main'")
    return module, functions


def program_of(
    source: bytes, name: str, labels: Sequence[str], constants: Sequence[Any], results: Sequence[str]
) -> Program:
    """Return a program of static shapes whose first arguments are called `labels`; the remaining ones are
    `constants`.
    """
    module, functions = _parsed(source, name)
    types = [a.type for a in functions["main"].regions[0].blocks[0].arguments]
    if len(types) != len(labels) + len(constants) or any(None in shape_of(t) for t in types):
        raise CompileError(
            f"{name}: the program has {len(types)} arguments of static shape for {len(labels)} inputs and "
            f"{len(constants)} variables"
        )
    inputs = [
        (label, TensorType(dtype_of(t), tuple(d or 0 for d in shape_of(t))), is_complex(t))
        for label, t in zip(labels, types, strict=False)
    ]
    return Program(module, functions["main"], inputs, range(len(inputs)), constants, results)


def read(model: str | Path | jax.export.Exported, dims: DimsArgument | None) -> Program:
    """Read a ``jax.export.Exported`` or a file; see `import_stablehlo`."""
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
            raise CompileError(
                f"{name}: was exported for several platforms; export it with platforms=['cpu']"
            )
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
"""Maximum nesting of brackets in a text. MLIR's parser recurses per bracket and would overflow the stack."""


def _shallow(text: str) -> str:
    depth = 0
    for bracket in re.findall(r"[{}()\[\]]", re.sub(r'"(?:[^"\\\n]|\\.)*"', "", text)):
        depth += 1 if bracket in "{([" else -1
        if depth > MAX_NESTED:
            raise CompileError(f"brackets are nested more than {MAX_NESTED} deep")
    return text


def _expand(module: mlir.Module) -> None:
    """Decompose ``chlo.ragged_dot``, and with it all of CHLO, with jaxlib's pass. Programs without it keep
    CHLO, which has importers.
    """
    ir, stablehlo, *_ = bindings()
    from jaxlib.mlir.passmanager import PassManager

    names: set[str] = set()

    def note(op: mlir.Operation) -> Any:
        names.add(op.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    if "chlo.ragged_dot" in names:
        if "chlo.scan" in names:  # the pass loses the direction of a backward scan
            raise CompileError("chlo.ragged_dot and chlo.scan in one program are not supported")
        stablehlo.register_stablehlo_passes()
        try:
            PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
        except ir.MLIRError as error:
            raise CompileError(f"jaxlib cannot decompose chlo.ragged_dot: {error}") from None


def element_dtype(text: str) -> DType:
    """Return the data type that MLIR calls `text`.

    Raises:
        CompileError: there is none, as for complex types.
    """
    try:
        return DType.named(text)
    except ValueError:
        raise CompileError(f"the element type {text} is not supported") from None


def dtype_of(type: mlir.Type) -> DType:
    """Return the element type of an MLIR tensor type; for complex numbers that of their parts, for quantized
    ones that of the stored integers.

    Raises:
        CompileError: it is no tensor, or the element type is not supported.
    """
    ir, *_ = bindings()
    if not isinstance(type, ir.RankedTensorType):
        raise CompileError(f"values of type {type} are not supported, only tensors")
    text = str(type.element_type)
    if text.startswith("!quant."):
        return element_dtype(
            re.sub(r"!quant\.\w+<(u?)(i?\d+).*", lambda m: f"{m[1]}i{m[2].strip('i')}", text)
        )
    return element_dtype(text.removeprefix("complex<").removesuffix(">"))


def is_complex(type: mlir.Type) -> bool:
    """Whether an MLIR type is a tensor of complex numbers."""
    return str(getattr(type, "element_type", "")).startswith("complex<")


def is_tuple(type: mlir.Type) -> bool:
    """Whether an MLIR type is a tuple of types."""
    return str(type).startswith("tuple<")


def scalar_type(type: mlir.RankedTensorType) -> Any:
    """Return the rank-0 tensor type of the same element type."""
    ir, *_ = bindings()
    return ir.RankedTensorType.get([], type.element_type)


def shape_of(type: mlir.RankedTensorType) -> tuple[int | None, ...]:
    """Return the dimensions of an MLIR tensor type; None for an unknown one."""
    return tuple(None if type.is_dynamic_dim(d) else type.get_dim_size(d) for d in range(type.rank))


def constant_of(op: mlir.Operation) -> np.ndarray[Any, Any]:
    """Return the data of a ``stablehlo.constant`` as an array that does not refer to MLIR's memory."""
    type = op.results[0].type
    dtype, shape = dtype_of(type), [d for d in shape_of(type) if d is not None]
    TensorType(dtype, shape)  # raises an error if it is too large
    try:
        value = op.attributes["value"]
        if value.is_splat:
            return np.broadcast_to(np.asarray(value.get_splat_value().value, dtype.numpy), shape)
        return np.array(value).astype(dtype.numpy).reshape(shape)
    except (AttributeError, TypeError, ValueError):
        # jaxlib has no access to complex numbers, bf16 and narrower types, and resources.
        text = op.get_asm()
    start = text.find("dense<")
    if start < 0:
        raise CompileError("constant data outside the program (dense_resource) is not supported")
    text = text[start + len("dense<") : text.index("> :", start)]
    if not is_complex(type):
        return _printed(text, dtype, shape)
    parts = np.ascontiguousarray(_printed(text, dtype, (*shape, 2)))
    return parts.view(f"c{2 * dtype.numpy.itemsize}").reshape(shape)


def _printed(text: str, dtype: DType, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Parse the data of ``dense<...>`` as MLIR prints it: numbers, or the bytes of all of them in hexadecimal
    digits.
    """
    if text.startswith('"0x'):
        flat = np.frombuffer(bytes.fromhex(text[3:-1]), dtype.numpy)
    else:
        words = re.findall(r"0x[0-9A-F]+|[-\w.+]+", text)
        unsigned = np.dtype(f"u{dtype.numpy.itemsize}")
        flat = np.array([_number(word, dtype, unsigned) for word in words], dtype.numpy)
    if flat.size == int(np.prod(shape)):
        return flat.reshape(shape)
    # One number, or one pair, is the value of all elements.
    return np.broadcast_to(flat.reshape(-1) if flat.size == 1 else flat, shape)


def _number(word: str, dtype: DType, unsigned: np.dtype[Any]) -> Any:
    if word.startswith("0x"):  # an infinity or a NaN
        return np.array(int(word, 16), unsigned).view(dtype.numpy)
    return word == "true" if word in ("true", "false") else float(word) if dtype.is_float else int(word)


def _argument_name(argument: mlir.BlockArgument, functions: dict[str, Any]) -> str:
    """Return the name of an argument: ``params_w`` for one that JAX calls ``params['w']``.

    If JAX wraps the function, the name is that of the inner function's argument.
    """
    match = re.match(r'loc\("([^"]*)"', str(argument.location))
    if match is None:
        for use in argument.uses:
            op = getattr(use.owner, "operation", use.owner)
            callee = functions.get(op.attributes["callee"].value) if op.name == "func.call" else None
            if callee is not None:
                inner = callee.regions[0].blocks[0].arguments[use.operand_number]
                match = match or re.match(r'loc\("([^"]*)"', str(inner.location))
    label = re.sub(r"\W+", "_", match.group(1)).strip("_") if match is not None else ""
    return f"arg_{label}" if label[:1].isdigit() else label


def _distinct(names: list[str]) -> list[str]:
    return [n if names.count(n) == 1 else f"{n}_{k}" for k, n in enumerate(names)]


def _resolve(inputs: Sequence[tuple[str, Sequence[Any]]], dims: DimsArgument | None) -> list[tuple[Dim, ...]]:
    """Convert shapes (of integers, texts, or None for a nameless dimension) to symbolic ones with the bounds
    from `dims`.
    """
    user_dims = check_dims_argument(
        dims, [(n, [d if d is not None else "?" for d in shape]) for n, shape in inputs]
    )
    table, parsed = DimTable(), []
    for name, shape in inputs:
        row: list[DimText] = []
        for axis, size in enumerate(shape):
            where = f"dims[{name!r}][{axis}]"
            declared = parse_dim(identifier(f"{name}_{axis}", "d") if size is None else size, where)
            text = parse_dim(user_dims[name][axis], where) if axis in user_dims.get(name, {}) else declared
            if size is not None and text.expression.replace(" ", "") != declared.expression.replace(" ", ""):
                raise CompileError(
                    f"{where} is '{text.expression}', but the model was exported with '{size}' there"
                )
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
