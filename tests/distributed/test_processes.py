"""Process groups of gloo and MPI: real processes on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright.distributed as td
from tilewright.distributed.engine import ThreadEngine

from .programs import train

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


def start(program: str, size: int) -> list[str]:
    """The outputs of `size` processes with the variables of the environment that torchrun sets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.programs", program],
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    found = [process.communicate(timeout=120) for process in processes]
    for process, (_, errors) in zip(processes, found, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in found]


def losses_of(output: str) -> list[float]:
    line = next(line for line in output.splitlines() if line.startswith("losses"))
    return [float(x) for x in line.split()[1:]]


def test_operations_over_gloo() -> None:
    assert all("equal" in output for output in start("exchange", 2))


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_train_as_one_on_the_joint_batch(size: int) -> None:
    outputs = [losses_of(output) for output in start("train", size)]
    alone = train(td.Group(ThreadEngine.of_size(1)[0]), 5)
    assert alone[-1] < alone[0]
    for losses in outputs:
        np.testing.assert_allclose(losses, alone, rtol=1e-5)


def test_a_process_that_ends_is_told() -> None:
    (output, _) = start("lost", 2)
    assert "told: a collective operation failed" in output
    assert "because: a collective operation of group 'world' failed" in output
    seconds = float(output.split("seconds")[1])
    assert seconds < 25


@pytest.mark.parametrize("program", ["mpi-exchange", "mpi-train"])
def test_mpi(program: str) -> None:
    mpirun = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpirun is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py and an MPI library are not installed: pip install mpi4py mpich")
    run = subprocess.run(
        [mpirun, "-n", "2", sys.executable, "-m", "tests.distributed.programs", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    if program == "mpi-exchange":
        assert run.stdout.count("equal") == 2
    else:
        alone = train(td.Group(ThreadEngine.of_size(1)[0]), 5)
        assert run.stdout.count("losses") == 2
        np.testing.assert_allclose(losses_of(run.stdout), alone, rtol=1e-5)
