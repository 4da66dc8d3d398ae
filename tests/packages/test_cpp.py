"""Packages for C and C++: programs are built with two of them and run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from .models import check_no_paths, counter, encoder, expected, needs, packaged

PROGRAM = r"""
#include <cstdio>
#include <vector>
#include "encoder.hpp"
#include "counter.hpp"

int main() {
  std::vector<float> x(24);
  for (int k = 0; k < 24; ++k) x[k] = -1.0f + 2.0f * k / 23;
  encoder::Model model;
  const encoder::Outputs out = model.run({{x, 3}});
  std::printf("%lld %lld\n", (long long)out.output.shape()[0], (long long)out.output.shape()[1]);
  for (float v : out.output) std::printf("%.9g ", v);
  std::vector<float> own(6);
  model.run({{x.data(), 3}}, {{own, 3}});
  for (float v : own) std::printf("%.9g ", v);
  std::printf("\n");
  try {
    model.run({{x, 2}});
  } catch (const tilewright::Error& error) {
    std::printf("%d: %s\n", error.status(), error.what());
  }
  std::vector<float> large(72);
  try {
    model.run({{large, 9}});
  } catch (const tilewright::Error& error) {
    std::printf("%d: %s\n", error.status(), error.what());
  }

  counter::Model first, second;
  const float ones[4] = {1, 2, 3, 4};
  first.add({{ones}});
  first.add({{ones}});
  second.add({{ones}});
  counter::Model moved = std::move(first);
  std::printf("%g %g ", moved.state_total()[3], second.state_total()[3]);
  std::printf("%g\n", moved.add({{ones}}).output[3]);
  moved.reset();
  std::printf("%g\n", moved.state_total()[3]);
  const bool mask[5] = {true, false, true, false, true};
  const std::int32_t scale = 7;
  const counter::FindOutputs found = second.find({{mask}, {&scale}});
  std::printf("%zu:", found.output0.size());
  for (std::int64_t k : found.output0) std::printf(" %lld", (long long)k);
  for (std::int32_t v : found.output1) std::printf(" %d", v);
  std::printf("\n");
}
"""

BUILD = """
cmake_minimum_required(VERSION 3.16)
project(program CXX)
add_subdirectory(encoder)
find_package(counter CONFIG REQUIRED PATHS ${CMAKE_CURRENT_SOURCE_DIR}/counter NO_DEFAULT_PATH)
add_executable(program main.cpp)
target_compile_options(program PRIVATE -Wall -Wextra -Werror -pedantic)
target_link_libraries(program PRIVATE encoder::encoder counter::counter)
"""

C_PROGRAM = r"""
#include <stdio.h>
#include "encoder.h"
#include "counter.h"

