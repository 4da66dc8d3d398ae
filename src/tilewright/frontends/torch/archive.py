"""Safe reading of ``.pt2`` files.

``torch.export.load`` unpickles objects, imports modules that the file names, evaluates its expressions and
generates source code from its names, so a file may run anything. Here the file's members are checked first,
through torch's own reader so that both read the same; torch then loads in its safe mode.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CompileError

if TYPE_CHECKING:
    import torch
    from torch.export.pt2_archive import PT2ArchiveReader

_MODEL = "model"
_NAME = re.compile(r"[\w.:/<>+ -]*", re.ASCII)
"""The characters of names: in generated source code they cannot form a call."""
_OPERATOR = re.compile(
    r"torch\.ops\.\w+\.\w+(\.\w+)?|torch\._?sym_\w+|math\.\w+|torch\._higher_order_ops\.\w+\.\w+"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_"
    r"|invert|getitem|index|lshift|rshift)",
    re.ASCII,
)
_READS_FILES = re.compile(r"torch\.ops\.(aten\.from_file|debugprims|load_library)\b.*")
_FREE_TEXT = {"as_string", "as_strings", "metadata", "guards_code"}
"""Keys whose text is never evaluated here (guards are dropped)."""

_FUNCTIONS = frozenset(
    "Add Mul Symbol Integer Float Rational Max Min Abs Eq Ne Equality Unequality Lt Le Gt Ge StrictLessThan "
    "LessThan StrictGreaterThan "
    "GreaterThan And Or Not Piecewise floor ceiling FloorDiv ModularIndexing Where PythonMod Mod CleanDiv "
    "CeilToInt FloorToInt CeilDiv "
    "FloatTrueDiv IntTrueDiv TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat Identity "
    "IsNonOverlappingAndDenseIndicator".split()
)
_POWERS = ("Pow", "PowByNatural", "FloatPow")
_SYNTAX = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple, ast.Load, ast.keyword),
    *(
        ast.Add,
        ast.Sub,
        ast.Mult,
        ast.Div,
        ast.FloorDiv,
        ast.Mod,
        ast.Pow,
        ast.USub,
        ast.UAdd,
        ast.BitAnd,
        ast.BitOr,
        ast.Invert,
    ),
    *(ast.And, ast.Or, ast.Not, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
_MAX_EXPONENT = 16
_PLAIN_FACTORIES = {"list", "dict", "set", "int", "float", "str", "tuple", "bool"}
_VIEW_LIMIT = 1 << 26
"""Size in bytes up to which a tensor may exceed its data, as a broadcast view does. A larger value admits
larger views, which constants materialize.
"""


def load_program(path: Path) -> Any:
    """Return the ``ExportedProgram`` in a ``.pt2`` file without running anything that the file contains.

    Raises:
        CompileError: The file does not exist, is damaged, or contains what loads only by running code:
            pickled objects, compiled code.
    """
    from torch.export.pt2_archive import PT2ArchiveReader
    from torch.export.pt2_archive._package import load_pt2

    if not path.is_file():
        raise CompileError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
    try:
        reader = PT2ArchiveReader(str(path))
        _check(reader, path)
        with _weights_only(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = load_pt2(str(path)).exported_programs[_MODEL]
        program._guards_code = []
        _check_views(program)
        return program
    except CompileError as error:
        raise CompileError(f"{path}: {error}") from None
    except Exception as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        if "weights_only" in str(error) or "Weights only" in str(error):
            first = (
                "it has pickled objects other than tensors, and unpickling could run code; save it without "
                "them, or, if you trust the file, pass the program that torch.export.load returns"
            )
        if unknown := re.search(r"Failed deserializing node Node\(target='torch\.ops\.(\w+\.\w+)[.']", first):
            import torch

            namespace, name = unknown[1].split(".")
            if not hasattr(getattr(torch.ops, namespace), name):
                raise CompileError(
                    f"{path}: calls the operator {unknown[1]}, which no imported module registers; "
                    "import the module that does first (on the command line: --import MODULE)"
                ) from None
        raise CompileError(
            f"{path}: torch cannot read this exported program: {type(error).__name__}: {first[:600]}"
        ) from error


@contextmanager
def _weights_only() -> Iterator[None]:
    """Restrict ``torch.load`` to tensors, whatever its caller passes."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _check(reader: PT2ArchiveReader, path: Path) -> None:
    """Check the members of the file.

    Raises:
        CompileError: A member could run code, or claims more data than the file has.
    """
    from torch.export.pt2_archive import constants as c

    names = reader.get_file_names()
    if len({n.casefold() for n in names}) != len(names):
        raise CompileError("two members of the archive have the same name")
    claimed = sum(reader.archive_file.get_record_size(n) for n in names)
    if claimed > path.stat().st_size:
        raise CompileError(f"the archive claims {claimed} bytes, but the file has {path.stat().st_size}")
    if f"{c.MODELS_DIR}{_MODEL}.json" not in names:
        raise CompileError("the archive holds no exported program; save it with torch.export.save")
    for name in names:
        if name.startswith(c.AOTINDUCTOR_DIR):
            raise CompileError(f"the archive holds compiled code ({name}); save the exported program alone")
        if name.startswith((c.WEIGHTS_DIR, c.CONSTANTS_DIR)) and name.endswith(".json"):
            _check_payloads(reader, name)
        if name.startswith(c.MODELS_DIR):
            _check_json(json.loads(reader.read_string(name)), "")


