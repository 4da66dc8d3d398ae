"""Process groups of gloo, of gloo with shared memory (the default on one machine), and of MPI: real
processes on this machine.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tilewright.distributed as td
from tilewright.distributed.engine import ThreadEngine

from .programs import train

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


def start(program: str, size: int, *options: object, ends: Sequence[int] | None = None) -> list[str]:
    """The outputs of `size` processes with the variables of the environment that torchrun sets, which end
    with the statuses `ends` (default: 0).
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.programs", program, *map(str, options)],
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    found = [process.communicate(timeout=120) for process in processes]
    for process, (_, errors), end in zip(processes, found, ends or [0] * size, strict=True):
        assert process.returncode == end, errors
    return [output for output, _ in found]


def losses_of(output: str) -> list[float]:
    line = next(line for line in output.splitlines() if line.startswith("losses"))
    return [float(x) for x in line.split()[1:]]


@pytest.mark.parametrize(("program", "size"), [("gloo-exchange", 2), ("exchange", 2), ("exchange", 4)])
def test_operations(program: str, size: int) -> None:
    assert all("equal" in output for output in start(program, size))


@pytest.mark.parametrize("program", ["gloo-train", "train"])
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_train_as_one_on_the_joint_batch(program: str, size: int) -> None:
    outputs = [losses_of(output) for output in start(program, size)]
    assert program != "train" or all(losses == outputs[0] for losses in outputs)
    alone = train(td.Group(ThreadEngine.of_size(1)[0]), 5)
    assert alone[-1] < alone[0]
    for losses in outputs:
        np.testing.assert_allclose(losses, alone, rtol=1e-5)


@pytest.mark.parametrize(("program", "size", "most"), [("gloo-lost", 2, 25), ("lost", 2, 3), ("lost", 4, 3)])
def test_a_process_that_is_killed_is_told(program: str, size: int, most: float) -> None:
    names = set(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else set()
    ends = [-signal.SIGKILL if rank == 1 else 0 for rank in range(size)]
    outputs = start(program, size, ends=ends)
    for output in (outputs[0], *outputs[2:]):
        assert "told: a collective operation failed" in output
        assert "because: a collective operation of group 'world' failed: rank 1 has ended" in output
        assert float(output.split("seconds")[1]) < most  # seconds
    if program == "lost" and names:
        assert not {n for n in set(os.listdir("/dev/shm")) - names if "tilewright" in n}


def numbered(output: str) -> dict[int, float]:
    line = next(line for line in output.splitlines() if line.startswith("losses"))
    return {int(n): float(x) for n, x in (part.split(":") for part in line.split()[1:])}


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_training_goes_on_from_the_last_checkpoint_after_a_process_is_killed(
    size: int, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    (whole, *_) = start("resume", size, tmp_path / "whole", 8, -1)
    ends = [-signal.SIGKILL if rank == 1 else 3 for rank in range(size)]
    outputs = start("resume", size, tmp_path, 8, 5, ends=ends)
    for output in (outputs[0], *outputs[2:]):
        seconds = float(output.partition("told after")[2].split()[0])
        assert seconds < 20 and "rank 1 has ended or does not answer" in output
    (rest, *_) = start("resume", size, tmp_path, 8, -1)
    expected = numbered(whole)
    assert numbered(rest) == {n: x for n, x in expected.items() if n >= 4}  # bit for bit


def mpirun(size: int, program: str, *options: object) -> subprocess.CompletedProcess[str]:
    """Run processes of MPI."""
    command = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if command is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py and an MPI library are not installed: pip install mpi4py mpich")
    module = [sys.executable, "-m", "tests.distributed.programs", program, *map(str, options)]
    return subprocess.run(
        [command, "-n", str(size), *module], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_mpirun_ends_all_processes_when_one_is_killed_and_training_goes_on(tmp_path: Path) -> None:
    start = time.monotonic()
    run = mpirun(2, "mpi-resume", tmp_path, 8, 5)
    assert run.returncode != 0 and time.monotonic() - start < 60
    assert "BAD TERMINATION" in run.stdout + run.stderr
    rest = mpirun(2, "mpi-resume", tmp_path, 8, -1)
    assert rest.returncode == 0, rest.stderr
    assert list(numbered(rest.stdout)) == [4, 5, 6, 7]


@pytest.mark.parametrize("program", ["mpi-exchange", "mpi-train"])
def test_mpi(program: str) -> None:
    run = mpirun(2, program)
    assert run.returncode == 0, run.stderr
    if program == "mpi-exchange":
        assert run.stdout.count("equal") == 2
    else:
        alone = train(td.Group(ThreadEngine.of_size(1)[0]), 5)
        assert run.stdout.count("losses") == 2
        np.testing.assert_allclose(losses_of(run.stdout), alone, rtol=1e-5)
