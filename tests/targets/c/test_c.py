"""The target c: sources that a C compiler on its own makes a program of."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.differential.check import check, compiled_for

import tilewright as tw
from tilewright import nn
from tilewright.artifact.c_interface import formula
from tilewright.errors import ArtifactError, InternalError
from tilewright.targets.c.translate import to_c

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]


def small_model() -> Callable[[tw.Tensor], tw.Tensor]:
    nn.seed(0)
    conv, linear = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(64, 5)

    def model(x: tw.Tensor) -> tw.Tensor:
        features = nn.functional.max_pool(nn.functional.relu(conv(x)), 2)
        return nn.functional.sigmoid(linear(features.reshape(1, 64)))

    return model


def unpack(path: Path) -> Path:
    folder = path.with_suffix("")
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder


def build(folders: list[Path], main: str, place: Path, compiler: str = "gcc") -> Path:
    """A program of the sources in `folders` and the text `main`, compiled without a warning."""
    flags = ["-std=c11", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    (place / "test.c").write_text(main)
    objects = []
    for folder in folders:
        for source in sorted(folder.glob("*.c")):
            if source.name != "main.c":
                objects.append(place / f"{folder.name}_{source.stem}.o")
                command = [compiler, *flags, "-c", str(source), "-o", str(objects[-1])]
                subprocess.run(command, check=True, timeout=120)
    include = [f"-I{folder}" for folder in folders]
    program = place / "test"
    command = [
        compiler,
        *flags,
        *include,
        str(place / "test.c"),
        *map(str, objects),
        "-lm",
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True, timeout=120)
    return program


def numbers(program: Path) -> np.ndarray[Any, Any]:
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    return np.array([float(x) for x in done.stdout.split()])


def as_c(name: str, array: np.ndarray[Any, Any]) -> str:
    return f"static const float {name}[] = {{{', '.join(f'{float(x).hex()}f' for x in array.ravel())}}};\n"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_two_models_in_one_program(tmp_path: Path, compiler: str) -> None:
    first, second = small_model(), nn.Linear(6, 3)
    image = np.random.default_rng(1).normal(size=(1, 1, 8, 8)).astype(np.float32)
    rows = np.random.default_rng(2).normal(size=(2, 6)).astype(np.float32)
    folders = [
        unpack(tw.compile(first, (image,), target="c").save(tmp_path / "first.tar", prefix="first")),
        unpack(
            tw.compile(second, (rows,), target="c", dims={"x": {0: "batch<=4"}}).save(
                tmp_path / "second.tar", prefix="second"
            )
        ),
    ]
    main = f"""
#include <stdio.h>
#include "first.h"
#include "second.h"
{as_c("image", image)}{as_c("rows", rows)}
int main(void) {{
  float scores[5], out[6];
  if (first_run(image, scores) || second_run(2, rows, out)) return 1;
  for (int k = 0; k < 5; ++k) printf("%.9g\\n", scores[k]);
  for (int k = 0; k < 6; ++k) printf("%.9g\\n", out[k]);
  return second_run(5, rows, out) == 2 ? 0 : puts(second_error());
}}
"""
    expected = np.concatenate([first(tw.tensor(image)).numpy().ravel(), second(rows).numpy().ravel()])
    np.testing.assert_allclose(
        numbers(build(folders, main, tmp_path, compiler)), expected, rtol=1e-5, atol=1e-6
    )


def test_the_message_for_a_wrong_size(tmp_path: Path) -> None:
    library = tw.compile(
        nn.Linear(6, 3), (np.ones((2, 6), np.float32),), target="c", dims={"x": {0: "batch<=4"}}
    )
    main = '#include <stdio.h>\n#include "model.h"\n'
    main += "int main(void) { model_run(5, 0, 0); puts(model_error()); }\n"
    program = build([unpack(library.save(tmp_path / "m.tar"))], main, tmp_path)
    said = subprocess.run([program], capture_output=True, text=True, check=False).stdout.strip()
    assert said == "input x, dimension 0: the size is 5, but must be from 1 to 4"


def test_states_and_weights_beside(tmp_path: Path) -> None:
    nn.seed(1)
    linear, x = nn.Linear(3, 3), np.array([1.0, 2.0, 3.0], np.float32)
    total = tw.State("total", (3,))
    total.value = np.full(3, 0.5, np.float32)

    def model(x: tw.Tensor) -> tw.Tensor:
        total[:] = total.value + linear(x)
        return total.value * 2

    library = tw.compile(model, (x,), target="c")
    folder = unpack(library.save(tmp_path / "m.tar", weights="beside"))
    assert (folder / "model.weights").stat().st_size and not (folder / "weights.c").exists()
    main = f"""
