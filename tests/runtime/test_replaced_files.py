"""Libraries whose files are replaced, removed or overwritten while they are loaded."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.caches import new_cache

import tilewright as tw
from tilewright.errors import ArtifactError

X = np.ones(4, np.float32)
posix = pytest.mark.skipif(os.name != "posix", reason="files in use cannot be replaced")


def saved(path: Path, factor: float, **options: Any) -> Path:
    """Save a library that multiplies by `factor`, which is in a table of weights, and return its path."""
    table = tw.Tensor(np.full(4, factor, np.float32))
    return tw.compile(lambda x: x * table, (X,), cache=False).save(path, **options)


def in_thread(call: Any) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@posix
@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_a_path_loads_the_library_saved_last(tmp_path: Path, weights: str) -> None:
    path, kept = tmp_path / "m.so", []
    for factor in (2.0, 3.0, 4.0):
        library = tw.load(saved(path, factor, weights=weights))
        np.testing.assert_array_equal(library(X), factor * X)
        kept.append(library)
    # Each library keeps its own contents, also in new contexts.
    for factor, library in zip((2.0, 3.0, 4.0), kept, strict=True):
        np.testing.assert_array_equal(library(X), factor * X)
        np.testing.assert_array_equal(in_thread(lambda library=library: library(X)), factor * X)
        np.testing.assert_array_equal(library.session()(X), factor * X)


@posix
def test_nothing_of_the_first_library_remains(tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    tw.load(saved(path, 2.0)).close()
    library = tw.load(saved(path, 3.0))
    np.testing.assert_array_equal(library(X), 3 * X)
    del library
    path.unlink()
    library = tw.load(saved(path, 5.0))
    np.testing.assert_array_equal(library(X), 5 * X)
    path.unlink()
    np.testing.assert_array_equal(library.session()(X), 5 * X)
    np.testing.assert_array_equal(in_thread(lambda: library(X)), 5 * X)


@posix
def test_a_file_overwritten_in_place_gives_a_warning(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "m.so", 2.0), saved(tmp_path / "n.so", 3.0)
    library = tw.load(first)
    shutil.copyfile(second, first)  # The inode stays the same, with other contents.
    with pytest.warns(RuntimeWarning, match="m.so: this file was overwritten while it was loaded"):
        again = tw.load(first)
    np.testing.assert_array_equal(again(X), 3 * X)
    with pytest.raises(ArtifactError, match="was overwritten while it was loaded"):
        library(X)
    library.close()
    again.close()
    del library, again
    saved(tmp_path / "n.so", 4.0)
    shutil.copyfile(second, first)
    np.testing.assert_array_equal(tw.load(first)(X), 4 * X)  # No library of the earlier contents is left.


@posix
def test_code_of_an_overwritten_file_is_not_run(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "m.so", 2.0), saved(tmp_path / "n.so", 3.0)
    library = tw.load(first)
    library(X)
    first.write_bytes(second.read_bytes()[:-1000] + bytes(1000))
    library.close()  # Frees nothing, because the file no longer contains the code that would.
    gc.collect()
    shutil.copyfile(second, first)
    np.testing.assert_array_equal(tw.load(first)(X), 3 * X)


@posix
def test_a_process_ends_after_its_library_was_overwritten(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "m.so", 2.0), saved(tmp_path / "n.so", 3.0)
    program = (
        "import shutil, numpy, tilewright as tw\n"
        f"library = tw.load({str(first)!r})\n"
        "print(library(numpy.ones(4, numpy.float32)))\n"
        f"shutil.copyfile({str(second)!r}, {str(first)!r})\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[2. 2. 2. 2.]\n", "")


@posix
def test_sessions_belong_to_their_library_and_not_to_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "m.so", 2.0, weights="beside")
    monkeypatch.chdir(tmp_path)
    library = tw.load("m.so")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    session = library.session()
    np.testing.assert_array_equal(session(X), 2 * X)
    np.testing.assert_array_equal(in_thread(lambda: library(X)), 2 * X)
    library.save("copy.so")
    np.testing.assert_array_equal(tw.load("copy.so")(X), 2 * X)
    library.close()
    np.testing.assert_array_equal(in_thread(lambda: session(X)), 2 * X)
    with pytest.raises(ArtifactError, match="has been closed"):
        library.session()


@posix
def test_another_model_is_not_saved_in_its_place(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.so", 2.0)
    library = tw.load(path)
    saved(path, 3.0)
    with pytest.raises(
        ArtifactError, match="m.so, from which this library was loaded, has been replaced or removed"
    ):
        library.save(tmp_path / "n.so")
    assert not (tmp_path / "n.so").exists()


@posix
def test_a_kept_library_survives_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_cache(monkeypatch, tmp_path / "cache")
    for _ in range(2):
        library = tw.compile(lambda x: x * 2, (X,))
    assert library.report.cached
    shutil.rmtree(tmp_path / "cache")
    np.testing.assert_array_equal(tw.load(library.save(tmp_path / "m.so"))(X), 2 * X)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_code_without_users_is_unmapped(tmp_path: Path) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path))

    library = tw.load(saved(tmp_path / "m.so", 2.0))
    session, bound = library.session(), library.bind(X)
    assert mapped()
    library.close()
    np.testing.assert_array_equal(session(X), 2 * X)
    with pytest.raises(ArtifactError, match="has been closed"):
        bound()
    session.close()
    assert not mapped()
    tw.load(saved(tmp_path / "m.so", 3.0))(X)
    gc.collect()
    assert not mapped()
