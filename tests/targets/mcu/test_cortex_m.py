"""Programs for Cortex-M processors, run by QEMU's system emulator."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn
from tilewright.artifact.link import zig_command

pytest.importorskip("ziglang")
QEMU = shutil.which("qemu-system-arm")
needs_qemu = pytest.mark.skipif(QEMU is None, reason="qemu-system-arm is not installed")

MACHINES = {
    # name: (machine of QEMU, zig's triple, zig's processor, flash, RAM)
    "cortex-m4": ("mps2-an386", "thumb-freestanding-eabihf", "cortex_m4", 0x0, 0x20000000),
    "cortex-m7": ("mps2-an500", "thumb-freestanding-eabihf", "cortex_m7", 0x0, 0x20000000),
    "cortex-m33": ("mps2-an505", "thumb-freestanding-eabihf", "cortex_m33", 0x10000000, 0x38000000),
    "cortex-m55": ("mps3-an547", "thumb-freestanding-eabihf", "cortex_m55", 0x0, 0x20000000),
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
void say_bits(float value) {
  char text[10];
  uint32_t bits;
  memcpy(&bits, &value, 4);
  for (int k = 0; k < 8; ++k) text[k] = "0123456789abcdef"[bits >> (28 - 4 * k) & 15];
  text[8] = '\\n';
  text[9] = 0;
  say(text);
}
"""
SCRIPT = """
MEMORY {{ FLASH (rx) : ORIGIN = {flash}, LENGTH = 512K  RAM (rwx) : ORIGIN = {ram}, LENGTH = 512K }}
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


def run_on(name: str, archives: list[Path], main: str, place: Path) -> list[float]:
    """The floats that `main` says, built with the models in `archives` and run on the processor `name`."""
    machine, triple, processor, flash, ram = MACHINES[name]
    for file, text in HEADERS.items():
        (place / file).write_text(text)
    (place / "startup.c").write_text(STARTUP)
    (place / "test.c").write_text(main)
    (place / "link.ld").write_text(SCRIPT.format(flash=hex(flash), ram=hex(ram)))
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
    command = [*zig_command(), "cc", "-target", triple, f"-mcpu={processor}"]
    for number, source in enumerate(sources):
        objects.append(str(place / f"{number}.o"))
        full = [*command, *flags, *include, "-c", str(source), "-o", objects[-1]]
        done = subprocess.run(full, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    program = place / "program.elf"
    files = [*objects, *map(str, libraries), "-lcompiler_rt", "-nostdlib", f"-Wl,-T,{place / 'link.ld'}"]
    done = subprocess.run(
        [*command, *files, "-o", str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert QEMU is not None
    emulated = [
        QEMU,
        "-M",
        machine,
        "-nographic",
        "-semihosting",
        "-kernel",
        str(program),
        "-monitor",
        "none",
    ]
    done = subprocess.run(emulated, capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    bits = [int(line, 16) for line in said.split()]
    return np.array(bits, np.uint32).view(np.float32).tolist()


def as_c(name: str, array: np.ndarray[Any, Any]) -> str:
    return f"static const float {name}[] = {{{', '.join(f'{float(x).hex()}f' for x in array.ravel())}}};\n"


def save_two(target: str, place: Path) -> tuple[list[Path], str, np.ndarray[Any, Any]]:
    """Two models, the main function that runs them, and the numbers that it says."""
    nn.seed(0)
    conv, linear = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(64, 5)

    def images(x: tw.Tensor) -> tw.Tensor:
        features = nn.functional.max_pool(nn.functional.relu(conv(x)), 2)
        return nn.functional.softmax(linear(features.reshape(1, 64)), -1)

    layers = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).eval()
    image = np.random.default_rng(1).normal(size=(1, 1, 8, 8)).astype(np.float32)
    rows = np.random.default_rng(2).normal(size=(3, 6)).astype(np.float32)
    paths = [
        tw.compile(images, (image,), target=target).save(place / "images.tar", prefix="images"),
        tw.compile(layers, (rows,), target=target, dims={"x": {0: "batch<=4"}}).save(
            place / "layers.tar", prefix="layers"
        ),
    ]
    main = f"""
#include "images.h"
#include "layers.h"
void say(const char*);
void say_bits(float);
{as_c("image", image)}{as_c("rows", rows)}
int main(void) {{
  float scores[5], out[9];
  if (images_run(image, scores) || layers_run(3, rows, out)) return 1;
  for (int k = 0; k < 5; ++k) say_bits(scores[k]);
  for (int k = 0; k < 9; ++k) say_bits(out[k]);
  return layers_run(5, rows, out) == 2 ? 0 : 3;
}}
"""
    expected = [images(tw.tensor(image)).numpy().ravel(), layers(tw.tensor(rows)).numpy().ravel()]
    return paths, main, np.concatenate(expected)


@needs_qemu
@pytest.mark.parametrize("name", MACHINES)
def test_two_models_run(name: str, tmp_path: Path) -> None:
    paths, main, expected = save_two(name, tmp_path)
    np.testing.assert_allclose(run_on(name, paths, main, tmp_path), expected, rtol=1e-5, atol=1e-6)


def test_memories_that_are_too_small() -> None:
    x = np.ones((1, 64), np.float32)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    tw.compile(model, (x,), target="cortex-m4:flash=128K+ram=4K")
    with pytest.raises(tw.CompileError, match=r"does not fit on .*: it needs \d+ bytes of flash of 65536"):
        tw.compile(model, (x,), target="cortex-m4:flash=64K+ram=4K")
    with pytest.raises(tw.CompileError, match="an example is ram=256K"):
        tw.compile(model, (x,), target="cortex-m4:ram=much")


def test_notes_state_the_memory(tmp_path: Path) -> None:
    x = np.ones((1, 6), np.float32)
    path = tw.compile(nn.Linear(6, 3), (x,), target="cortex-m33").save(tmp_path / "m.tar")
    with tarfile.open(path) as archive:
        file = archive.extractfile("NOTES.md")
        assert file is not None
        notes = file.read().decode()
    assert "- Weights: " in notes and "- Code: " in notes and "for cortex-m33 with hardware floating" in notes
