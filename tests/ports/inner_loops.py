"""Inner loops in assembly texts of AArch64, and their speed as llvm-mca estimates it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

ACCUMULATORS = 24
REPEATS = 200
MCA = ("llvm-mca-22", "llvm-mca-21", "llvm-mca-20", "llvm-mca-19")
"""Names of the program, the preferred one first. Versions before 19 lack descriptions of processors."""


def inner_loop(text: str, product: str) -> list[str]:
    """The instructions of the loop in an assembly text that has the most products.

    The text is of several modules, whose labels have the same names.
    """
    lines, labels = text.splitlines(), dict[str, int]()
    loops = []
    for k, line in enumerate(lines):
        if label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = k
        target = re.search(r"\tb[\w.]*\t(\.L\w+)", line)
        if target and target[1] in labels:
            body = [re.split("//|@", x)[0].strip() for x in lines[labels.pop(target[1]) : k + 1]]
            loops.append([x for x in body if x and x[0] != "." and not x.endswith(":")])
    return max(loops, key=lambda body: sum(x.startswith(product) for x in body))


def program() -> str | None:
    """The path of llvm-mca, if it is installed."""
    return next((path for name in MCA if (path := shutil.which(name))), None)


def cycles(body: Sequence[str], processor: str) -> float:
    """The estimated cycles of one iteration of a loop."""
    command = [program() or MCA[-1], "-mtriple=aarch64", f"-mcpu={processor}", f"-iterations={REPEATS}"]
    command.append("-mattr=+dotprod,+i8mm,+bf16,+sve")
    text = "\n".join(body) + "\n"
    done = subprocess.run(command, input=text, check=True, capture_output=True, text=True)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert found is not None, done.stdout
    return int(found[1]) / REPEATS


def least_cycles(instructions: Sequence[str], processor: str) -> float:
    """The estimated cycles of a group of instructions that waits for nothing: ``{}`` in their texts is the
    number of one of `ACCUMULATORS` registers.
    """
    body = [text.format(k) for k in range(ACCUMULATORS) for text in instructions]
    return cycles(body, processor) / ACCUMULATORS


__all__ = ["cycles", "inner_loop", "least_cycles", "program"]
