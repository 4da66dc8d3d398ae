"""Under load, each request gets the answer that it gets alone, and nothing is left over."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import AsyncOpenAI

from .conftest import Running
from .echo import EchoRunner, tokenizer
from .test_http import answers, until

CLIENTS = 64


def test_many_streams(start: Callable[..., Running]) -> None:
    """64 clients stream at the same time, and some leave during the answer. There is memory for 10, so that
    the engine preempts and resumes.
    """
    server = start(runner=EchoRunner(pages=60, max_batch=12), queue=200)
    draw = random.Random(3)
    shared = "It was a dark and stormy night; the rain fell in torrents. " * 2
    texts = [
        shared[: draw.randrange(120)] + "".join(draw.choices("abcdefg hij", k=draw.randrange(1, 90)))
        for _ in range(CLIENTS)
    ]
    texts = [text.strip() + "." for text in texts]
    gone = set(draw.sample(range(CLIENTS), 16))

    async def talk(client: AsyncOpenAI, index: int) -> str:
        stream: Any = await client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": texts[index]}], stream=True, temperature=0
        )
        said, count = "", 0
        async for chunk in stream:
            said += chunk.choices[0].delta.content or ""
            count += 1
            if index in gone and count == 3:
                await stream.close()
                break
        return said

    async def everybody() -> list[str]:
        async with AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=120
        ) as client:
            return await asyncio.gather(*(talk(client, index) for index in range(CLIENTS)))

    found = asyncio.run(everybody())
    for index, (said, text) in enumerate(zip(found, texts, strict=True)):
        assert text.startswith(said) if index in gone else said == text
    until(
        lambda: (
            server.engine.stats().running
            == server.engine.stats().waiting
            == server.service.admission.inside
            == 0
        )
    )
    stats = server.engine.stats()
    assert stats.finished["stop"] >= CLIENTS - len(gone) and stats.pages_used == 0
    assert answers(server)


def test_nothing_is_left_over(start: Callable[..., Running]) -> None:
    """Objects of a request are freed with it."""
    from tilewright.llm.engine.stream import Stream

    server = start()

    async def many(count: int) -> None:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            for _ in range(count // 10):
                await asyncio.gather(
                    *(client.completions.create(model="echo", prompt="abc", max_tokens=2) for _ in range(10))
                )

    asyncio.run(many(100))
    until(lambda: server.service.admission.inside == 0)
    gc.collect()
    assert sum(isinstance(found, Stream) for found in gc.get_objects()) <= 2
    assert len(server.server.server_state.tasks) == 0


@pytest.mark.slow
def test_memory_over_5000_requests(start: Callable[..., Running]) -> None:
    """Memory stays bounded over streams, whole answers, cancelled requests and refused ones."""
    server = start(queue=100)
    process = psutil.Process()

    async def one(client: httpx.AsyncClient, index: int) -> None:
        kind = index % 4
        body: dict[str, Any] = (
            {"model": "echo", "input": f"{index} " * 5}
            if kind == 3
            else {"model": "echo", "prompt": f"{index} " * 5, "max_tokens": 3}
        )
        if kind == 0:
            assert (await client.post("/v1/completions", json=body)).status_code == 200
        elif kind == 1:
            assert (await client.post("/v1/completions", json=body | {"max_tokens": 9999})).status_code == 400
        elif kind == 2:
            async with client.stream(
                "POST", "/v1/completions", json=body | {"max_tokens": 500, "stream": True}
            ) as answer:
                async for _ in answer.aiter_raw():
                    break
        else:
            assert (await client.post("/v1/responses", json=body | {"store": False})).status_code == 200

    async def many(count: int) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            for begin in range(0, count, 20):
                await asyncio.gather(*(one(client, begin + i) for i in range(20)))

    asyncio.run(many(1000))
    until(lambda: server.service.admission.inside == 0)
    gc.collect()
    before = process.memory_info().rss
    asyncio.run(many(4000))
    until(lambda: server.service.admission.inside == 0)
    gc.collect()
    assert process.memory_info().rss - before < 16 << 20
    assert server.engine.stats().pages_used == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("guidellm") is None, reason="guidellm, a load generator, is not installed")
def test_a_public_load_generator(start: Callable[..., Running], tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend, eos_token="<eos>").save_pretrained(tmp_path)
    server = start()
    options = {
        "backend": f"kind=openai_http,target={server.url}",
        "profile": "kind=concurrent,streams=4",
        "constraint": "kind=max_requests,count=12",
        "tokenizer": f"kind=huggingface_auto,model={tmp_path}",
        "data": "kind=synthetic_text,prompt_tokens=60,output_tokens=20",
        "output": "kind=console",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    run = subprocess.run(
        ["guidellm", "run", "--disable-progress", *arguments], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    stats = server.engine.stats()
    assert stats.finished["length"] >= 12 and set(stats.finished) == {"length"}
    assert stats.generated_tokens == 20 * stats.finished["length"]
