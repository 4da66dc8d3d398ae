"""The runtime in C, checked by a C program, and the Python `Library` with a handwritten model."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from build import SOURCES, WEIGHTS, build, expected

from tilewright.artifact.sources import INCLUDE_DIR, runtime_sources
from tilewright.errors import ArtifactError, ShapeError
from tilewright.runtime.library import Library

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{INCLUDE_DIR}"]
# The C program wraps these functions to count allocations.
WRAPPED = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "posix_memalign")]


def compile_driver(path: Path, *options: str) -> Path:
    sources = [SOURCES / "driver.c", SOURCES / "affine_module.c", SOURCES / "blobs.c", *runtime_sources()]
    command = ["cc", *FLAGS, *WRAPPED, "-D_DEFAULT_SOURCE", *options, *map(str, sources), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checksum = f"-DHASH={xxhash.xxh64_intdigest(WEIGHTS)}u"
    return compile_driver(tmp_path_factory.mktemp("driver") / "driver", "-O1", "-g", checksum)


def run(driver: Path, *arguments: str, data: bytes = b"") -> str:
    done = subprocess.run([driver, *arguments], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done.stdout.decode()


@needs_cc
@pytest.mark.parametrize(
    "check",
    [
        "values",
        "errors",
        "allocation",
        "threads",
        "busy",
        "forked",
        "bound",
        "profile",
        "states",
        "functions",
    ],
)
def test_checks_in_c(driver: Path, check: str) -> None:
    run(driver, check)


@needs_cc
def test_threads_under_the_thread_sanitizer(tmp_path: Path) -> None:
    try:
        driver = compile_driver(tmp_path / "tsan", "-O1", "-g", "-fsanitize=thread")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no thread sanitizer: {error.stderr[:200]}")
    done = subprocess.run([driver, "threads"], capture_output=True, text=True, timeout=120)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_cc
@pytest.mark.parametrize("size", [0, 1, 7, 31, 32, 33, 1000, 4096])
def test_hash_is_xxh64(driver: Path, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert run(driver, "hash", data=data) == f"{xxhash.xxh64_intdigest(data):016x}\n"


@needs_cc
@pytest.mark.parametrize(
    ("defines", "message"),
    [
        (["-DABI=7"], "generated for runtime version 7"),
        (['-DFEATURES="sse2,warp-drive"'], "warp-drive"),
        (["-DHASH=1"], "the embedded weights differ"),
    ],
)
def test_unfit_models_are_refused(tmp_path: Path, defines: list[str], message: str) -> None:
    run(compile_driver(tmp_path / "driver", *defines), "refused", message)


def arguments(batch: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(batch)
    return generator.random((batch, 8), np.float32), generator.random(batch, np.float32)


@pytest.mark.parametrize("threads", [0, 1, 2, 7])
def test_values_at_many_sizes(affine: Path, threads: int) -> None:
    with Library(affine, num_threads=threads) as library:
        for batch in [1, 3, 4096, 2, 1000, 5] * 3:
            x, z = arguments(batch)
            for result, reference in zip(library(x, z), expected(x, z), strict=True):
                np.testing.assert_allclose(result, reference, rtol=1e-6)


def test_calls_from_many_threads(affine: Path) -> None:
    library = Library(affine, num_threads=2)
    wrong: list[int] = []

    def work(seed: int) -> None:
        x, z = arguments(seed + 1)
        for _ in range(50):
            if not np.allclose(library(x, z)[0], expected(x, z)[0]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_names_and_outputs(affine: Path) -> None:
    library = Library(affine)
    x, z = arguments(4)
    y, pairs = np.empty((4, 8), np.float32), np.empty(8, np.float32)
    assert library(z=z, x=x, out=(y, pairs))[0] is y
    np.testing.assert_allclose(y, expected(x, z)[0], rtol=1e-6)
    with pytest.raises(ShapeError, match="the model has no input 'w'"):
        library(x, w=z)
    with pytest.raises(ShapeError, match="missing input 'z'"):
        library(x)
    with pytest.raises(ShapeError, match="output 'y' has size 3 in dimension 0, expected 4"):
        library(x, z, out=(np.empty((3, 8), np.float32), pairs))
    with pytest.raises(ShapeError, match="'batch' must be between 1 and 4096"):
        library(np.zeros((5000, 8), np.float32), np.zeros(5000, np.float32))


def test_weights_by_pointer(tmp_path: Path) -> None:
    path = build(tmp_path / "bare.so", embed=False)
    block = np.zeros(WEIGHTS.nbytes + 64, np.uint8)
    start = -block.ctypes.data % 64
    weights = block[start : start + WEIGHTS.nbytes]
    weights[:] = WEIGHTS
    x, z = arguments(3)
    np.testing.assert_allclose(Library(path, weights=weights)(x, z)[0], expected(x, z)[0], rtol=1e-6)
    with pytest.raises(ShapeError, match="are not embedded"):
        Library(path)


def test_damage_is_refused(affine: Path, tmp_path: Path) -> None:
    data = bytearray(affine.read_bytes())
    data[len(data) // 2] ^= 1
    for name, content, message in (
        ("bits", bytes(data), "checksum"),
        ("cut", bytes(data[:-100]), "not a Tilewright artifact"),
        ("short", b"x", "only 1 bytes"),
    ):
        path = tmp_path / f"{name}.so"
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=message):
            Library(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes(affine: Path) -> None:
    library = Library(affine, num_threads=2)
    x, z = arguments(100)
    library(x, z)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.allclose(library(x, z)[0], expected(x, z)[0]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_torch_tensors_cross_without_a_copy(affine: Path) -> None:
    torch = pytest.importorskip("torch")
    library = Library(affine)
    x, z = (torch.from_numpy(a) for a in arguments(6))
    y, pairs = (torch.from_numpy(a) for a in expected(x.numpy(), z.numpy()))
    turned = x.t().contiguous().t()  # The values are equal, and the strides are not.
    for _ in range(2):  # The first call of a shape, and a repeated one.
        for given in (x, x.clone().requires_grad_(), torch.nn.Parameter(x), turned):
            found = library(given, z)
            assert type(found[0]) is torch.Tensor
            torch.testing.assert_close(found, (y, pairs))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_later_calls_are_checked_as_the_first(affine: Path, kind: str) -> None:
    convert: Any = np.asarray if kind == "numpy" else pytest.importorskip("torch").from_numpy
    library = Library(affine)
    x, z = arguments(6)
    first = library(convert(x), convert(z))[0]
    second = library(convert(x + 1), convert(z))[0]
    # Later calls do not overwrite results.
    np.testing.assert_allclose(np.asarray(first), expected(x, z)[0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(second), expected(x + 1, z)[0], rtol=1e-6)
    with pytest.raises(ShapeError, match="input 'x': expected float32, got float64"):
        library(convert(x.astype(np.float64)), convert(z))
    with pytest.raises(ShapeError, match="'batch' is 6 from"):
        library(convert(x), convert(z[:5].copy()))
    with pytest.raises(ShapeError, match="missing input 'z'"):
        library(convert(x))
    rows = convert(np.repeat(x, 2, axis=0))[::2]  # The rows are not contiguous.
    np.testing.assert_allclose(np.asarray(library(rows, convert(z))[0]), expected(x, z)[0], rtol=1e-6)
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_allclose(library(frozen, z)[0], expected(x, z)[0], rtol=1e-6)
    out = convert(np.empty((6, 8), np.float32)), convert(np.empty(12, np.float32))
    assert library(convert(x), convert(z), out=out) is out
    np.testing.assert_allclose(np.asarray(out[0]), expected(x, z)[0], rtol=1e-6)
    for wrong, message in (
        ((out[0], out[1][:11]), "output 'pairs' has size 11 in dimension 0, expected 12"),
        ((out[0][:, ::2], out[1]), "output 'y': 'out' must be a writable, contiguous"),
        ((out[0],), "the model has 2 outputs, got 1"),
        (out[0], "the model has 2 outputs, got 1"),
    ):
        with pytest.raises(ShapeError, match=message):
            library(convert(x), convert(z), out=wrong)
    if kind == "numpy":
        out[1].flags.writeable = False
        with pytest.raises(ShapeError, match="output 'pairs': 'out' must be a writable"):
            library(x, z, out=out)
