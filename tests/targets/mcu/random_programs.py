"""`python -m tests.targets.mcu.random_programs --count 50 --record` runs random programs on QEMU's boards and
compares every output with the interpreter's.

Programs with sizes that have no upper bound, or that are known at run time only, need memory that a
microcontroller does not give, and are passed over. The outcomes are in ``random_programs.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.differential.check import Run, judge
from tests.differential.generator import generate
from tests.targets.mcu.boards import MACHINES, run_on

import tilewright as tw
from tilewright.artifact.c_interface import C_TYPES, identifier
from tilewright.ir.core import Module
from tilewright.runtime.expressions import evaluate

DATA = Path(__file__).with_name("random_programs.json")


class PassedOver(Exception):
    """The program is not one for static memory."""


def on_board(name: str) -> Run:
    """A `Run` on the processor `name`."""

    def run(module: Module, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        lib = tw.compile(module.clone(), target=name, cache=False)
        declared: Any = module.symbol("main")
        dtypes = [np.dtype(value.type.dtype.numpy) for value in declared.outputs]
        with tempfile.TemporaryDirectory() as folder:
            if lib.metadata["static"]["refused"]:
                raise PassedOver(lib.metadata["static"]["refused"])
            path = lib.save(Path(folder) / "model.tar")
            main, types = _main(lib, dtypes, inputs)
            said = run_on(name, [path], main, Path(folder)).split("\n")
        texts = iter(said)
        return [[np.frombuffer(bytes.fromhex(next(texts)), t).reshape(s) for t, s in row] for row in types]

    return run


def _main(
    lib: Any, dtypes: list[np.dtype], inputs: list[list[np.ndarray]]
) -> tuple[str, list[list[tuple[np.dtype, tuple[int, ...]]]]]:
    """The main function, and the type and shape of each output that it says, by sets of inputs."""
    entry = lib.metadata
    sizes = list(dict.fromkeys(step["symbol"] for step in entry["solver"] if "symbol" in step))
    lines, body, types = [], [], []
    for number, arrays in enumerate(inputs):
        symbols = lib.symbols_of([x.shape for x in arrays])
        names = []
        for k, array in enumerate(arrays):
            names.append(f"in{number}_{k}")
            data = ", ".join(map(str, array.tobytes())) or "0"
            lines.append(f"static const _Alignas(8) unsigned char {names[-1]}[] = {{{data}}};")
        row = []
        for k, (output, dtype) in enumerate(zip(entry["outputs"], dtypes, strict=True)):
            shape = tuple(evaluate(size, symbols) for size in output["shape"])
            row.append((dtype, shape))
            names.append(f"out{number}_{k}")
            count = max(int(np.prod(shape)), 1) * dtype.itemsize
            lines.append(f"static _Alignas(8) unsigned char {names[-1]}[{count}];")
        types.append(row)
        kinds = [C_TYPES.get(t["dtype"], "uint8_t") for t in (*entry["inputs"], *entry["outputs"])]
        data = [f"({kind}*){name}" for kind, name in zip(kinds, names, strict=True)]
        given_sizes = [str(symbols[identifier(symbol)]) for symbol in sizes]
        body.append(f"  if (model_run({', '.join([*given_sizes, *data])})) return say(model_error()), 1;")
        outputs = names[len(arrays) :]
        for (dtype, shape), name in zip(row, outputs, strict=True):
            body.append(f"  say_bytes({name}, {int(np.prod(shape)) * dtype.itemsize});")
    head = '#include <stddef.h>\n#include "model.h"\nvoid say(const char*);'
    lines.insert(0, "void say_bytes(const void*, size_t);")
    return "\n".join([head, *lines, "int main(void) {", *body, "  return 0;", "}", ""]), types


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="programs to run on each processor")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processor", choices=[*MACHINES], help="this one only")
    parser.add_argument("--record", action="store_true", help="write the outcome to random_programs.json")
    options = parser.parse_args()
    outcome: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}
    failed = 0
    for name in [options.processor] if options.processor else MACHINES:
        done, wrong, seed = 0, [], options.first
        while done < options.count:
            failure = judge(generate(seed), on_board(name))
            if failure is None or PassedOver.__name__ not in failure.reason:
                done += 1
            if failure is not None and PassedOver.__name__ not in failure.reason:
                wrong.append(seed)
                print(f"{name}: {failure}", flush=True)
            seed += 1
        print(f"{name}: {done} programs from {options.first} to {seed - 1}, {len(wrong)} wrong", flush=True)
        failed += len(wrong)
        outcome[name] = {
            "programs": done,
            "first": options.first,
            "last": seed - 1,
            "wrong": wrong,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"QEMU's {MACHINES[name][0]}, on {platform.machine()}",
        }
    if options.record:
        DATA.write_text(json.dumps(outcome, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
