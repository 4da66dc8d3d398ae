"""Libraries of several real processes, and a server whose worker is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.docs.pages import run_page
from tests.llm.small_library import checkpoint
from tests.llm.small_tokenizer import tokenizer
from tilewright.cli.llm import command
from tilewright.distributed import Group, GroupError
from tilewright.errors import CompileError, ShapeError
from tilewright.llm.library import open_library
from tilewright.llm.parallel.calls import Calls
from tilewright.llm.parallel.launch import open_runner
from tilewright.llm.parallel.place import LOCAL_SIZES, Place, computing_here
from tilewright.llm.parallel.runner import Leader, check_together, whole_of

from .programs import main
from .threads import on_threads, worlds

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that compiles a small Llama for numbers of processes, once each. Its layers are those that a
    pipeline needs.
    """
    folder = tmp_path_factory.mktemp("parallel")
    options = "--context-window-size 256 --prefill-chunk-size 32 --max-batch-size 4 --precision f32"

    def made(tensor: int = 1, pipeline: int = 1, layers: int = 1) -> Path:
        layers, model = max(layers, pipeline), folder / f"model-{layers}"
        if not model.exists():
            checkpoint(model, layers=layers)
            tokenizer().backend.save(str(model / "tokenizer.json"))
        path = folder / (f"small-{tensor}-{pipeline}.so" if layers == pipeline else f"small-{layers}.so")
        if not path.exists():
            numbers = f"--kv-dtype f32 --tensor-parallel {tensor} --pipeline-parallel {pipeline}"
            words = ["compile", str(model), "-o", str(path), *options.split(), *numbers.split()]
            run = CliRunner().invoke(command, words)
            assert run.exit_code == 0, run.output
        return path

    return made


def check(output: str, alone: str) -> None:
    """Check that tokens are equal, and logits to 1e-4."""
    found, wanted = (json.loads(text.splitlines()[-1]) for text in (output, alone))
    assert found["tokens"] == wanted["tokens"] and len(set(wanted["tokens"])) > 3
    np.testing.assert_allclose(found["logits"], wanted["logits"], rtol=1e-4, atol=1e-4)