def _check_payloads(reader: PT2ArchiveReader, name: str) -> None:
    from torch.export.pt2_archive import constants as c

    folder = name.rpartition("/")[0] + "/"
    for key, entry in json.loads(reader.read_string(name))["config"].items():
        member = entry["path_name"]
        if member.startswith((c.CUSTOM_OBJ_FILENAME_PREFIX, c.OPAQUE_OBJ_FILENAME_PREFIX)):
            raise CompileError(f"constant '{key}' is a pickled object; only tensors can be loaded")
        meta = entry.get("tensor_meta")
        if entry["use_pickle"] or meta is None:
            continue
        sizes = [s.get("as_int", 0) for s in meta["sizes"]]
        if any(s < 0 for s in sizes) or (
            math.prod(sizes) and not reader.archive_file.get_record_size(folder + member)
        ):
            raise CompileError(f"tensor '{key}' of shape {sizes} has no data")


def _check_json(value: object, key: str) -> None:
    """Check the texts of a serialized program.

    Raises:
        CompileError: torch would evaluate a text to more than a tensor program.
    """
    if key in _FREE_TEXT:
        return
    if isinstance(value, dict):
        for k, v in value.items():
            if not _NAME.fullmatch(k):
                raise CompileError(f"{k[:80]!r} is not a name")
            _check_json(v, k)
    elif isinstance(value, list):
        for item in value:
            _check_json(item, key)
    elif isinstance(value, str):
        if key == "expr_str":
            _check_expression(value)
        elif key in ("in_spec", "out_spec"):
            _check_structure(json.loads(value) if value else None)
        elif key in ("target", "as_operator") and (
            not _OPERATOR.fullmatch(value) or _READS_FILES.fullmatch(value)
        ):
            raise CompileError(f"it calls {value[:80]!r}, which is not a tensor operator")
        elif not _NAME.fullmatch(value):
            raise CompileError(f"{value[:80]!r} is not a name ({key})")


def _check_expression(text: str) -> None:
    """Check a text that torch evaluates as Python.

    Raises:
        CompileError: It is not a short formula of sizes.
    """
    try:
        sound = len(text) <= 8192 and all(map(_is_harmless, ast.walk(ast.parse(text.strip(), mode="eval"))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        sound = False
    if not sound:
        raise CompileError(f"{text[:80]!r} is not a formula of sizes")


def _is_harmless(node: ast.AST) -> bool:
    """Return whether a node of a formula is arithmetic whose result is no longer than the formula."""
    if isinstance(node, ast.Constant):
        return _NAME.fullmatch(str(node.value)) is not None and len(str(node.value)) <= 40
    if isinstance(node, ast.Name):
        return "__" not in node.id
    if isinstance(node, ast.Call):
        called = getattr(node.func, "id", "")
        return called in _FUNCTIONS or (
            called in _POWERS and len(node.args) == 2 and _small_power(*node.args)
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _small_power(node.left, node.right)
    return isinstance(node, _SYNTAX)


def _small_power(base: ast.AST, exponent: ast.AST) -> bool:
    """Return whether the exponent is a small number and the base contains no other power."""
    if isinstance(exponent, ast.Call) and getattr(exponent.func, "id", "") == "Integer" and exponent.args:
        exponent = exponent.args[0]
    nested = any(isinstance(n, ast.Pow) or getattr(n, "id", "") in _POWERS for n in ast.walk(base))
    value = exponent.value if isinstance(exponent, ast.Constant) else None
    return isinstance(value, int) and abs(value) <= _MAX_EXPONENT and not nested


def _check_structure(spec: object) -> None:
    """Check the description of nested containers.

    Raises:
        CompileError: It names modules or classes to import.
    """
    if isinstance(spec, dict):
        if "__enum__" in spec:
            raise CompileError(
                f"its inputs are structured by an enumeration, {spec.get('fqn')!r}, which would have to be "
                "imported"
            )
        module, name = spec.get("default_factory_module"), spec.get("default_factory_name")
        if (module or name) and (module != "builtins" or name not in _PLAIN_FACTORIES):
            raise CompileError(
                f"its inputs hold a defaultdict of {module}.{name}, which would have to be imported"
            )
        for k, v in spec.items():
            _check_structure(json.loads(v) if k == "context" and isinstance(v, str) and v[:1] in '{["' else v)
    elif isinstance(spec, list):
        for item in spec:
            _check_structure(item)


def _check_views(program: torch.export.ExportedProgram) -> None:
    """Check the sizes of tensors against their data.

    Raises:
        CompileError: A tensor is a large view of little data, which a constant would materialize.
    """
    import torch

    for name, tensor in [*program.state_dict.items(), *program.constants.items()]:
        if isinstance(tensor, torch.Tensor):
            size = tensor.numel() * tensor.element_size()
            if size > max(_VIEW_LIMIT, tensor.untyped_storage().nbytes()):
                raise CompileError(
                    f"tensor '{name}' of shape {list(tensor.shape)} has {size} bytes, far more than its data"
                )
