"""Compiled models kept across processes, found by what they were compiled from: model, target, options, and this compiler.

A model in a file is known by the file's contents, before anything is imported; any other model by its imported graph and weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import disk_cache

if TYPE_CHECKING:
    from .ir.core import Module
    from .targets.base import Target

KIND = "artifacts"


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
    user_code: str
    """`user_code.fingerprint`."""

    def key(self, *model: str) -> str:
        """The key of a model that is told by texts."""
        options = repr((self.target.describe(), self.precision, self.opt, self.user_code))
        return disk_cache.digest(compiler_fingerprint(), options, *model)


def key_of_file(model: Any, options: Options, dims: Mapping[str, Mapping[int, str]] | None) -> str | None:
    """The key of a model given as a path; None for anything else."""
    if not isinstance(model, (str, Path)) or not Path(model).is_file():
        return None
    path = Path(model)
    h = _hash_file(path)
    # Weights may lie in files beside it: they are known by name, size and time.
    for file in sorted(path.parent.iterdir()):
        if file.is_file() and file != path and file.suffix not in (".so", ".wasm", ".tar", ".h", ".py", ".json"):
            info = file.stat()
            h += f";{file.name}:{info.st_size}:{info.st_mtime_ns}"
    return options.key("file", path.suffix, repr(sorted((k, sorted(v.items())) for k, v in (dims or {}).items())), h)


def _hash_file(path: Path) -> str:
    import xxhash

    h = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            h.update(chunk)
    return h.hexdigest()


def hash_module(module: Module) -> str:
    """A hash of an imported model: its text and the contents of its weights."""
    from .dialects import graph
    from .dialects.func import Func
    from .ir.printer import print_op

    digests = [op.value.digest() for op in module.walk() if isinstance(op, graph.Constant)]
    digests += [first.digest() for func in module.functions(Func) for _, first in func.states]
    return disk_cache.digest(print_op(module), *digests)


def find(key: str, suffix: str) -> Path | None:
    """The kept artifact, or None."""
    path = disk_cache.path_of(KIND, key + suffix)
    return path if path.is_file() else None


def store(key: str, suffix: str, library: Any) -> None:
    """Keep a library that can be saved, if it is not too large for the cache or its disk; failing to is no error."""
    if not disk_cache.takes(library.metadata.get("memory", {}).get("weights_bytes", 0)):
        return
    path = disk_cache.path_of(KIND, key + suffix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        library.save(path)
        disk_cache.prune()
    except Exception:  # a full disk or an unwritable home: the model is compiled anew next time
        with suppress(OSError):
            path.unlink(missing_ok=True)


__all__ = ["Options", "compiler_fingerprint", "find", "hash_module", "key_of_file", "store"]
