"""Time of the IR core on many graph-level operations: ``python bench/ir_core.py [operations]`` prints a
table.

Best of five runs on one core, with garbage collection enabled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.ir.large_module import build, simplify  # noqa: E402

from tilewright.ir.core import Module  # noqa: E402
from tilewright.ir.parser import parse  # noqa: E402
from tilewright.ir.printer import print_op  # noqa: E402
from tilewright.ir.verifier import verify  # noqa: E402


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    steps: list[tuple[str, Callable[[], Any], Callable[[Any], object]]] = [
        ("build", lambda: count, build),
        ("verify", lambda: build(count), verify),
        ("clone", lambda: build(count), Module.clone),
        ("fold + CSE + DCE", lambda: build(count), simplify),
        ("print", lambda: build(count), print_op),
        ("print generic", lambda: build(count), lambda m: print_op(m, generic=True)),
        ("parse", lambda: print_op(build(count)), parse),
        ("parse generic", lambda: print_op(build(count), generic=True), parse),
    ]
    print(f"{count} operations\n{'step':<18} {'ms':>8} {'us/op':>8}")
    for name, prepare, work in steps:
        seconds = []
        for _ in range(5):
            data = prepare()
            start = perf_counter()
            work(data)
            seconds.append(perf_counter() - start)
        best = min(seconds)
        print(f"{name:<18} {best * 1e3:8.1f} {best / count * 1e6:8.2f}")


if __name__ == "__main__":
    main()
