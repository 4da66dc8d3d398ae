"""Static libraries: programs in C and C++ are linked with one, or with several that have prefixes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.artifact import link
from tilewright.artifact.symbols import prefixed
from tilewright.errors import ArtifactError
from tilewright.targets.cpu.isa import isa_named

X = np.arange(8, dtype=np.float32)


def scaled(x: Any) -> Any:
    return x * tw.Tensor(np.full(8, 2, np.float32))


def shifted(x: Any) -> Any:
    return x + tw.Tensor(np.full(8, 10, np.float32))


PROGRAM = r"""
#include <stdio.h>
#include "first.h"
#include "second.h"

template <typename Create, typename Run, typename Error, typename Destroy>
static int run(Create create, Run run_, Error error, Destroy destroy) {
  float x[8], y[8];
  int64_t shape[] = {8};
  for (int k = 0; k < 8; ++k) x[k] = (float)k;
  DLTensor in = {x, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
  DLTensor out = {y, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
  tw_context* model = nullptr;
  if (create(nullptr, &model) || run_(model, &in, 1, &out, 1)) return puts(error()), 1;
  for (float v : y) printf("%g ", v);
  destroy(model);
  return 0;
}

int main() {
  return run(first_create, first_run, first_last_error, first_destroy) ||
         run(second_create, second_run, second_last_error, second_destroy);
}
"""


def program(folder: Path, target: str, suffix: str, options: list[str]) -> Path:
    """A C++ program, without C++'s library, for a target that is linked with two models."""
    for name, model in (("first", scaled), ("second", shifted)):
        library = tw.compile(model, (X,), target=target, cache=False)
        library.save(folder / f"{name}{suffix}", prefix=name)
    source, out = folder / "main.cpp", folder / "main.exe"
    source.write_text(PROGRAM)
    compiler = [*link.zig_command(), "cc", "-target", link.zig_target(isa_named(target).triple)]
    libraries = [str(folder / f"{name}{suffix}") for name in ("first", "second")]
    command = [*compiler, "-O1", "-fno-exceptions", f"-I{folder}", str(source), *libraries, *options]
    subprocess.run([*command, "-o", str(out)], check=True, capture_output=True)
    return out


WANTED = [*(2 * X), *(10 + X)]


def outputs(*command: str) -> list[float]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(x) for x in done.stdout.split()]


def test_two_models_in_one_program(tmp_path: Path) -> None:
    source = tmp_path / "main.cpp"
    source.write_text(PROGRAM)
    for name, model in (("first", scaled), ("second", shifted)):
        tw.compile(model, (X,), cache=False).save(tmp_path / f"{name}.a", prefix=name)
    compiler = ["c++"] if shutil.which("c++") else [*link.zig_command(), "c++"]
    libraries = [str(tmp_path / f"{name}.a") for name in ("first", "second")]
    subprocess.run(
        [*compiler, f"-I{tmp_path}", str(source), *libraries, "-pthread", "-o", str(tmp_path / "main")],
        check=True,
    )
    assert outputs(str(tmp_path / "main")) == WANTED


@pytest.mark.slow  # zig first builds C libraries
@pytest.mark.parametrize(
    "target", ["aarch64-linux-musl", "armv7-linux-musl", "riscv64-linux-musl", "hexagon-linux"]
)
def test_two_models_on_other_processors(target: str, tmp_path: Path) -> None:
    from tests.ports.emulators import NoEmulator, command_of

    try:
        command = command_of(target)
    except NoEmulator as error:
        pytest.skip(str(error))
    assert outputs(*command, str(program(tmp_path, target, ".a", ["-static"]))) == WANTED


@pytest.mark.slow
def test_two_models_on_windows(tmp_path: Path) -> None:
    from tests.ports.emulators import NoEmulator, command_of

    try:
        command = command_of("x86_64-windows")
    except NoEmulator as error:
        pytest.skip(str(error))
    assert outputs(*command, str(program(tmp_path, "x86_64-windows", ".lib", ["-DTW_STATIC"]))) == WANTED


@pytest.mark.parametrize("target", ["cpu", "armv7-linux", "aarch64-macos", "x86_64-windows"])
def test_symbols_get_the_prefix(target: str) -> None:
    """In each format of objects, what a library defines gets the prefix, in the object that needs it, too."""
    isa = isa_named(target)
    from tilewright.targets.llvm.toolchain import compile_object

    defines = compile_object("@tw_value = constant i32 7\ndefine i32 @tw_short() { ret i32 1 }\n", isa)
    needs = compile_object(
        "@tw_value = external global i32\ndeclare i32 @tw_short()\ndeclare i32 @elsewhere()\n"
        "define i32 @tw_kept() {\n  %a = load i32, ptr @tw_value\n  %b = call i32 @tw_short()\n"
        "  %c = call i32 @elsewhere()\n  %d = add i32 %a, %b\n  %e = add i32 %c, %d\n  ret i32 %e\n}\n",
        isa,
    )
    from tilewright.artifact.symbols import _symbols

    first, second = prefixed([defines, needs], "mine", ["tw_kept"])
    assert {s.name for s in _symbols(first)} >= {"mine__tw_value", "mine__tw_short"}
    names = {s.name for s in _symbols(second)}
    assert {"mine__tw_value", "mine__tw_short", "tw_kept", "elsewhere"} <= names
    assert not names & {"tw_value", "tw_short"}


def test_a_static_library_is_not_loaded(tmp_path: Path) -> None:
    path = tw.compile(scaled, (X,), cache=False).save(tmp_path / "m.a")
    with pytest.raises(ArtifactError, match="a static library, which is linked into a program"):
        tw.load(path)
