"""`python -m bench.mcu --cmsis-nn CHECKOUT --output FILE.json` measures MLPerf Tiny's networks.

Both sides are linked by the same compiler (Debian: `gcc-arm-none-eabi`, `libnewlib-arm-none-eabi`) with the
same startup code and the same linker script, and run on the same board of QEMU (`qemu-system-arm`). Every
program runs its network once and twice, and the difference of the executed instructions is one run. Flash is
that of the whole program without the network's input, RAM its variables and the most of its stack that was
written. Ours takes an input and gives an output of float32, which it converts, and which RAM leaves out; the
peer's input and output are int8, and its output lies among its buffers. The peer's kernels are compiled with
-Ofast, as their authors advise, and have weights of 8 bits. Ours with weights of 4 bits have inputs and
outputs of layers in 8 bits, too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.targets.mcu.boards import MACHINES, STARTUP, emulated

import tilewright as tw

from .cmsis_nn import ASKED, DECLARATIONS, SCRATCH, peer_of, sources_of
from .measure import MAIN, STACK_WORDS, Measured, measured, plugin
from .networks import NETWORKS, Network
from .table import table

CC, AR = "arm-none-eabi-gcc", "arm-none-eabi-ar"
PROCESSORS = {
    "cortex-m4": ("-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"),
    "cortex-m7": ("-mcpu=cortex-m7", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard"),
    "cortex-m33": ("-mcpu=cortex-m33", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard"),
    "cortex-m55": ("-mcpu=cortex-m55", "-mfpu=auto", "-mfloat-abi=hard"),
}
NO_UNWINDING = ("-Wl,--gc-sections", "-Wl,--defsym=__exidx_start=0,--defsym=__exidx_end=0")
SOFTMAX_ERROR = 1e-6
"""The largest difference from `cpu` by the largest output: the order of the softmax's sum."""
C_TYPES = {"float32": "float", "uint8": "uint8_t"}


class Board:
    """Builds programs for a processor in a folder."""

    def __init__(self, processor: str, place: Path) -> None:
        self.processor, self.place = processor, place
        self.flags = [*PROCESSORS[processor], "-mthumb", "-ffunction-sections", "-fdata-sections"]
        (place / "link.ld").write_text(MACHINES[processor].script)
        (place / "startup.c").write_text(STARTUP)

    def library(self, sources: list[Path], include: Path) -> Path:
        """A static library of the peer's sources."""
        objects = []
        for source in sources:
            objects.append(self.place / f"{source.stem}.o")
            _run(CC, *self.flags, "-Ofast", "-std=gnu11", f"-I{include}", "-c", source, "-o", objects[-1])
        _run(AR, "rcs", self.place / "libpeer.a", *objects)
        return self.place / "libpeer.a"

    def program(
        self, name: str, main: str, sources: list[Path], libraries: list[Path], include: Path
    ) -> Path:
        source, built = self.place / f"{name}.c", self.place / f"{name}.elf"
        source.write_text(main)
        _run(
            CC, *self.flags, "-O2", "-std=gnu11", "-fno-builtin", f"-I{include}", self.place / "startup.c",
            source, *sources, *libraries, "-nostartfiles", "--specs=nano.specs", *NO_UNWINDING,
            "-Wl,-T", self.place / "link.ld", "-lm", "-o", built,
        )  # fmt: skip
        return built


def _run(*command: object) -> None:
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stderr[-4000:]}")


def ours(network: Network, quantized: Any, board: Board, counter: Path) -> tuple[Measured, dict[str, Any]]:
    """Measure our code: what the network takes, and the description of its memory."""
    x = network.samples()[0]
    want = np.asarray(tw.compile(quantized, target="cpu")(x))
    library = tw.compile(quantized, target=board.processor, cache=False)
    archive = library.save(board.place / "model.tar")
    folder = archive.with_suffix("")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    sources = [path for path in sorted(folder.glob("*.c")) if path.name != "main.c"]
    data = (
        f"static const _Alignas(8) unsigned char x[] = {{{', '.join(map(str, x.tobytes()))}}};\n"
        f"static _Alignas(8) float y[{want.size}];"
    )
    run = f"if (model_run((const {C_TYPES[str(x.dtype)]}*)x, y)) return say(model_error()), 1;"
    programs = [
        board.program(
            f"ours{runs}",
            MAIN.format(declarations='#include "model.h"', data=data, stack=STACK_WORDS, runs=runs, run=run,
                        report="say_bytes(y, sizeof y);"),
            sources, sorted(folder.glob("*.a")), folder,
        )
        for runs in (1, 2)
    ]  # fmt: skip
    found = measured(board.processor, *programs, counter)
    got = np.frombuffer(found.output, np.float32).reshape(want.shape)
    found = replace(found, flash=found.flash - x.nbytes, ram=found.ram - want.nbytes)
    facts = {"error": float(np.abs(got - want).max() / np.abs(want).max())}
    return found, {**facts, **library.metadata["static"]}