#include <stdio.h>
#include "model.h"
{as_c("x", x)}
static _Alignas(64) unsigned char weights[MODEL_WEIGHTS_BYTES];
int main(int count, char** names) {{
  float out[3];
  if (!model_run(x, out)) return 2;
  FILE* file = fopen("{folder}/model.weights", "rb");
  if (!fread(weights, 1, sizeof weights, file)) return 3;
  model_set_weights(weights);
  for (int k = 0; k < 3; ++k) {{
    if (k == 2) model_reset();
    if (model_run(x, out)) return 4;
    for (int j = 0; j < 3; ++j) printf("%.9g\\n", out[j]);
  }}
  return (void)count, (void)names, 0;
}}
"""
    step = linear(x).numpy()
    expected = [(0.5 + n * step) * 2 for n in (1, 2, 1)]
    np.testing.assert_allclose(numbers(build([folder], main, tmp_path)), np.concatenate(expected), rtol=1e-5)


@pytest.mark.parametrize("seed", range(300, 312))
def test_random_programs(seed: int) -> None:
    assert check(seed, compiled_for("c", threads=1)) is None


def test_cmake(tmp_path: Path) -> None:
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    image = np.zeros((1, 1, 8, 8), np.float32)
    folder = unpack(tw.compile(small_model(), (image,), target="c").save(tmp_path / "m.tar"))
    for command in (["cmake", "-B", "build"], ["cmake", "--build", "build"]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    np.testing.assert_allclose(
        numbers(folder / "build" / "model_example"),
        small_model()(tw.tensor(image)).numpy().ravel()[:4],
        rtol=1e-4,
    )


def test_refusals(tmp_path: Path) -> None:
    x = np.ones((2, 6), np.float32)
    layers = nn.Sequential(nn.Linear(6, 3), nn.Sigmoid(), nn.Linear(3, 3))
    library = tw.compile(layers, (x,), target="c", dims={"x": {0: "batch"}})
    assert library(np.ones((9, 6), np.float32)).shape == (9, 3)
    with pytest.raises(ArtifactError, match="a size has no upper bound"):
        library.save(tmp_path / "m.tar")
    bounded = tw.compile(nn.Linear(6, 3), (x,), target="c")
    with pytest.raises(ArtifactError, match=re.escape("has the suffix .tar, not .so")):
        bounded.save(tmp_path / "m.so")
    with pytest.raises(ArtifactError, match="prefix '1st' cannot be used"):
        bounded.save(tmp_path / "m.tar", prefix="1st")
    with pytest.raises(tw.CompileError, match="unknown fact"):
        tw.compile(nn.Linear(6, 3), (x,), target="c:speed=9")


def test_formulas() -> None:
    assert formula("4*batch*((seq + 31) // 32)") == "((4 * batch) * ((seq + 31) / 32))"
    assert formula("max(n, 3) % 2") == "((n > 3 ? n : 3) % 2)"
    with pytest.raises(ArtifactError, match="cannot be written in C"):
        formula("n << 2")


def test_unknown_instructions_are_named() -> None:
    with pytest.raises(InternalError, match="no C code for .*cmpxchg"):
        to_c(
            "define void @f(ptr %p) {\n  %r = cmpxchg ptr %p, i32 0, i32 1 acq_rel monotonic\n  ret void\n}\n"
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%r = ashr i32 %a, 3", "(uint32_t)((int32_t)p0 >> UINT32_C(3))"),
        ("%r = sdiv i32 %a, -2", "(uint32_t)((int32_t)p0 / (int32_t)UINT32_C(0xfffffffe))"),
    ],
)
def test_instructions(text: str, expected: str) -> None:
    source = to_c(f"define i32 @f(i32 %a) {{\n  {text}\n  ret i32 %r\n}}\n")
    assert expected in source
