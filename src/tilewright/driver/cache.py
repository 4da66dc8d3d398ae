"""The cache of compiled models across processes, with keys of model, target, options and this compiler.

An entry holds code but no weights: it records where each weight lies in the model and how it is packed
(`cached_weights`). A model's key is a hash of its imported graph and weights. For a model in a file a second
entry records the hash and where its arrays lie in the file, so that an unchanged file is not imported again.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact import disk_cache

if TYPE_CHECKING:
    from ..dialects.kernels import KernelDefinition
    from ..ir.core import Module
    from ..runtime.model import CompiledModel
    from ..targets.base import Target

KIND, FILES = "artifacts", "files"


@lru_cache(maxsize=1)
def compiler_fingerprint() -> str:
    """A digest of every file of this package, and of the versions of the packages that import models, fold
    constants and generate code.
    """
    import platform

    root = Path(__file__).parents[1]
    parts: list[str | bytes] = [platform.python_version(), *map(_version, _DEPENDENCIES)]
    for folder, _, names in sorted(os.walk(root)):
        for name in sorted(names):
            if name.endswith((".py", ".c", ".h")):
                file = Path(folder, name)
                parts += [str(file.relative_to(root)), file.read_bytes()]
    return disk_cache.digest(*parts)


_DEPENDENCIES = ("numpy", "ml_dtypes", "llvmlite", "onnx", "torch", "jaxlib")


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class KeyParts:
    """The parts of a key beside the model and this package: everything that shapes code."""

    target: Target
    precision: str | None
    opt: str
    checks: bool
    user_code: str
    """`user_code.fingerprint` of all but the importer."""
    importer: str = ""
    """`user_code.fingerprint` of the front end's importer; part of the keys of files only."""

    def key(self, *model: str) -> str:
        """The key of a model that these texts identify."""
        options = repr((self.target.describe(), self.precision, self.opt, self.checks, self.user_code))
        return disk_cache.digest(compiler_fingerprint(), options, *model)


def key_of_kernels(target: Target, kernels: Iterable[KernelDefinition]) -> str:
    """The part of a key that stands for kernels of the user's: their digests and compilers; "" for none."""
    known = {k.digest: k for k in kernels}
    return " ".join([*sorted(known), target.kernel_compilers(known.values())]) if known else ""


def key_of_file(
    path: Path,
    other_files: Callable[[Path], Sequence[Path]] | None,
    parts: KeyParts,
    dims: Mapping[str, Mapping[int, str]] | None,
) -> str | None:
    """The key of a model in a file: the file's contents, and names, sizes and times of the other files it
    reads.

    Args:
        path: The model's file.
        other_files: `Frontend.other_files`.
        parts: The parts of the key beside the model.
        dims: Names and bounds of dynamic dimensions.

    Returns:
        The key; None for a folder, or where the other files are not known.
    """
    if other_files is None or not path.is_file():
        return None
    digest = _hash_file(path)
    for file in other_files(path):
        info = file.stat()
        digest += f";{os.path.relpath(file, path.parent)}:{info.st_size}:{info.st_mtime_ns}"
    bounds = repr(sorted((k, sorted(v.items())) for k, v in (dims or {}).items()))
    return parts.key("file", parts.importer, path.suffix, bounds, digest)


def _hash_file(path: Path) -> str:
    import xxhash

    h = xxhash.xxh3_128()
    part = memoryview(bytearray(1 << 18))  # small enough for the processor's cache
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(part):
            h.update(part[:size])
    return h.hexdigest()


def hash_module(module: Module) -> str:
    """A hash of an imported model: its text and the contents of its weights."""
    from ..dialects import graph
    from ..dialects.func import Func
    from ..ir.printer import print_op

    digests = [op.value.digest() for op in module.walk() if isinstance(op, graph.Constant)]
    digests += [first.digest() for func in module.functions(Func) for _, first in func.states]
    return disk_cache.digest(print_op(module), *digests)


def leaves_of(module: Module) -> list[Any]:
    """The arrays of an imported model's constants and of its states' first values, in the order of its text;
    None for one that is computed when it is needed.
    """
    from ..dialects import graph
    from ..dialects.func import Func

    constants = [op.value for op in module.walk() if isinstance(op, graph.Constant)]
    constants += [first for func in module.functions(Func) for _, first in func.states]
    return [None if constant.is_made else constant.array for constant in constants]


def find(key: str) -> tuple[Any, bytes] | None:
    """The target's entry of a model: its code, and its weights as references (`cached_weights.load`); None
    where there is no entry.
    """
    artifact: tuple[Any, bytes] | None = _read(KIND, key)
    return artifact


def store(key: str, target: Target, library: CompiledModel, leaves: Sequence[Any]) -> bool:
    """Store a library just compiled, its weights as references to `leaves`; return whether that is
    possible.
    """
    from . import cached_weights as kept_weights

    kept = target.keep(library)
    if kept is None:
        return False
    body, weights = kept
    try:
        return _write(KIND, key, (body, kept_weights.dump(weights, leaves)))
    except kept_weights.NotKept:
        return False


@dataclass(frozen=True)
class _InFile:
    """A model in a file: the key and the description of the imported module, and the places of its arrays.
    `others`: size and time of the other files that hold some of them.
    """

    key: str
    source: dict[str, str]
    places: list[Any]
    others: dict[str, tuple[int, int]]


def find_file(
    key: str, path: Path
) -> tuple[str, dict[str, str], Callable[[int], Any], Sequence[Path]] | None:
    """The entry of a model in a file.

    Returns:
        The key of the imported module, its description, a function from the number of an array to the array,
        and the files that arrays are mapped from. None where there is no entry, or another file has changed.
    """
    from .cached_weights import MappedFile, Place

    kept: _InFile | None = _read(FILES, key)
    if kept is None or any(_stamp(path.parent / name) != stamp for name, stamp in kept.others.items()):
        return None

    files = {"": path.absolute(), **{name: path.absolute().parent / name for name in kept.others}}
    maps = {name: MappedFile(file) for name, file in files.items()}

    def leaf(number: int) -> Any:
        place = kept.places[number]
        return place.within(maps[place.file]) if isinstance(place, Place) else place

    return kept.key, {**kept.source, "name": path.name}, leaf, list(files.values())


def store_file(key: str, path: Path, module_key: str, source: dict[str, str], leaves: Sequence[Any]) -> None:
    """Record the contents of a file, if its arrays lie in it unchanged."""
    from . import cached_weights as kept_weights

    try:
        places = kept_weights.places_in_file(leaves, path.absolute())
        files = {place.file for place in places if isinstance(place, kept_weights.Place)} - {""}
        others = {name: stamp for name in sorted(files) if (stamp := _stamp(path.parent / name)) is not None}
    except (kept_weights.NotKept, OSError, ValueError, IndexError):
        return
    _write(FILES, key, _InFile(module_key, source, places, others))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_size, info.st_mtime_ns


def _read(kind: str, key: str) -> Any:
    data = disk_cache.read(kind, key)
    if data is None:
        return None
    try:
        return pickle.loads(data)
    except Exception:  # written by something else: treated as missing
        return None


def _write(kind: str, key: str, value: object) -> bool:
    try:
        data = pickle.dumps(value, protocol=5)
    except Exception:  # the target's entry cannot be pickled
        return False
    if not disk_cache.takes(len(data)):
        return False
    disk_cache.write(kind, key, data)
    return True


__all__ = [
    "KeyParts",
    "compiler_fingerprint",
    "find",
    "find_file",
    "hash_module",
    "key_of_file",
    "key_of_kernels",
    "leaves_of",
    "store",
    "store_file",
]
