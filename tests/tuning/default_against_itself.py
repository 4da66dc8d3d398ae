"""Measure defaults against copies of themselves: how often the final of a search accepts equal code.

    python -m tests.tuning.default_against_itself --searches 20 --seconds 1200

Each search has one knob whose values all stand for the same code, in libraries of their own, so that none is
faster. Run it beside other work, too: false improvements come from load and from where code is placed.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.artifact.choices import Choice
from tilewright.driver.tuned import keys_for
from tilewright.tuning.kernels import Builder, kernels_of
from tilewright.tuning.measure import Built, Measurer
from tilewright.tuning.search import Result, Search, Settings
from tilewright.tuning.space import Space

from .record_tables import KERNELS, THREADS, Kernel

COPIES = 8
SETTINGS = Settings(trials=COPIES, batch=COPIES)


def copies(kernel: Kernel, folder: Path) -> list[Built]:
    """The default's library, and copies of it."""
    function, arguments = kernel.make()
    compilation: Any = tw.compile(function, arguments, cache=False, threads=THREADS).origin
    key = keys_for(compilation.target, THREADS)
    (found,) = (k for k in kernels_of(compilation, key, {})[0] if k.has_knobs)
    (built,) = Builder(found, compilation.target, folder, THREADS)([found.space().default])
    if not isinstance(built, Built):
        raise built
    libraries = [built]
    for number in range(COPIES):
        path = folder / f"copy-{number}.so"
        shutil.copy(built.library, path)
        libraries.append(replace(built, library=path))
    return libraries


def rule(choices: Mapping[str, Any]) -> list[Choice]:
    """A rule with one knob without effect."""
    values = tuple("abcdefghi"[: COPIES + 1])
    return [Choice("copy", choices.get("copy", "a"), "a", values)]


def search(libraries: list[Built], seed: int) -> tuple[bool, float]:
    """Whether a search replaces the default, and the best speedup that it believed in, as a logarithm."""
    found, measurer = Search(Space(rule), seed=seed, settings=SETTINGS), Measurer()
    while requests := found.ask():
        for request in requests:
            candidate = libraries["abcdefghi".index(str(request.point.values["copy"]))]
            measured = measurer.measure(libraries[0], candidate, request.blocks)
            found.tell(request, Result(measured.samples, measured.failure))
    assert found.outcome is not None
    finals = [c.fresh for c in found._measured.values() if c.fresh]
    medians = [sorted(x for group in groups for x in group) for groups in finals]
    best = max((m[len(m) // 2] for m in medians), default=0.0)
    return found.outcome.point.key != found.space.default.key, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1200)
    given = parser.parse_args()
    end, done, accepted = time.monotonic() + given.seconds, 0, 0
    kernels = [k for k in KERNELS if "quantized" not in k.name][:9]
    with tempfile.TemporaryDirectory() as folder:
        made: dict[str, list[Built]] = {}
        while done < given.searches and time.monotonic() < end:
            kernel = kernels[done % len(kernels)]
            if kernel.name not in made:
                own = Path(folder) / str(len(made))
                own.mkdir()
                made[kernel.name] = copies(kernel, own)
            begun = time.monotonic()
            wrong, best = search(made[kernel.name], done)
            done, accepted = done + 1, accepted + wrong
            seconds = time.monotonic() - begun
            print(
                f"{kernel.name}: {'ACCEPTED' if wrong else 'kept'}, {best:+.4f}, {seconds:.0f} s", flush=True
            )
    print(f"{accepted} of {done} searches replaced the default by equal code")


if __name__ == "__main__":
    main()
