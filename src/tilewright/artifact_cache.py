"""Compiled models kept across processes, found by what they were compiled from: model, target, options, and this compiler.

Code is kept, weights are not: an entry says where in the model each lies and what is done to it (`kept_weights`). A model is known by its
imported graph and weights; what a file holds is noted beside, so that it is not imported again as long as it stays as it is.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import disk_cache

if TYPE_CHECKING:
    from .ir.core import Module
    from .targets.base import Target

KIND, FILES = "artifacts", "files"


@lru_cache(maxsize=1)
def compiler_fingerprint() -> str:
    """Changes with every file of this package, and with the versions of packages that import, fold and generate code."""
    import platform

    root = Path(__file__).parent
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
class Options:
    """What shapes code beside the model and this package."""

    target: Target
    precision: str | None
    opt: str
    checks: bool
    user_code: str
    """`user_code.fingerprint`."""

    def key(self, *model: str) -> str:
        """The key of a model that is told by texts."""
        options = repr((self.target.describe(), self.precision, self.opt, self.checks, self.user_code))
        return disk_cache.digest(compiler_fingerprint(), options, *model)


def key_of_file(model: Any, options: Options, dims: Mapping[str, Mapping[int, str]] | None) -> str | None:
    """The key of a model given as a path; None for anything else."""
    if not isinstance(model, (str, Path)) or not Path(model).is_file():
        return None
    path = Path(model)
    h = _hash_file(path)
    if path.suffix == ".onnx":
        from .kept_weights import may_have_data_elsewhere

        if may_have_data_elsewhere(path):  # in its folder or below: these files are known by name, size and time
            for file in sorted(path.parent.rglob("*")):
                if (
                    file.is_file()
                    and file != path
                    and file.suffix not in (".so", ".wasm", ".tar", ".h", ".py", ".json")
                ):
                    info = file.stat()
                    h += f";{file.relative_to(path.parent)}:{info.st_size}:{info.st_mtime_ns}"
    return options.key("file", path.suffix, repr(sorted((k, sorted(v.items())) for k, v in (dims or {}).items())), h)


def _hash_file(path: Path) -> str:
    import xxhash

    h = xxhash.xxh3_128()
    part = memoryview(bytearray(1 << 18))  # stays in the processor's cache
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(part):
            h.update(part[:size])
    return h.hexdigest()


def hash_module(module: Module) -> str:
    """A hash of an imported model: its text and the contents of its weights."""
    from .dialects import graph
    from .dialects.func import Func
    from .ir.printer import print_op

    digests = [op.value.digest() for op in module.walk() if isinstance(op, graph.Constant)]
    digests += [first.digest() for func in module.functions(Func) for _, first in func.states]
    return disk_cache.digest(print_op(module), *digests)


def leaves_of(module: Module) -> list[Any]:
    """The arrays of an imported model's constants and of its states' first values, in an order that follows from its text; None for one that is made when it is needed."""
    from .dialects import graph
    from .dialects.func import Func

    found = [op.value for op in module.walk() if isinstance(op, graph.Constant)]
    found += [first for func in module.functions(Func) for _, first in func.states]
    return [None if constant.is_made else constant.array for constant in found]


def find(key: str) -> tuple[Any, bytes] | None:
    """What a target keeps of a model, without its weights, and these by reference (`kept_weights.load`); or None."""
    found: tuple[Any, bytes] | None = _read(KIND, key)
    return found


def store(key: str, target: Target, library: Any, leaves: Sequence[Any]) -> bool:
    """Keep a library just compiled; returns whether that can be done. Of its weights nothing is kept but where they come from."""
    from . import kept_weights

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
    """A model in a file: the key of what was imported, its description, and where its arrays lie. `others`: size and time of files beside it that hold some."""

    key: str
    source: dict[str, str]
    places: list[Any]
    others: dict[str, tuple[int, int]]


def find_file(key: str, path: Path) -> tuple[str, dict[str, str], Callable[[int], Any], Sequence[Path]] | None:
    """Of a model in a file: the key of what was imported, its description, its arrays by number, and the files they are mapped from."""
    from .kept_weights import MappedFile, Place

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
    """Note what a file holds, if its arrays are found in it."""
    from . import kept_weights

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
    except Exception:  # written by something else: it is made anew
        return None


def _write(kind: str, key: str, value: Any) -> bool:
    try:
        data = pickle.dumps(value, protocol=5)
    except Exception:  # a target that keeps what cannot be written down
        return False
    if not disk_cache.takes(len(data)):
        return False
    disk_cache.write(kind, key, data)
    return True


__all__ = [
    "Options",
    "compiler_fingerprint",
    "find",
    "find_file",
    "hash_module",
    "key_of_file",
    "leaves_of",
    "store",
    "store_file",
]
