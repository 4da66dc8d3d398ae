"""The commands `tilewright llm serve`, `chat` and `bench`, each run as a process."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner
from openai import OpenAI

from tests.llm.server.echo import TEMPLATE
from tilewright.cli import llm_bench, llm_serve
from tilewright.llm.server.limits import Limits
from tilewright.tools.roofline import machine

ROOT = Path(__file__).parents[2]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.cli.llm_library", "llm", *map(str, arguments)]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.so"
    path.write_bytes(b"")
    return path


class Served:
    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            command("serve", *arguments, "--port", 0),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        assert " at " in self.line, self.process.communicate()[1]
        self.url = self.line.split(" at ")[1].split()[0]

    def client(self, key: str = "x") -> OpenAI:
        return OpenAI(base_url=self.url, api_key=key, max_retries=0)


@pytest.fixture
def started() -> Iterator[list[Served]]:
    servers: list[Served] = []
    yield servers
    for server in servers:
        server.process.kill()
        server.process.communicate()


def test_serve(library: Path, started: list[Served], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    library.write_text("steady")
    server = Served(
        library,
        "--api-key-file",
        keys,
        "--max-tokens",
        1500,
        "--log-level",
        "error",
        "--temperature",
        0,
        "--speculate",
        4,
    )
    started.append(server)
    assert server.line.startswith("tiny at http://127.0.0.1:")
    assert httpx.get(f"{server.url}/models").status_code == 401
    client = server.client("secret")
    repeated = "the same words, " * 15  # the first hundred tokens or so only measure plain steps
    answer = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": repeated}])
    assert answer.choices[0].message.content == repeated
    metrics = httpx.get(
        server.url.removesuffix("v1") + "metrics", headers={"Authorization": "Bearer secret"}
    ).text
    (accepted,) = re.findall(
        r'^tilewright_engine_accepted_tokens_total{model="tiny"} (.*)$', metrics, re.MULTILINE
    )
    assert float(accepted) > 20, "--speculate had no effect"
    texts: list[str] = []

    def talk() -> None:
        stream = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "w" * 300}], stream=True
        )
        for chunk in stream:
            texts.append(chunk.choices[0].delta.content or "")

    talker = threading.Thread(target=talk)
    talker.start()
    while len(texts) < 3:
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    talker.join(30)
    assert "".join(texts) == "w" * 300, "a running answer must finish after SIGTERM"
    assert server.process.wait(20) == 0
    assert server.process.stderr is not None and server.process.stderr.read() == ""


def test_serve_again_after_kill(library: Path, started: list[Served]) -> None:
    """A port is free for the next server after its server was killed."""
    first = Served(library, "--name", "m")
    started.append(first)
    port = first.url.rsplit(":", 1)[1].split("/")[0]
    assert first.client().completions.create(model="m", prompt="abc").choices[0].text
    busy = subprocess.run(
        command("serve", library, "--port", port), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert busy.returncode == 1 and "in use" in busy.stderr and len(busy.stderr.splitlines()) == 1
    first.process.kill()
    first.process.wait()
    again = subprocess.Popen(
        command("serve", library, "--port", port), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert again.stdout is not None and f":{port}/" in again.stdout.readline()
    again.send_signal(signal.SIGTERM)
    assert again.wait(20) == 0
    again.communicate()


def test_chat(library: Path) -> None:
    lines = [
        "hello",
        "two\\",
        "lines",
        "/stats",
        "/system Be kind.",
        "/nix",
        "again",
        "x" * 3000,
        "/stats",
        "/exit",
        "never",
    ]
    run = subprocess.run(
        command("chat", library),
        cwd=ROOT,
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1, "unanswered lines must give exit code 1"
    out = [line for line in run.stdout.splitlines() if line]
    assert out[:3] == ["hello", "two", "lines"]
    assert "of 2048 tokens" in out[3] and "prompt: " in out[3]
    assert out[4] == "again" and len(out) == 6, "only replies and statistics go to stdout"
    first, second = run.stderr.splitlines()
    assert first == "error: unknown command /nix; /help lists the commands"
    assert second.startswith("error: the prompt has 3")
    assert "of 2048 tokens" in out[-1], "a message that cannot be answered is dropped"


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
def test_chat_of_a_pipe(library: Path, locale: str) -> None:
    """Input from a pipe is read as UTF-8 in every locale. A line that is not valid UTF-8 is reported, and the
    other lines are answered.
    """
    run = subprocess.run(
        command("chat", library),
        cwd=ROOT,
        input="Grüße 🦊\r\n".encode() + b"caf\xe9\nlast",
        capture_output=True,
        timeout=60,
        env={
            **os.environ,
            "LC_ALL": locale,
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONIOENCODING": "utf-8",
        },
    )
    assert run.returncode == 1 and run.stdout.decode().split("\n") == ["Grüße 🦊", "last", ""]
    assert run.stderr.decode().startswith("error: the message is not UTF-8:") and run.stderr.count(b"\n") == 1
    fine = subprocess.run(command("chat", library), cwd=ROOT, input=b"one\n", capture_output=True, timeout=60)
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, b"one\n", b"")


def test_lines_that_are_pasted_are_one_message(library: Path) -> None:
    """Several lines that are pasted into a terminal are one message. The test sends the marks of a bracketed
    paste if the program asks for them.
    """
    mine, its = pty.openpty()
    process = subprocess.Popen(
        command("chat", library),
        cwd=ROOT,
        stdin=its,
        stdout=its,
        stderr=its,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(its)
    shown = b""

    def until(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            assert select.select([mine], [], [], 60)[0], shown
            shown += os.read(mine, 65536)

    try:
        until(b">>> ")
        marked = b"\x1b[?2004h" in shown
        shown = b""
        pasted = b"one two\rthree four"
        os.write(mine, (b"\x1b[200~" + pasted + b"\x1b[201~" if marked else pasted) + b"\r")
        until(b">>> ")
        shown = b""
        os.write(mine, b"/stats\r")
        until(b"from the cache")
        # The echo model replies with the message; a reply of 18 or 19 tokens shows that both lines arrived.
        assert b"reply: 19 tokens" in shown or b"reply: 18 tokens" in shown, shown
    finally:
        process.kill()
        process.wait()
        os.close(mine)


def test_a_model_without_a_chat_template(library: Path, tmp_path: Path, started: list[Served]) -> None:
    library.write_bytes(b"bare")
    run = subprocess.run(
        command("chat", library), cwd=ROOT, input="hi\n", capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 1 and "no chat template" in run.stderr and "--chat-template FILE" in run.stderr
    served = Served(library)
    started.append(served)
    assert served.client().completions.create(model="tiny", prompt="x").choices[0].text
    served.process.terminate()
    assert "tilewright: warning: the model has no chat template" in served.process.communicate()[1]
    template = tmp_path / "chat.jinja"
    template.write_text(TEMPLATE)
    given = ("chat", library, "--chat-template", template)
    run = subprocess.run(command(*given), cwd=ROOT, input="hi\n", capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "hi\n"), run.stderr
    template.write_text("{% if %}")
    run = subprocess.run(command(*given), cwd=ROOT, input="hi\n", capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "chat.jinja: the chat template is not valid Jinja, in line 1" in run.stderr


@pytest.mark.parametrize("package", ["jinja2", "llguidance", "h11", "uvicorn"])
def test_packages_that_are_missing(library: Path, package: str) -> None:
    """A missing package is reported at the start in one line that says how to install it, without a
    traceback.
    """
    commands = ["serve", "chat"] if package == "jinja2" else ["serve"]
    for name in commands:
        program = (
            f"import sys; sys.modules[{package!r}] = None\nfrom tests.cli.llm_library import "
            f"install\ninstall()\nfrom tilewright.cli import main\nmain(['llm', {name!r}, {str(library)!r}])"
        )
        run = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            input="hi\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 1 and run.stdout == "", run.stdout
        assert run.stderr == (
            f"tilewright: error: the package {package}, for language models, "
            "is not installed: pip install 'tilewright[llm]'\n"
        )


def test_chat_is_interrupted(library: Path) -> None:
    library.write_bytes(b"slow")
    process = subprocess.Popen(
        command("chat", library),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        # A shell's background jobs inherit an ignored SIGINT, for which Python raises no KeyboardInterrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("begin\n" + "x" * 500 + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "begin\n"
    process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate("/stats\nend\n", timeout=60)
    assert process.returncode == 0, errors
    lines = [line for line in out.splitlines() if line]
    assert lines[0].endswith(" (stopped)") and len(lines[0]) < 490
    assert "prompt: " in lines[1] and lines[2] == "end"


def figures(*arguments: object) -> Any:
    options = ("--users", "1,3", "--requests", 2, "--tokens", 8, "--prompt-tokens", 40, "--json", "-")
    run = subprocess.run(
        command("bench", *arguments, *options), cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def check(found: Any) -> None:
    one, three = found["levels"]
    assert (one["users"], three["users"], one["answers"], three["answers"]) == (1, 3, 2, 6)
    assert one["errors"] == three["errors"] == 0
    for row in (one, three):
        for name in ("first_token_ms", "inter_token_ms", "answer_ms"):
            assert 0 < row[name]["p50"] <= row[name]["p90"] <= row[name]["p99"]
        assert row["output_rate"] * row["seconds"] == pytest.approx(8 * row["answers"])
        assert row["total_rate"] * row["seconds"] == pytest.approx(48 * row["answers"])
    assert one["prefill_rate"] > 0 and three["prefill_rate"] is None


def test_bench_of_a_library(library: Path) -> None:
    found = figures(library)
    check(found)
    roof = found["levels"][0]["roofline"]
    assert (
        0
        < roof["decode_share"]
        == pytest.approx(roof["decode_floor_ms"] / found["levels"][0]["inter_token_ms"]["p50"])
    )
    assert roof["prefill_share"] > 0


def test_floors_of_what_caches_may_hold_are_arithmetic() -> None:
    class Runner:
        flops = 4e9

        def __init__(self, weight_bytes: int) -> None:
            self.weight_bytes = weight_bytes

        def cache_bytes(self, tokens: int) -> int:
            return 1000 * tokens

    row = {"users": 2, "prompt_tokens": 100, "inter_token_ms": {"p50": 50.0}}
    here = machine()
    small, large = (llm_bench._roofline(Runner(size << 20), row, 20, 8) for size in (200, 2000))
    assert small is not None and small["decode_floor_ms"] == pytest.approx(8e12 / here.bf16_flops)
    assert large is not None
    assert large["decode_floor_ms"] == pytest.approx(((2000 << 20) + 2 * 110 * 1000) * 1e3 / here.bandwidth)
    assert large["decode_share"] == large["decode_floor_ms"] / 50
    assert llm_bench._roofline(object(), row, 20, 8) is None


def test_bench_of_a_server(library: Path, started: list[Served]) -> None:
    server = Served(library, "--log-level", "error")
    started.append(server)
    found = figures("--url", server.url)
    assert found["model"] == "tiny"
    check(found)
    wrong = subprocess.run(
        command("bench", "--url", server.url, "--model", "other"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert wrong.returncode == 1 and "404" in wrong.stderr and "does not exist" in wrong.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["--users", "1,x"], ["--tokens", "1"], ["--url", "http://x", "--speculate", "4"]]
)
def test_bench_of_nothing(arguments: list[str]) -> None:
    assert CliRunner().invoke(llm_bench.command, arguments).exit_code == 2


def test_docs_name_options_and_defaults_that_exist() -> None:
    page = (ROOT / "docs" / "llm" / "serving.md").read_text()
    known: dict[str, click.Parameter] = {
        option: parameter
        for module in (llm_serve, llm_bench)
        for parameter in module.command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(re.findall(r"--[a-z][a-z-]+", page)) <= set(known)
    fields = {"--max-body": "body", "--max-connections": "connections"}
    said = re.findall(r"`(--[a-z-]+)` \((\d+)( MiB)?", page)
    assert len(said) >= 7
    for option, value, mega in said:
        default = getattr(Limits(), fields.get(option, option[2:].replace("-", "_")))
        assert default == int(value) * (1 << 20 if mega else 1), option
        assert f"[default: {default:g}]" in (known[option].help or "") or f"[default: {default}]" in (
            known[option].help or ""
        )


def test_serve_several(library: Path, started: list[Served], tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(b"")
    server = Served(library, other, "--memory-limit", "1GiB")
    started.append(server)
    assert server.line.startswith("tiny, other at http://127.0.0.1:")
    client = server.client()
    assert [model.id for model in client.models.list().data] == ["tiny", "other"]
    for name in ("tiny", "other"):
        answer = client.chat.completions.create(model=name, messages=[{"role": "user", "content": name}])
        assert answer.choices[0].message.content == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--name", "a"), "1 --name for 2 models"),
        (("--adapter", "a=b"), "--adapter is for a server of one model"),
        (("--memory-limit", "8 parsecs"), "is no size: write it as 8GB"),
    ],
)
def test_options_of_several_models(library: Path, options: tuple[str, ...], message: str) -> None:
    other = library.with_name("other.so")
    other.write_bytes(b"")
    done = subprocess.run(
        command("serve", library, other, *options), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and message in done.stderr


def test_memory_sizes() -> None:
    convert = llm_serve.MemorySize().convert
    assert [convert(text, None, None) for text in ("8GB", "1.5 gib", "500M", "7")] == [
        8 * 10**9, 3 << 29, 500 << 20, 7,
    ]  # fmt: skip