def program(path: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.llm.parallel.programs", str(path)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


@pytest.mark.parametrize(
    ("tensor", "pipeline"),
    [(2, 1), *(pytest.param(*n, marks=pytest.mark.slow) for n in ((4, 1), (1, 2), (2, 2)))],
)
def test_started_processes_give_the_tokens_of_one(
    tensor: int, pipeline: int, compiled: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    main(str(compiled(layers=pipeline)))
    alone = capsys.readouterr().out
    check(finished(program(compiled(tensor, pipeline))), alone)
    weights = [
        p.stat().st_size
        for p in compiled(tensor, pipeline).parent.glob(f"small-{tensor}-{pipeline}*.weights")
    ]
    assert len(weights) == tensor * pipeline
    assert max(weights) < compiled(layers=pipeline).with_suffix(".weights").stat().st_size * 0.8


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_processes_of_torchrun(compiled: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    main(str(compiled()))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    path = compiled(2)
    processes = [program(path, **shared, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", RANK=str(k)) for k in range(2)]
    outputs = [finished(process) for process in processes]
    check(outputs[0], capsys.readouterr().out)
    assert not outputs[1]


@pytest.mark.parametrize(
    ("tensor", "pipeline", "here", "expected"),
    [(2, 1, None, 2), (1, 2, None, 1), (2, 2, None, 2), (2, 2, 4, 2), (4, 1, 2, 2), (4, 2, 1, 1)],
)
def test_stages_take_turns_on_the_cores_of_a_machine(
    tensor: int, pipeline: int, here: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`here` is the number of processes that a launcher says it has started on this machine."""
    for name in LOCAL_SIZES:
        monkeypatch.delenv(name, raising=False)
    place = Place(tensor, pipeline)
    for name in LOCAL_SIZES:
        with monkeypatch.context() as patched:
            if here is not None:
                patched.setenv(name, str(here))
            assert computing_here(place) == expected


@pytest.mark.slow
def test_processes_of_mpirun(compiled: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    launcher = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if launcher is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py and an MPI library are not installed: pip install mpi4py mpich")
    main(str(compiled()))
    words = [sys.executable, "-m", "tests.llm.parallel.programs", str(compiled(2))]
    run = subprocess.run([launcher, "-n", "2", *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    check(run.stdout, capsys.readouterr().out)


def test_a_part_alone_is_refused(compiled: Callable[..., Path]) -> None:
    with pytest.raises(CompileError, match="needs 2 processes"):
        open_library(compiled(2))
    run = CliRunner().invoke(command, ["serve", str(compiled()), "--tensor-parallel", "2"])
    assert run.exit_code == 2 and "was compiled for 1; compile it again" in run.output


def serving(
    path: Path, port: int = 0, environment: dict[str, str] | None = None
) -> tuple[subprocess.Popen[str], str]:
    """A server in a process of its own, with its address."""
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tilewright",
            "llm",
            "serve",
            str(path),
            "--port",
            str(port),
            "--tensor-parallel",
            "2",
        ],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    assert " at http" in line, (line, server.stderr.read() if server.stderr and server.poll() else "")
    return server, line.split(" at ")[1].split("/v1")[0]


def answer(url: str, **more: Any) -> Any:
    import httpx

    body = {"model": "small-2-1", "prompt": "one two", "max_tokens": 8, "temperature": 0, **more}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=30)


@pytest.mark.parametrize("idle", [False, True])
def test_a_killed_worker_fails_its_requests_and_ends_the_server(
    idle: bool, compiled: Callable[..., Path]
) -> None:
    import httpx

    server, url = serving(compiled(2))
    try:
        assert answer(url).status_code == 200
        workers = psutil.Process(server.pid).children()
        assert len(workers) == 1
        if idle:
            workers[0].kill()
        else:
            told = ""
            body = {
                "model": "small-2-1",
                "prompt": "one",
                "max_tokens": 200,
                "ignore_eos": True,
                "stream": True,
            }
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as stream:
                for line in stream.iter_lines():
                    told += line
                    if len(told) > 500 and workers[0].is_running():
                        workers[0].kill()
            assert "process of rank 1 has ended" in told
        start = time.monotonic()
        _, errors = server.communicate(timeout=30)
        assert time.monotonic() - start < 15
        assert server.returncode == 1
        assert "process of rank 1 has ended" in errors and "the server has ended" in errors
    finally:
        server.kill()


def test_signals_end_the_server_and_its_worker(compiled: Callable[..., Path]) -> None:
    server, url = serving(compiled(2))
    try:
        assert answer(url).status_code == 200
        workers = psutil.Process(server.pid).children()
        workers[0].send_signal(signal.SIGTERM)  # a service's signal reaches all of its processes
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
        assert not psutil.pid_exists(workers[0].pid) or workers[0].status() == psutil.STATUS_ZOMBIE
    finally:
        server.kill()


def test_a_server_of_torchrun(compiled: Callable[..., Path]) -> None:
    """Both ranks run the same command on one machine, and rank 0 alone has the port."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    shared |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    port = free_port()
    words = [sys.executable, "-m", "tilewright", "llm", "serve", str(compiled(2)), "--port", str(port)]
    other = subprocess.Popen(
        words, cwd=ROOT, env={**os.environ, **shared, "RANK": "1"}, stderr=subprocess.PIPE, text=True
    )
    server, url = serving(compiled(2), port, {**shared, "RANK": "0"})
    try:
        assert answer(url).status_code == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
        assert other.wait(20) == 0, other.communicate()[1]
    finally:
        server.kill()
        other.kill()


def test_a_chat_lets_its_worker_end(compiled: Callable[..., Path], tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    words = ["chat", str(compiled(2)), "--chat-template", str(template), "--max-tokens", "4"]
    run = subprocess.run(
        [sys.executable, "-m", "tilewright", "llm", *words],
        cwd=ROOT, input="one two\n", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0 and run.stdout.strip()
    assert "has ended" not in run.stderr, run.stderr


def test_a_runner_closes_after_a_worker_was_killed(compiled: Callable[..., Path]) -> None:
    runner, _ = open_runner(compiled(2))
    assert isinstance(runner, Leader)
    runner.workers[0].kill()
    runner.workers[0].wait()
    runner.close()
    runner.close()


def test_refused_arguments_do_not_end_the_processes(compiled: Callable[..., Path]) -> None:
    runner, _ = open_runner(compiled(2))
    assert isinstance(runner, Leader)
    tokens, pages = np.arange(5, 9, dtype=np.int32), np.arange(2, dtype=np.int32)
    wanted = runner.prefill(tokens, 0, pages, 0)
    with pytest.raises(ShapeError):
        runner._call("prefill", tokens)
    with pytest.raises(ValueError, match="integers of 32 bits only"):
        runner._call("prefill", "a", tokens)
    assert runner.lost is None
    np.testing.assert_array_equal(runner.prefill(tokens, 0, pages, 0), wanted)
    runner.close()


def test_numbers_that_are_no_integers_are_refused() -> None:
    (calls,) = (Calls(world, ["prefill"]) for world in worlds(1))
    for wrong in (np.ones(2, np.float32), np.array([1 << 40]), np.array(["5"])):
        with pytest.raises(ValueError, match="'prefill': other processes are told integers of 32 bits only"):
            calls.packed("prefill", [wrong])
    name, (found,) = calls.unpacked(calls.packed("prefill", [np.array([3, -1])]))
    assert name == "prefill" and found.dtype == np.int32 and found.tolist() == [3, -1]


def test_libraries_that_do_not_belong_together_are_refused() -> None:
    """In all processes: none of them waits for another one."""

    def errors(ranks: tuple[int, int], descriptions: list[dict[str, Any]]) -> list[str]:
        def met(k: int, world: Group) -> str:
            key = whole_of({"llm": {**descriptions[k], "rank": ranks[k], "flops": k}}, {"prefill", "decode"})
            try:
                check_together(Place(2, 1, ranks[k]), key, world)
            except CompileError as error:
                return str(error)
            return ""

        return on_threads([lambda k=k, world=world: met(k, world) for k, world in enumerate(worlds(2))])

    one, other = {"context": 256, "sample": "a"}, {"context": 256, "sample": "b"}
    assert errors((0, 1), [one, one]) == ["", ""]
    assert all("the process of rank 0 has the library of rank 1" in e for e in errors((1, 0), [one, one]))
    assert all("rank 1 is not of the same model and options" in e for e in errors((0, 1), [one, other]))


def test_a_file_of_another_rank_is_refused(compiled: Callable[..., Path], tmp_path: Path) -> None:
    path = compiled(2)
    for file in path.parent.glob("small-2-1*"):
        (shutil.copytree if file.is_dir() else shutil.copy)(file, tmp_path / file.name)
    for suffix in (".so", ".weights"):
        shutil.copy((tmp_path / path.name).with_suffix(suffix), tmp_path / f"{path.stem}.rank1{suffix}")
    with pytest.raises(CompileError, match="the process of rank 1 has the library of rank 0"):
        open_runner(tmp_path / path.name)


def test_an_interrupt_within_a_call_ends_the_group(
    compiled: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process computes a call that this one has left, so their caches differ."""
    runner, _ = open_runner(compiled(2))
    assert isinstance(runner, Leader)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(runner._functions, "prefill", interrupted)
    tokens, pages = np.arange(5, 9, dtype=np.int32), np.arange(2, dtype=np.int32)
    with pytest.raises(KeyboardInterrupt):
        runner.prefill(tokens, 0, pages, 0)
    with pytest.raises(GroupError, match="KeyboardInterrupt"):
        runner.prefill(tokens, 0, pages, 0)
    for worker in runner.workers:
        worker.kill()
    runner.close()


def test_the_page(compiled: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("llm/parallel.md", path=compiled(2))
    assert len(names["answer"].tokens) == 8 and names["QuietAttention"] in names["RULES"]
    assert capsys.readouterr().out
    del names["RULES"][names["QuietAttention"]]


def test_a_worker_ends_when_the_server_is_killed(compiled: Callable[..., Path]) -> None:
    server, _ = serving(compiled(2))
    (worker,) = psutil.Process(server.pid).children()
    server.kill()
    server.wait()
    assert psutil.wait_procs([worker], 10)[0]
