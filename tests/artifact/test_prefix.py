"""Several models in one C program: each has a prefix of its own or is opened with dlopen. Linking two models
without prefixes is reported at run time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_cli import run

import tilewright as tw
from tilewright.errors import ArtifactError

X = np.arange(4, dtype=np.float32)
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or sys.platform != "linux", reason="needs cc on Linux"
)

PROGRAM = """
#include <stdio.h>
#include "double.h"
#include "triple.h"

#define RUN(name) \\
  do { \\
    tw_context* model = NULL; \\
    float x[4] = {0, 1, 2, 3}; \\
    int64_t shape[1] = {4}; \\
    DLTensor in = {.data = x, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1}, .shape = shape}, out = {0}; \\
    if (name##_create(NULL, &model) || name##_run(model, &in, 1, &out, 1)) return puts(name##_last_error()), 1; \\
    for (int k = 0; k < 4; ++k) printf("%g ", ((float*)out.data)[k]); \\
    name##_destroy(model); \\
  } while (0)

int main(void) {
  RUN(twofold);
  RUN(threefold);
  return 0;
}
"""  # noqa: E501
PLAIN = """
#include <stdio.h>
#include "tilewright.h"
int main(void) {
  tw_context* model = NULL;
  if (tw_create(NULL, &model)) return puts(tw_last_error()), 1;
  return puts("made"), 0;
}
"""


def build(folder: Path, source: str, *libraries: str, compiler: str = "cc") -> str:
    """The output of a C program that is linked with `libraries` from `folder`."""
    (folder / "main.c").write_text(source)
    linked = ["-Wl,--no-as-needed", *(f"-l:{name}" for name in libraries), "-Wl,-rpath,$ORIGIN"]
    command = [compiler, "-Wall", "-Werror", "-I.", "main.c", "-o", "main", "-L.", *linked]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return subprocess.run([folder / "main"], capture_output=True, text=True, timeout=60).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefix")
    for name, factor in (("twofold", 2.0), ("threefold", 3.0)):
        library = tw.compile(lambda x, factor=factor: x * factor, (X,), cache=False)
        library.save(folder / f"{name}.so", prefix=name)
        library.save(folder / f"{name}_plain.so")
    return folder


def test_two_models_in_one_program(folder: Path) -> None:
    source = PROGRAM.replace("double.h", "twofold.h").replace("triple.h", "threefold.h")
    assert build(folder, source, "twofold.so", "threefold.so") == "0 2 4 6 0 3 6 9 "


def test_two_models_of_the_same_names_are_told(folder: Path) -> None:
    assert build(folder, PLAIN, "twofold_plain.so") == "made\n"
    assert build(folder, PLAIN, "twofold_plain.so", "threefold.so") == "made\n"
    said = build(folder, PLAIN, "twofold_plain.so", "threefold_plain.so")
    assert "linked with two models that export tw_create" in said and "save them with prefixes" in said


def test_only_prefixed_names_are_exported(folder: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", folder / "twofold.so"], capture_output=True, text=True
    ).stdout
    names = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    assert "twofold_run" in names and all(name.startswith("twofold_") for name in names)


def test_prefixed_libraries_in_python(folder: Path, tmp_path: Path) -> None:
    library = tw.load(folder / "twofold.so")
    np.testing.assert_array_equal(library(X), 2 * X)
    np.testing.assert_array_equal(library.session()(X), 2 * X)  # type: ignore[attr-defined]
    copy = tw.load(library.save(tmp_path / "copy.so"))
    np.testing.assert_array_equal(copy(X), 2 * X)
    assert (tmp_path / "twofold.h").read_text() == (folder / "twofold.h").read_text()
    with pytest.raises(
        ArtifactError, match="have the prefix 'twofold': to save another, compile the model again"
    ):
        library.save(tmp_path / "other.so", prefix="other")


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.py").write_text(
        "import numpy as np\ndef f():\n    return (lambda x: x * 5.0), (np.ones(4, np.float32),)\n"
    )
    for _ in range(2):  # the second run reads the cache, which holds the library without a prefix
        assert run("compile", f"{tmp_path}/models.py:f", "-o", f"{tmp_path}/five.so", "--prefix", "five") == 0
        np.testing.assert_array_equal(tw.load(tmp_path / "five.so")(X), 5 * X)
        assert "five_run" in (tmp_path / "five.h").read_text()


def test_wrong_prefixes(tmp_path: Path) -> None:
    library = tw.compile(lambda x: x * 2.0, (X,), cache=False)
    for prefix in ("tw", "", "5", "a-b", "tilewright", "ü"):
        with pytest.raises(ArtifactError, match="give letters, digits and underscores"):
            library.save(tmp_path / "m.so", prefix=prefix)
    with pytest.raises(ArtifactError, match="a prefix is for shared and static libraries only"):
        library.save(tmp_path / "m.tar", prefix="model")
    assert not any(tmp_path.iterdir())
