"""QEMU's boards of Cortex-M processors: programs are built with zig, and speak by semihosting."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tilewright.artifact.link import zig_command

QEMU = shutil.which("qemu-system-arm")


class Machine(NamedTuple):
    """A machine of QEMU, zig's names for its processor, and the memories that programs use of it."""

    machine: str
    triple: str
    processor: str
    flash: int
    ram: int
    flash_size: str = "4M"
    ram_size: str = "4M"

    @property
    def script(self) -> str:
        """The linker's script of a program."""
        return SCRIPT.format(
            flash=hex(self.flash), ram=hex(self.ram), flash_size=self.flash_size, ram_size=self.ram_size
        )


MACHINES = {
    "cortex-m4": Machine("mps2-an386", "thumb-freestanding-eabihf", "cortex_m4+vfp4d16sp", 0x0, 0x20000000),
    "cortex-m7": Machine(
        "mps2-an500", "thumb-freestanding-eabihf", "cortex_m7+fp_armv8d16sp-fp64", 0x0, 0x20000000
    ),
    "cortex-m33": Machine(
        "mps2-an505",
        "thumb-freestanding-eabihf",
        "cortex_m33+fp_armv8d16sp",
        0x10000000,
        0x38000000,
        "4M",
        "2M",
    ),
    "cortex-m55": Machine(
        "mps3-an547",
        "thumb-freestanding-eabihf",
        "cortex_m55+mve_fp+fp_armv8d16sp-fp64",
        0x0,
        0x20000000,
        "512K",
        "512K",
    ),
}
HEADERS = {
    "string.h": "#include <stddef.h>\nvoid* memcpy(void*, const void*, size_t);\n"
    "void* memset(void*, int, size_t);\n",
}
STARTUP = """
#include <stdint.h>
#include <string.h>
extern uint32_t stack_top, data_start, data_end, data_from, bss_start, bss_end;
int main(void);
static int host(int operation, const void* argument) {
  register int r0 __asm__("r0") = operation;
  register const void* r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}
void say(const char* text) { host(4, text); }
static void end(int code) {
  uint32_t block[2] = {0x20026, (uint32_t)code};
  host(0x20, block);
  for (;;) {
  }
}
void fault(void) {
  say("fault\\n");
  end(99);
}
void reset(void) {
  *(volatile uint32_t*)0xe000ed88 |= 0xfu << 20; /* lets the program use floating point */
  __asm__ volatile("dsb\\nisb");
  memcpy(&data_start, &data_from, (size_t)((char*)&data_end - (char*)&data_start));
  memset(&bss_start, 0, (size_t)((char*)&bss_end - (char*)&bss_start));
  end(main());
}
__attribute__((section(".vectors"), used)) const void* const vectors[] = {
    &stack_top, (void*)reset, (void*)fault, (void*)fault, (void*)fault, (void*)fault, (void*)fault};
/* Says bytes as hexadecimal digits. */
void say_bytes(const void* from, size_t count) {
  const uint8_t* bytes = from;
  char text[65];
  while (count) {
    size_t k = 0;
    for (; count && k < 64; --count, ++bytes) {
      text[k++] = "0123456789abcdef"[*bytes >> 4];
      text[k++] = "0123456789abcdef"[*bytes & 15];
    }
    text[k] = 0;
    say(text);
  }
  say("\\n");
}
"""
SCRIPT = """
MEMORY {{
  FLASH (rx) : ORIGIN = {flash}, LENGTH = {flash_size}
  RAM (rwx) : ORIGIN = {ram}, LENGTH = {ram_size}
}}
ENTRY(reset)
SECTIONS {{
  .text : {{ KEEP(*(.vectors)) *(.text*) *(.rodata*) }} > FLASH
  .ARM.exidx : {{ *(.ARM.exidx*) }} > FLASH
  .data : {{ data_start = .; *(.data*) . = ALIGN(4); data_end = .; }} > RAM AT > FLASH
  data_from = LOADADDR(.data);
  .bss (NOLOAD) : {{ bss_start = .; *(.bss*) *(COMMON) . = ALIGN(4); bss_end = .; }} > RAM
  stack_top = ORIGIN(RAM) + LENGTH(RAM);
}}
"""


def run_on(name: str, archives: list[Path], main: str, place: Path) -> str:
    """The text that `main` says, built with the models in `archives` and run on the processor `name`."""
    return emulated(name, program_of(name, archives, main, place))


def program_of(name: str, archives: list[Path], main: str, place: Path) -> Path:
    """The program of `main` and the models in `archives`, built in the folder `place`."""
    board = MACHINES[name]
    for file, text in HEADERS.items():
        (place / file).write_text(text)
    (place / "startup.c").write_text(STARTUP)
    (place / "test.c").write_text(main)
    (place / "link.ld").write_text(board.script)
    sources, libraries, include = [place / "startup.c", place / "test.c"], [], [f"-I{place}"]
    for path in archives:
        folder = path.with_suffix("")
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
        sources += [file for file in sorted(folder.glob("*.c")) if file.name != "main.c"]
        libraries += sorted(folder.glob("*.a"))
        include.append(f"-I{folder}")
    objects = []
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffunction-sections", "-fno-sanitize=all"]
    command = [*zig_command(), "cc", "-target", board.triple, f"-mcpu={board.processor}"]
    for number, source in enumerate(sources):
        objects.append(str(place / f"{number}.o"))
        full = [*command, *flags, *include, "-c", str(source), "-o", objects[-1]]
        done = subprocess.run(full, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    program = place / "program.elf"
    files = [*objects, *map(str, libraries), "-lcompiler_rt"]
    options = ["-nostdlib", "-Wl,--gc-sections", f"-Wl,-T,{place / 'link.ld'}", "-o", str(program)]
    done = subprocess.run(
        [*command, *files, *options], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return program


def emulated(name: str, program: Path, options: Sequence[str] = ()) -> str:
    """The text that a program says on the processor `name`; `options` are further ones of QEMU."""
    assert QEMU is not None
    machine = MACHINES[name].machine
    command = [QEMU, "-M", machine, "-nographic", "-semihosting", "-monitor", "none", *options]
    done = subprocess.run(
        [*command, "-kernel", str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said
