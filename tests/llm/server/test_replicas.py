"""Replicas of a model: which one a request goes to; with Ray Serve, one that is killed under load."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tilewright.errors import CompileError
from tilewright.llm.server.replicas import order, prefix, replicated


def test_requests_that_begin_alike_have_one_key() -> None:
    long = "x" * 5000
    assert prefix(b'{"prompt": "a"}') == b"a" and prefix(b"not JSON") == b"not JSON"
    assert prefix(f'{{"prompt": "{long}1"}}'.encode()) == prefix(f'{{"prompt": "{long}2"}}'.encode())
    chats = [f'{{"messages": [{{"role": "user", "content": "{c}"}}]}}'.encode() for c in "ab"]
    assert prefix(chats[0]) != prefix(chats[1])


def test_only_requests_of_a_lost_replica_move() -> None:
    keys = [str(k).encode() for k in range(300)]
    before = [order(key, [0] * 3, set()) for key in keys]
    assert all(sorted(each) == [0, 1, 2] for each in before)
    assert all(count > 60 for count in Counter(each[0] for each in before).values())
    for key, each in zip(keys, before, strict=True):
        after = order(key, [0] * 3, {1})
        assert after[-1] == 1 and (each[0] == 1 or after[0] == each[0])


def test_a_busy_replica_is_second() -> None:
    first = order(b"k", [0, 0], set())[0]
    busy = [9 if k == first else 0 for k in range(2)]
    assert order(b"k", busy, set()) == [1 - first, first]
    assert order(b"k", [min(n, 8) for n in busy], set())[0] == first


def test_numbers_of_replicas() -> None:
    with pytest.raises(CompileError, match="at least 1"):
        replicated("model.so", 0)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install 'ray[serve]'")
def test_a_killed_replica_loses_only_what_it_has_begun_to_answer(tmp_path: Path) -> None:
    """Two replicas under load, of which one is killed and replaced."""
    import ray
    from click.testing import CliRunner
    from ray import serve

    from tests.llm.small_library import checkpoint
    from tests.llm.small_tokenizer import tokenizer
    from tilewright.cli.llm import command

    checkpoint(tmp_path / "model")
    tokenizer().backend.save(str(tmp_path / "model" / "tokenizer.json"))
    words = ["compile", str(tmp_path / "model"), "-o", str(tmp_path / "small.so")]
    assert CliRunner().invoke(command, [*words, "--context-window-size", "256"]).exit_code == 0
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        serve.start(http_options={"port": port})
        serve.run(replicated(tmp_path / "small.so", 2))
        url = f"http://127.0.0.1:{port}"
        body: dict[str, Any] = {"model": "small", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
        alone = {
            p: httpx.post(f"{url}/v1/completions", json={**body, "prompt": p}, timeout=60).json()
            for p in ("one two", "three", "four five six", "seven")
        }
        outcomes: list[tuple[str, bool]] = []  # what came of each request, and whether it was right
        end = threading.Event()

        def ask(prompt: str, stream: bool) -> None:
            wanted = alone[prompt]["choices"][0]["text"]
            while not end.is_set():
                sent = {**body, "prompt": prompt, "stream": stream}
                response = httpx.post(f"{url}/v1/completions", json=sent, timeout=60)
                if stream:
                    text = response.text
                    outcomes.append(("told" if "replica_lost" in text else "stream", "[DONE]" in text))
                else:
                    outcomes.append(("whole", response.json()["choices"][0]["text"] == wanted))

        threads = [threading.Thread(target=ask, args=(p, s)) for p in alone for s in (False, True)]
        for thread in threads:
            thread.start()
        time.sleep(3)
        handle = serve.get_deployment_handle("replica-0", "default")
        killed = handle.process.remote().result()
        os.kill(killed, signal.SIGKILL)
        time.sleep(6)
        end.set()
        for thread in threads:
            thread.join(60)
        kinds = Counter(kind for kind, _ in outcomes)
        print(f"outcomes: {dict(kinds)}")
        assert all(right for kind, right in outcomes if kind != "told")
        assert kinds["told"] <= 4 and kinds["whole"] > 20 and kinds["stream"] > 20
        assert handle.process.remote().result(timeout_s=60) != killed, "it has been replaced"
    finally:
        serve.shutdown()
        ray.shutdown()
