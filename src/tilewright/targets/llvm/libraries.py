"""Libraries of the user's: C functions that compute matrix products in place of generated code.

    register_library("acme", symbol="acme_sgemm", objects=["libacme.a"])

From then on a kernel of a matrix product calls the function for each tile of its result, and its epilogue (a
bias, an activation) runs over the tile as after generated code. The object files are linked into the
artifact, so it stays self-contained. The function has the type

    void f(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
           float *c, int64_t ldc);

with the element types of `ExternalLibrary.dtypes`. It sets ``c[i * ldc + j]`` to the sum over p < k of
``a[i * lda + p] * b[p * ldb + j]``, for i < m and j < n. Several threads call it at a time, for disjoint
tiles.

A contraction that the library does not take keeps its generated code; the report's `slower` says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...analysis.axis_roles import Roles
from ...analysis.contraction import Contraction
from ...analysis.index_maps import product
from ...analysis.loop_nest import written_buffer
from ...artifact import disk_cache
from ...dialects import loop
from ...dialects.tensor import GroupKind, extent
from ...errors import CompileError
from ...ir import notes
from ...ir.plugins import call_plugins
from ...ir.symbolic import Dim
from ...ir.target_info import TargetInfo
from ...ir.types import DType, f32
from ...schedule import Schedule, ScheduleError
from ...schedule.rules import RULES, register_schedule_rule
from .rules.common import blocks_of, fuse_all, loop_of, moving, same_place, set_grain, upper_limit
from .rules.contraction import reorder_alone, tile_loops, tile_work

Accepts = Callable[[int | None, int | None, int | None], bool]
"""``accepts(m, n, k)``: whether the library shall compute a product of these sizes; None is a size that is
known only at run time.
"""

ENTRY_POINTS = "tilewright.libraries"
"""Group of entry points. Each names a function without parameters that calls `register_library`."""


@dataclass(frozen=True)
class ExternalLibrary:
    """A registered library, see `register_library`."""

    name: str
    """The name in reports."""
    symbol: str
    """The name of the C function."""
    objects: tuple[Path, ...]
    """The object files or static libraries."""
    digests: tuple[str, ...]
    """Digests of the contents of `objects`; with the other fields a part of the cache's keys."""
    dtypes: tuple[DType, DType, DType]
    """The element types of the left operand, the right operand and the result."""
    target: str
    """The target, or family of targets, whose code calls it."""
    tile: tuple[int, int]
    """The largest number of rows and of columns of one call, in elements."""
    accepts: Accepts | None
    """Whether it computes a product of given sizes; None: all."""

    def describe(self) -> dict[str, Any]:
        """The description in metadata and in the cache's keys, which hold the code of `accepts` besides."""
        return {
            "name": self.name,
            "symbol": self.symbol,
            "objects": list(self.digests),
            "dtypes": [dtype.name for dtype in self.dtypes],
            "tile": list(self.tile),
        }

    def takes(self, dtypes: tuple[DType, DType, DType], sizes: tuple[Dim, Dim, Dim]) -> bool:
        """Whether the library computes a product.

        Args:
            dtypes: The element types of the left operand, the right operand and the result.
            sizes: The numbers (m, n, k) of rows, columns and terms, in elements; they may be symbolic.
        """
        m, n, k = (size if isinstance(size, int) else None for size in sizes)
        return self.dtypes == dtypes and (self.accepts is None or self.accepts(m, n, k))


LIBRARIES: dict[str, ExternalLibrary] = {}
"""Registered libraries by name. The cache of compiled models notices the functions in it."""


