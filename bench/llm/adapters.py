"""`python -m bench.llm.adapters`: the cost of low-rank adapters, on the model of `bench.llm` in int4.

Two libraries are compiled, with and without places for adapters. Steps of decoding and prompts take turns, so
that ratios hold on a machine that does other work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.llm.library import (
    LibraryOptions,
    LibraryRunner,
    compile_library,
    open_library,
    save_library,
)
from tilewright.llm.weights import open_checkpoint

from .model import SIZES, Size, kept_or_temporary, prompts, write

COUNT = 4


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.llm.adapters", description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="1b")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--targets", help="layers with adapters, such as q_proj,v_proj (default: all)")
    parser.add_argument("--seconds", type=float, default=30, help="time for each workload")
    parser.add_argument("--folder", type=Path, help="keeps the libraries for the next run")
    parser.add_argument("--build", action="store_true", help="only compile the libraries")
    options = parser.parse_args(arguments)
    with kept_or_temporary(options.folder) as folder:
        _run(options, Path(folder))


def _run(options: argparse.Namespace, folder: Path) -> None:
    size = SIZES[options.size]
    targets = None if options.targets is None else tuple(options.targets.split(","))
    paths = {count: _built(folder, size, count, options.rank, targets) for count in (0, COUNT)}
    if options.build:
        return
    plain, adapted = (open_library(path)[0] for path in paths.values())
    _fill(adapted)
    batch = size.users
    mixed = [1 + i * COUNT // batch for i in range(batch)]
    cases: dict[str, tuple[LibraryRunner, list[int]]] = {
        "library without adapters": (plain, [0] * batch),
        "no row has an adapter": (adapted, [0] * batch),
        "all rows have the same adapter": (adapted, [1] * batch),
        f"{COUNT} adapters": (adapted, mixed),
    }
    print(f"{options.size}, int4, {options.targets or 'all linear layers'}, rank {options.rank}")
    for label, step in (("decode", _decode), ("prefill", _prefill)):
        medians = _turns({name: step(size, *case) for name, case in cases.items()}, options.seconds)
        first = next(iter(medians.values()))
        for name, seconds in medians.items():
            print(f"{label:8} {name:32} {1e3 * seconds:8.2f} ms {seconds / first:6.3f}")


def _built(folder: Path, size: Size, count: int, rank: int, targets: tuple[str, ...] | None) -> Path:
    how = f"-{rank}-{'+'.join(targets or ('all',))}" if count else ""
    path = folder / f"adapters-{count}{how}" / "model.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    source = folder / "model.gguf"
    if not source.exists():
        write(size, "int4", source)
    checkpoint = open_checkpoint(source)
    options = LibraryOptions(
        context=size.held, chunk=size.prompt, max_batch=size.users, pages=size.cached // 64, speculated=1,
        max_adapters=count, max_adapter_rank=rank, adapter_targets=targets if count else None,
    )  # fmt: skip
    with compile_library(checkpoint, options) as library:
        save_library(library, checkpoint, path)
    return path


def _fill(runner: LibraryRunner) -> None:
    """Give all adapters random matrices of the full rank."""
    random = np.random.default_rng(0)
    state = runner.library.state
    for name in state:
        if name.startswith("adapter."):
            value = state[name]
            value[1:] = 0.01 * random.standard_normal(value[1:].shape, np.float32)
            state[name] = value


def _use(runner: LibraryRunner, numbers: list[int]) -> None:
    if runner.adapters is not None:
        for slot, number in enumerate(numbers):
            runner.adapters.use(slot, number)


def _decode(size: Size, runner: LibraryRunner, numbers: list[int]) -> Callable[[], Any]:
    """A step with a token for each of a batch of sequences, whose context is the short one."""
    batch = len(numbers)
    tokens = np.array([p[0] for p in prompts(size, 1, batch)], np.int32)
    pages = -(-(size.context[0] + 1) // 64)
    table = np.arange(batch * pages, dtype=np.int32).reshape(batch, pages)
    lengths, slots = np.full(batch, size.context[0], np.int32), np.arange(batch, dtype=np.int32)

    def step() -> Any:
        _use(runner, numbers)
        return runner.decode(tokens, lengths, table, slots)

    return step


def _prefill(size: Size, runner: LibraryRunner, numbers: list[int]) -> Callable[[], Any]:
    tokens = np.array(prompts(size, size.prompt)[0], np.int32)
    pages = np.arange(-(-size.prompt // 64), dtype=np.int32)

    def step() -> Any:
        _use(runner, numbers)
        return runner.prefill(tokens, 0, pages, 0)

    return step


def _turns(steps: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Medians in seconds of steps that take turns."""
    for step in steps.values():
        step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[next(iter(found))]) < 3:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            found[name].append(time.perf_counter() - start)
    return {name: float(np.median(times)) for name, times in found.items()}


if __name__ == "__main__":
    main()
