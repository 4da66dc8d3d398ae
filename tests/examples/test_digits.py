"""The classifier of digits learns in Python, and in C without Python, also on another processor."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytest.importorskip("sklearn")
EPOCHS = 3


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("digits", EXAMPLES / "digits" / "digits.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def losses_in_python(example: Any) -> list[float]:
    """The mean losses of the epochs, in the order of the batches of train.c."""
    pixels, labels = example.data()
    count = example.TRAINED // example.BATCH * example.BATCH
    batches = np.arange(count).reshape(-1, example.BATCH)[:-1]
    step = example.compile_step()
    return [float(np.mean([float(step(pixels[k], labels[k])) for k in batches])) for _ in range(EPOCHS)]


def check_output(text: str, example: Any) -> None:
    *losses, right = text.splitlines()
    found = [float(line) for line in losses]
    np.testing.assert_allclose(found, losses_in_python(example), rtol=1e-5)
    assert found[-1] < found[0] / 3
    assert int(right.split()[0]) >= 26


def test_it_learns_in_python(example: Any) -> None:
    assert example.train(epochs=10) > 0.93


def test_it_learns_in_c(example: Any, tmp_path: Path) -> None:
    source = EXAMPLES / "train.c"
    assert len(source.read_text().splitlines()) <= 75
    library = example.write(tmp_path)
    compiler = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
    program = tmp_path / "train"
    link = ["-Wall", "-Wextra", "-Werror", f"-I{tmp_path}", str(source), "-o", str(program), str(library)]
    subprocess.run([*compiler, *link, f"-Wl,-rpath,{tmp_path}"], check=True)
    done = subprocess.run(
        [str(program), str(tmp_path / "digits.bin"), str(EPOCHS)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, example)
    done = subprocess.run([str(program), str(source), "1"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "train.c" in done.stderr


@pytest.mark.slow
def test_it_learns_in_c_on_aarch64(example: Any, tmp_path: Path) -> None:
    """The parts of the library are linked with the program, and run by qemu if it is installed. Losses are
    those of this machine up to 1e-5.
    """
    from tilewright.artifact import link

    with tarfile.open(example.write(tmp_path, "aarch64-linux", "digits.tar")) as archive:
        archive.extractall(tmp_path, filter="data")
    files = [*(tmp_path / "objects").glob("*.o")]
    for name in ("weights", "metadata"):
        data = (tmp_path / f"tw_blob_{name}.bin").read_bytes()
        files.append(tmp_path / f"{name}.o")
        files[-1].write_bytes(link.blob_object(data, f"tw_blob_{name}", "aarch64-linux-gnu"))
    glibc = Path("/usr/aarch64-linux-gnu")  # else musl, which takes zig a minute to build
    system = ["aarch64-linux-gnu", "-lm"] if glibc.is_dir() else ["aarch64-linux-musl", "-static"]
    zig = [*link.zig_command(), "cc", "-O1", "-target", *system]
    runtime = [str(tmp_path / "runtime" / p.name) for p in (tmp_path / "runtime").glob("*.c")]
    command = [*zig, f"-I{tmp_path}", f"-I{tmp_path / 'runtime'}", str(EXAMPLES / "train.c"), *runtime]
    program = tmp_path / "train"
    subprocess.run([*command, *map(str, files), "-o", str(program), "-lpthread"], check=True)
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if qemu is None:
        pytest.skip("qemu is not installed; the program was only linked")
    done = subprocess.run(
        [qemu, "-L", glibc, program, tmp_path / "digits.bin", str(EPOCHS)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, example)