def register_library(
    name: str,
    *,
    symbol: str,
    objects: Sequence[str | Path],
    kind: str = GroupKind.CONTRACTION,
    dtypes: tuple[DType, DType, DType] = (f32, f32, f32),
    target: str = "cpu",
    tile: tuple[int, int] = (64, 512),
    accepts: Accepts | None = None,
) -> ExternalLibrary:
    """Let a C function compute matrix products on `target`, in place of generated code.

    Args:
        name: A name for reports and for `unregister_library`; a library of this name is replaced.
        symbol: The name of the C function; the module's docstring gives its type.
        objects: Object files or static libraries, compiled for the target as position-independent code.
        kind: The kind of group that the function computes: `GroupKind.CONTRACTION`, the only one so far.
        dtypes: Element types of the left operand, the right operand and the result.
        target: A target with LLVM code: a full name (``cpu:x86-64-v4``) or a family (``cpu``).
        tile: The largest number of rows and of columns of one call. Threads share the tiles, so larger ones
            suit fewer threads, and leave the caches before the epilogue runs.
        accepts: Takes the sizes of a whole product and returns whether the library computes it; all if None.

    Raises:
        CompileError: An object file cannot be read or is a shared library, a name or size is not valid, or
            the target has another schedule rule for contractions.
    """
    if kind != GroupKind.CONTRACTION:
        raise CompileError(f"library {name!r}: kind is {kind!r}; {GroupKind.CONTRACTION!r} is expected")
    if not re.fullmatch(r"[A-Za-z_]\w*", symbol, re.ASCII):
        raise CompileError(f"library {name!r}: symbol {symbol!r} is not the name of a C function")
    if min(tile) < 1:
        raise CompileError(f"library {name!r}: tile is {tile}; rows and columns are at least 1")
    paths = tuple(Path(path).absolute() for path in objects)
    for path in paths:
        if re.search(r"\.(so[.\d]*|dylib|dll)$", path.name):
            raise CompileError(
                f"library {name!r}: {path} is a shared library; give object files or a static library, since "
                "artifacts are self-contained"
            )
    if RULES.get((kind, target), library_contraction) is not library_contraction:
        raise CompileError(
            f"library {name!r}: another schedule rule for {kind!r} on target {target!r} is registered"
        )
    digests = tuple(disk_cache.digest(_contents(name, path)) for path in paths)
    library = ExternalLibrary(name, symbol, paths, digests, dtypes, target, tile, accepts)
    LIBRARIES[name] = library
    register_schedule_rule(kind, library_contraction, target=target)
    return library


def unregister_library(name: str) -> None:
    """Compile with generated code again, without the library `name`. One that is not registered is
    ignored.
    """
    library = LIBRARIES.pop(name, None)
    if library is not None and all(other.target != library.target for other in LIBRARIES.values()):
        RULES.pop((GroupKind.CONTRACTION, library.target), None)


def load_plugin_libraries() -> None:
    """Call the functions that installed packages name in the group `ENTRY_POINTS`, each once in a process.

    Raises:
        CompileError: A package cannot be loaded, or its function fails; the message names the package.
    """
    call_plugins(ENTRY_POINTS, "libraries", "tilewright.targets.llvm.libraries.register_library")


def libraries_for(info: TargetInfo) -> list[ExternalLibrary]:
    """The libraries that the target of `info` may call, in the order of registration."""
    return [library for library in LIBRARIES.values() if library.target in (info.name, info.family)]


def objects_of(names: Sequence[str]) -> list[bytes]:
    """The contents of the object files of the libraries called `names`.

    Raises:
        CompileError: A file is missing or has changed since the library was registered.
        KeyError: No library of a name is registered.
    """
    contents = []
    for library in (LIBRARIES[name] for name in names):
        for path, digest in zip(library.objects, library.digests, strict=True):
            contents.append(_contents(library.name, path))
            if disk_cache.digest(contents[-1]) != digest:
                raise CompileError(
                    f"library {library.name!r}: {path} has changed since it was registered; register it again"
                )
    return contents


