from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import sys, numpy as np, tilewright as tw
library = tw.compile(lambda x: x + 1, (np.zeros(3, np.float32),), cache=False)
assert (library(np.zeros(3, np.float32)) == 1).all()
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def start(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A function that starts a process, which compiles something with its temporary files in a folder of the
    test, and waits until it is ready.
    """
    (tmp_path / "temporary").mkdir()
    running = []

    def process() -> subprocess.Popen[str]:
        found = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        )
        running.append(found)
        assert found.stdout is not None and found.stdout.readline() == "ready\n"
        return found

    yield process
    for one in running:
        one.kill()
        one.communicate()


def test_nothing_is_left_behind(tmp_path: Path, start) -> None:  # type: ignore[no-untyped-def]
    """A process that ends removes its folder. The folder of a process that was killed is removed by the next
    process that starts.
    """
    folder = tmp_path / "temporary"
    (folder / "tilewright-notes").mkdir()  # a folder of another program, without our lock file
    others = {folder / "tilewright-notes"}
    alive, killed = start(), start()
    mine = {p for p in folder.iterdir() if p not in others}
    assert len(mine) == 2
    killed.kill()
    killed.wait()
    assert {p for p in folder.iterdir() if p not in others} == mine
    (left,) = mine - {p for p in mine if _held_by(p, alive.pid)}
    third = start()
    now = set(folder.iterdir()) - others
    assert left not in now and len(now) == 2, "only the killed process's folder is removed"
    for one in (alive, third):
        one.communicate("\n")
        assert one.returncode == 0
    assert set(folder.iterdir()) == others


def _held_by(folder: Path, process: int) -> bool:
    return any(
        os.path.realpath(link).startswith(str(folder)) for link in Path(f"/proc/{process}/fd").iterdir()
    )


def test_a_process_that_forked_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.artifact import temporary

    mine = temporary.folder()
    (mine / "file").write_text("mine")
    child = os.fork()
    if child == 0:
        other = temporary.folder()
        os._exit(0 if other != mine and other.is_dir() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (mine / "file").exists() and temporary.folder() == mine
    (mine / "file").unlink()


def test_a_folder_that_vanished_is_made_again() -> None:
    """The temporary folder is made again if a system's cleaner has removed it."""
    import shutil

    from tilewright.artifact import temporary

    shutil.rmtree(temporary.folder())
    assert temporary.folder().is_dir()
    assert time.time() - temporary.folder().stat().st_mtime < 60
