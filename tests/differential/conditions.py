"""Random graphs of small tensors of every type (`corners.py`), compiled and run under varied conditions:
unusual names, saved files that are replaced, damaged caches, several threads, modules in text form.

The conditions depend on the seed alone. Under all of them, the results must be those of the interpreter.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tilewright.ir.core import Module
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_op, resources_of

from ..caches import with_runtime
from .check import Failure, Run, judge
from .corners import Corners
from .generator import Program

NAMES = (
    "größe",
    "данные",
    "入力",
    "n" * 300,
    "batch-size",
    "a*b",
    "a%b",
    "a b",
    "None",
    "class",
    "lambda",
    "self",
    "out",
    "1",
    "-",
    "%x",
    "@main",
    '"',
    "x.y/z:0",
    "main",
    "int",
    "malloc",
    "tw_run",
    "dims",
    "seed",
    "args",
    "target",
    "\\n",
    "{}",
    "#x",
    "λ",
)
"""Names of inputs and results: other alphabets, operators, keywords of Python and C, symbols of the runtime,
and names that are long or need quotes.
"""
DIM_NAMES = (
    "größe",
    "данные",
    "入力",
    "n" * 300,
    "self",
    "out",
    "main",
    "int",
    "malloc",
    "dims",
    "seed",
    "λ",
)
"""Names of dynamic dimensions."""


@dataclass(frozen=True)
class Conditions:
    """The conditions under which a program is compiled and run."""

    seed: int
    names: tuple[str, ...] = ()
    by_text: bool = False
    """The module is printed and parsed before it is compiled."""
    saved: bool = False
    """The library is saved to the same path as the previous program's and loaded from there."""
    damaged: bool = False
    """The program is compiled, the cache is damaged, and the program is compiled again and run."""
    threads: int = 1
    """The number of threads that compile and run the program at the same time."""

    def __str__(self) -> str:
        parts = [f"names {list(self.names)}" if self.names else ""]
        parts += [name for name in ("by_text", "saved", "damaged") if getattr(self, name)]
        return ", ".join([p for p in parts if p] + ([f"{self.threads} threads"] if self.threads > 1 else []))


def conditions_of(seed: int) -> Conditions:
    rng = np.random.default_rng([seed, 1])
    names = tuple(str(n) for n in rng.permutation(np.array(NAMES, object))[:14]) if rng.random() < 0.6 else ()
    chosen = rng.random(3) < (0.3, 0.5, 0.15)
    return Conditions(seed, names, *map(bool, chosen), threads=3 if rng.random() < 0.12 else 1)


@cache
def _folder(process: int) -> Path:
    """A folder of this process. If the process is killed, the folder is removed with the system's temporary
    files.
    """
    import atexit

    found = Path(tempfile.mkdtemp(prefix="tilewright-programs-"))
    with_runtime(found / "cache")
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    return found


def run_under(conditions: Conditions) -> Run:
    """A `Run` that compiles and runs for this machine under the conditions."""

    def run(module: Module, inputs: list[list[np.ndarray[Any, Any]]]) -> list[list[np.ndarray[Any, Any]]]:
        folder = _folder(os.getpid())
        with mock.patch.dict(os.environ, TILEWRIGHT_CACHE_DIR=str(folder / "cache")):
            found = _in_threads(
                conditions.threads, lambda k: _run(conditions, module, inputs, folder / f"model{k}.so")
            )
        for other in found[1:]:
            for a, b in zip(_flat(other), _flat(found[0]), strict=True):
                np.testing.assert_array_equal(a, b, "threads differ")
        return found[0]

    return run


def _flat(results: list[list[np.ndarray[Any, Any]]]) -> list[np.ndarray[Any, Any]]:
    return [array for outputs in results for array in outputs]


def _in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The result of `work` for each number, each in a thread. Raises the first exception of any thread."""
    if count == 1:
        return [work(0)]
    results: list[Any] = [None] * count

    def each(k: int) -> None:
        try:
            results[k] = work(k)
        except BaseException as error:
            results[k] = error

    threads = [threading.Thread(target=each, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _run(
    conditions: Conditions, module: Module, inputs: list[list[np.ndarray[Any, Any]]], path: Path
) -> list[list[np.ndarray[Any, Any]]]:
    import tilewright as tw

    module = parse(print_op(module), resources_of(module)) if conditions.by_text else module.clone()
    if conditions.damaged:
        tw.compile(module.clone(), threads=2).close()
        damage(path.parent / "cache", np.random.default_rng([conditions.seed, 2]))
    library = tw.compile(module, threads=2, cache=conditions.damaged)
    if conditions.saved:
        library.save(path)
        library.close()
        library = tw.load(path)
    with library:
        results = [library(*arrays) for arrays in inputs]
    return [list(r) if isinstance(r, tuple) else [r] for r in results]


def damage(folder: Path, rng: np.random.Generator) -> None:
    """Change some entries of a cache: truncate them, empty them, flip a bit, overwrite them with zeros, or
    put a folder in their place. One program in eight also loses objects of the C runtime, which take seconds
    to compile again.
    """
    spared = () if rng.random() < 1 / 8 else ("runtime",)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    for path in files:
        if rng.random() < 0.5 or any(part in spared for part in path.parts):
            continue
        try:
            data = bytearray(path.read_bytes())
            kind = int(rng.integers(5))
            if kind == 0:
                path.write_bytes(data[: int(rng.integers(len(data) + 1))])
            elif kind == 1:
                path.write_bytes(b"")
            elif kind == 2 and data:
                data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
                path.write_bytes(data)
            elif kind == 3:
                path.write_bytes(bytes(len(data)))
            else:
                path.unlink()
                path.mkdir()
        except OSError:  # another thread is changing the entry
            continue


def _named(g: Corners) -> Corners:
    g.dim_names = tuple(str(name) for name in g.rng.choice(DIM_NAMES, 2, replace=False))
    return g


def generate(seed: int, max_steps: int = 10) -> Program:
    """The program of a seed, with the names that its conditions give."""
    conditions = conditions_of(seed)
    with np.errstate(all="ignore"):
        program = _named(Corners(seed, max_steps)).program()
    if conditions.names:
        main, rest = program.main, conditions.names
        count = len(main.arg_names)
        main.arg_names = tuple(rest[:count])
        main.result_names = tuple(f"{name}'" for name in rest[count : count + len(main.result_names)])
    return program


def check(seed: int, max_steps: int = 10) -> Failure | None:
    """Run the program of a seed under its conditions, and compare it with the interpreter."""
    conditions = conditions_of(seed)
    failure = judge(generate(seed, max_steps), run_under(conditions))
    return failure and replace(failure, reason=f"{failure.reason}\nunder {conditions}")


__all__ = ["Conditions", "check", "conditions_of", "damage", "generate", "run_under"]