int main(void) {
  tw_context *model, *other;
  float x[24], y[6];
  for (int k = 0; k < 24; ++k) x[k] = -1.0f + 2.0f * (float)k / 23;
  if (encoder_create(NULL, &model) || encoder_call(model, 3, x, y)) return puts(encoder_last_error()), 1;
  for (int k = 0; k < 6; ++k) printf("%.9g ", y[k]);
  if (encoder_call(model, 9, x, y)) puts(encoder_last_error());
  encoder_destroy(model);
  const uint8_t mask[5] = {1, 0, 1, 0, 1};
  const int32_t scale = 7;
  int32_t scaled[5];
  DLTensor found;
  if (counter_create(NULL, &other) || counter_call_find(other, mask, &scale, &found, scaled))
    return puts(counter_last_error()), 1;
  printf("%d %d %d\n", (int)found.shape[0], (int)((int64_t*)found.data)[2], scaled[4]);
  counter_destroy(other);
  return 0;
}
"""


def run(*command: str | Path) -> list[str]:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def check_program(lines: list[str]) -> None:
    """The program prints what Python computes, and the messages of errors."""
    wanted = expected().ravel()
    assert lines[0] == "3 2"
    np.testing.assert_allclose([float(v) for v in lines[1].split()], [*wanted, *wanted], rtol=1e-5, atol=1e-6)
    assert lines[2] == "2: a tensor of 16 elements is given 24"
    assert lines[3].startswith("2: ") and "9" in lines[3] and "batch" in lines[3]
    assert lines[4:] == ["8 4 12", "0", "3: 0 2 4 7 0 7 0 7"]


@pytest.mark.parametrize("linkage", ["static", "shared"])
def test_a_program_with_two_models(linkage: str, tmp_path: Path) -> None:
    needs("cmake", "c++")
    for which in (encoder, counter):
        check_no_paths(packaged(tmp_path, "cpp", which, linkage=linkage))
    (tmp_path / "main.cpp").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(BUILD)
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build")
    run("cmake", "--build", tmp_path / "build")
    check_program(run(tmp_path / "build" / "program"))


def test_typed_functions_in_c(tmp_path: Path) -> None:
    needs("cc")
    packages = [packaged(tmp_path, "cpp", which) for which in (encoder, counter)]
    (tmp_path / "main.c").write_text(C_PROGRAM)
    folders = [f"-I{package}/include" for package in packages]
    libraries = [next(package.glob("lib/*/lib*.a")) for package in packages]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", *folders]
    run("cc", *flags, tmp_path / "main.c", *libraries, "-pthread", "-lm", "-ldl", "-o", tmp_path / "main")
    *values, message = run(tmp_path / "main")[0].split(maxsplit=6)
    np.testing.assert_allclose([float(v) for v in values], expected().ravel(), rtol=1e-5, atol=1e-6)
    assert "batch" in message
    assert run(tmp_path / "main")[1] == "3 4 7"


def test_the_example_of_a_package(tmp_path: Path) -> None:
    needs("cmake", "c++")
    package = packaged(tmp_path, "cpp")
    run("cmake", "-S", package, "-B", tmp_path / "build")
    run("cmake", "--build", tmp_path / "build")
    lines = run(tmp_path / "build" / "example")
    model, _, _ = encoder()
    zeros = np.asarray(model(np.zeros((1, 8), np.float32)))[0]
    np.testing.assert_allclose([float(v) for v in lines[0].removeprefix("output:").split()], zeros, rtol=1e-4)


def test_cmake_names_what_there_is(tmp_path: Path) -> None:
    """The build file of a package for other systems says so."""
    needs("cmake", "c++")
    package = packaged(tmp_path, "cpp", target="aarch64-linux")
    done = subprocess.run(
        ["cmake", "-S", package, "-B", tmp_path / "build"], capture_output=True, text=True, timeout=120
    )
    text = " ".join(done.stderr.split())
    assert done.returncode and "encoder has libraries for aarch64-linux, not for Linux on x86_64" in text


@pytest.mark.slow  # zig first builds C libraries
@pytest.mark.parametrize("linkage", ["shared", "static"])
def test_a_program_for_windows(linkage: str, tmp_path: Path) -> None:
    """A program that is linked with two models runs in Wine."""
    from tests.ports.emulators import NoEmulator, command_of

    from tilewright.artifact import link
    from tilewright.targets.cpu.isa import isa_named

    try:
        command = command_of("x86_64-windows")
    except NoEmulator as error:
        pytest.skip(str(error))
    packages = [packaged(tmp_path, "windows", which, linkage=linkage) for which in (encoder, counter)]
    (tmp_path / "main.cpp").write_text(PROGRAM)
    folders = [f"-I{package}/include" for package in packages]
    places = [package / "lib" / "x86_64-windows" for package in packages]
    libraries = [next(place.glob("*.lib")) for place in places]
    flags = ["-std=c++17", *(["-DTW_STATIC"] if linkage == "static" else []), *folders]
    compiler = [*link.zig_command(), "c++", "-target", link.zig_target(isa_named("x86_64-windows").triple)]
    run(*compiler, *flags, tmp_path / "main.cpp", *libraries, "-o", tmp_path / "main.exe")
    for package, place in zip(packages, places, strict=True):
        check_no_paths(package)
        for dll in place.glob("*.dll"):
            dll.rename(tmp_path / dll.name)
    check_program(run(*command, tmp_path / "main.exe"))
