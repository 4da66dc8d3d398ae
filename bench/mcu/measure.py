"""Programs on QEMU's boards: executed instructions, bytes of flash, bytes of RAM with the stack."""

from __future__ import annotations

import re
import struct
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.targets.mcu.boards import emulated

PLUGIN = Path(__file__).with_name("count.c")
MAIN = """
#include <stddef.h>
#include <stdint.h>
{declarations}
void say(const char*);
void say_bytes(const void*, size_t);
extern uint32_t stack_top;
{data}
int main(void) {{
  uint32_t here, *low = &stack_top - {stack};
  for (uint32_t* p = low; p < &here - 32; ++p) *p = 0xa5a5a5a5;
  for (int k = 0; k < {runs}; ++k) {run}
  while (*low == 0xa5a5a5a5) ++low;
  uint32_t used = (uint32_t)((char*)&stack_top - (char*)low);
  say_bytes(&used, sizeof used);
  {report}
  return 0;
}}
"""
"""A main function that runs a model and says how much of the stack was written, then the outputs."""
STACK_WORDS = 4096
"""Words of the stack that are looked at."""


@dataclass(frozen=True)
class Measured:
    """The costs of a program.

    Attributes:
        instructions: Executed ones of one run of the model.
        flash: Bytes of code and constants of the whole program, with the startup code.
        ram: Bytes of variables and the most of the stack that was used, with the inputs and outputs.
        output: The bytes that the program says.
    """

    instructions: int
    flash: int
    ram: int
    output: bytes

    def record(self) -> dict[str, int]:
        return {key: value for key, value in asdict(self).items() if key != "output"}


def plugin(place: Path) -> Path:
    """The plugin of QEMU, built."""
    built = place / "count.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", built, PLUGIN], check=True)
    return built


def measured(processor: str, once: Path, twice: Path, counter: Path) -> Measured:
    """Measure a model by programs that run it once and twice: the difference is one run of it."""
    counts, outputs = [], []
    for program in (once, twice):
        said = emulated(processor, program, ["-plugin", str(counter), "-d", "plugin"])
        found = re.search(r"instructions (\d+)", said)
        assert found, said
        counts.append(int(found[1]))
        outputs.append([bytes.fromhex(line) for line in said.split("\n") if re.fullmatch("[0-9a-f]+", line)])
    assert outputs[0][1:] == outputs[1][1:]  # without the stack, which may differ by a loop's variables
    stack, *output = outputs[0]
    flash, variables = sizes(once)
    return Measured(
        counts[1] - counts[0], flash, variables + int.from_bytes(stack, "little"), b"".join(output)
    )


def sizes(program: Path) -> tuple[int, int]:
    """The bytes of flash and of variables that an ELF file of 32 bits states."""
    data = program.read_bytes()
    start, size, count = (struct.unpack_from("<I", data, 32)[0], *struct.unpack_from("<HH", data, 46))
    flash = variables = 0
    for k in range(count):
        _, kind, flags, _, _, length = struct.unpack_from("<6I", data, start + k * size)
        if flags & 2:  # is loaded
            flash += length if kind != 8 else 0
            variables += length if flags & 1 else 0
    return flash, variables


__all__ = ["MAIN", "STACK_WORDS", "Measured", "measured", "plugin", "sizes"]