def _contents(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CompileError(f"library {name!r}: cannot read {path}: {error}") from error


def reads_row_major(info: TargetInfo, c: Contraction) -> bool:
    """Whether a library of the target of `info` takes the contraction `c`, so that its right operand shall be
    a row-major matrix.
    """
    if len(c.n) != 1 or len(c.k) != 1:
        return False
    sizes = product(extent(axis) for axis in c.m), extent(c.n[0]), extent(c.k[0])
    return any(
        library.takes((c.a.type.dtype, c.b.type.dtype, c.dtype), sizes) for library in libraries_for(info)
    )


def library_contraction(s: Schedule, rows: int) -> None:
    """The schedule rule of contractions that a library computes, tile by tile; `s` and `rows` as of
    `ScheduleRule`.

    Raises:
        ScheduleError: No library takes the contraction, or it is not a product of row-major matrices.
    """
    blocks = blocks_of(s)
    main = next(b for b in blocks if notes.CONTRACTION.present(b))
    epilogue = next((b for b in blocks if b is not main), None)
    roles = Roles.of(main)
    assert roles is not None
    library = _library_of(main, roles, s.info)
    root = epilogue or main
    n, k = loop_of(s, root, roles.n[0]), loop_of(s, main, len(main.axes) + roles.k[0])
    if n is None or k is None:
        raise ScheduleError(f"library {library.name!r}: the product has a single column or term")
    row_loops = [loop_of(s, root, p) for p in roles.m]
    m = row_loops.pop() if row_loops else None
    height, width = library.tile
    work = tile_work(main, s.loop(m).extent if m else 1, height, s.loop(n).extent, width)
    m_outer, m = s.split(m, height) if m and upper_limit(s.loop(m).extent) > height else (None, m)
    n_outer, n = s.split(n, width) if upper_limit(s.loop(n).extent) > width else (None, n)
    outer = [*(loop_of(s, root, p) for p in roles.batch), *row_loops, m_outer, n_outer]
    tiles = [x for x in outer if x is not None]
    s.reorder(*tiles, *[x for x in (m, n) if x], *([k] if root is main else []))
    at = fuse_all(s, tiles) if tiles else None
    if at is not None:
        s.parallel(at)
        set_grain(s, work)
    if epilogue is not None:
        if at is not None:
            s.compute_at(main.sym_name, at)
        else:
            reorder_alone(s, main, roles)
        s.vectorize(n)
        if not notes.BUFFER_ALIASES.present(s.kernel) and same_place(main, epilogue):
            s.write_into(main.sym_name, epilogue.sym_name)
        else:
            s.compact()
    tile = tile_loops(s, main, roles)
    assert tile is not None, "a product with columns and terms has loops over them"
    _, m, n, (k,) = tile
    s.call_library(main.sym_name, m, n, k, library.name, library.symbol)


def _library_of(main: loop.Block, roles: Roles, info: TargetInfo) -> ExternalLibrary:
    """The first library that takes the product of a block.

    Raises:
        ScheduleError: There is none; the message says why.
    """
    if roles.quantized or roles.grouped or len(roles.n) != 1 or len(roles.k) != 1:
        raise ScheduleError("library: the contraction is not a plain matrix product")
    left, right = (op for op in main.body.ops if isinstance(op, loop.Load))
    column = main.axes[roles.n[0]]
    if column in moving(left):
        left, right = right, left
    dtypes = left.buffer.type.dtype, right.buffer.type.dtype, written_buffer(main).type.dtype
    sizes = (
        product(main.axes[p].upper + 1 for p in roles.m),
        column.upper + 1,
        main.reduce_axes[roles.k[0]].upper + 1,
    )
    libraries = libraries_for(info)
    library = next((library for library in libraries if library.takes(dtypes, sizes)), None)
    if library is None:
        raise ScheduleError(
            f"library {', '.join(repr(library.name) for library in libraries)}: does not accept m, n, k = "
            f"{', '.join(map(str, sizes))} of types {', '.join(dtype.name for dtype in dtypes)}"
        )
    if roles.padded:
        raise ScheduleError(
            f"library {library.name!r}: the right operand is packed into panels, not row-major"
        )
    return library


__all__ = [
    "Accepts",
    "ExternalLibrary",
    "libraries_for",
    "library_contraction",
    "load_plugin_libraries",
    "objects_of",
    "reads_row_major",
    "register_library",
    "unregister_library",
]