def peer(network: Network, board: Board, checkout: Path, library: Path, counter: Path) -> Measured:
    include = checkout / "Include"
    ASKED.clear()
    peer_of(network)
    asked = [question for question in ASKED if question not in SCRATCH]
    if asked:
        lines = "\n".join(f"{{ int32_t n = {q}; say_bytes(&n, 4); }}" for q in asked)
        say = "void say_bytes(const void*, size_t);"
        main = f"{DECLARATIONS}\n{say}\nint main(void) {{\n{lines}\nreturn 0;\n}}\n"
        said = emulated(board.processor, board.program("ask", main, [], [library], include))
        answers = [int.from_bytes(bytes.fromhex(x), "little") for x in said.split("\n") if x]
        SCRATCH.update(zip(asked, answers, strict=True))
    declarations, data, run = peer_of(network)
    programs = [
        board.program(
            f"peer{runs}",
            MAIN.format(declarations=declarations, data=data, stack=STACK_WORDS, runs=runs, run=run,
        report=""),
            [], [library], include,
        )
        for runs in (1, 2)
    ]  # fmt: skip
    found = measured(board.processor, *programs, counter)
    return replace(found, flash=found.flash - network.samples()[0].size)


def record(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON and as Markdown; those of other networks, processors and weights stay."""
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {(row["network"], row["processor"], row["weight_bits"]): row for row in [*kept, *rows]}
    ordered = [found[key] for key in sorted(found, key=lambda k: ([*NETWORKS].index(k[0]), k[1], -k[2]))]
    version = subprocess.run(["qemu-system-arm", "--version"], capture_output=True, text=True, check=True)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    note = f"{today}, {version.stdout.splitlines()[0]}, CMSIS-NN's kernels without an interpreter"
    path.write_text(json.dumps({"note": note, "rows": ordered}, indent=1) + "\n")
    title = "# MLPerf Tiny in 8-bit integers on Cortex-M, beside CMSIS-NN"
    about = " ".join((__doc__ or "").partition("\n\n")[2].split())
    path.with_suffix(".md").write_text(f"{title}\n\n{note}.\n\n{about}\n\n{table(ordered)}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[[], *NETWORKS], help="these only")
    parser.add_argument("--cmsis-nn", type=Path, help="a checkout of CMSIS-NN; without it, no peer")
    parser.add_argument("--processor", choices=[*PROCESSORS], action="append", help="these only")
    parser.add_argument(
        "--weight-bits", type=int, choices=(8, 4), action="append", help="weights of so many bits only"
    )
    parser.add_argument("--output", type=Path, help="write FILE.json, and FILE.md beside it")
    options = parser.parse_args()
    rows = []
    quantized = {
        (name, bits): NETWORKS[name].quantized(weight_bits=bits)
        for name in options.networks or NETWORKS
        for bits in options.weight_bits or (8, 4)
    }
    for processor in options.processor or ("cortex-m4", "cortex-m7", "cortex-m55"):
        SCRATCH.clear()
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            counter, board = plugin(place), Board(processor, place)
            library = None
            if options.cmsis_nn:
                library = board.library(sources_of(options.cmsis_nn), options.cmsis_nn / "Include")
            for (name, bits), model in quantized.items():
                found, facts = ours(NETWORKS[name], model, board, counter)
                row: dict[str, Any] = {
                    "network": name,
                    "processor": processor,
                    "weight_bits": bits,
                    "ours": found.record(),
                    **facts,
                }
                if library is not None and bits == 8:
                    row["peer"] = peer(NETWORKS[name], board, options.cmsis_nn, library, counter).record()
                rows.append(row)
                print(table([row]).split("\n")[-1], flush=True)
                if row["error"] > SOFTMAX_ERROR:
                    print(f"{name} on {processor} differs from cpu by {row['error']}", flush=True)
    if options.output:
        record(options.output, rows)
    return 0 if all(row["error"] <= SOFTMAX_ERROR for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
