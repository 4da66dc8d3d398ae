"""Answers under load are the answers alone, and nothing is left over."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from typing import Any

from openai import AsyncOpenAI

from .conftest import Running
from .echo import EchoRunner
from .test_http import answers, until

CLIENTS = 64


def test_many_streams(start: Callable[..., Running]) -> None:
    """64 clients stream at a time, some leave in the midst; memory for 10 makes the engine interrupt and resume."""
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
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(talk(client, index) for index in range(CLIENTS)))

    found = asyncio.run(everybody())
    for index, (said, text) in enumerate(zip(found, texts, strict=True)):
        assert text.startswith(said) if index in gone else said == text
    until(
        lambda: server.engine.stats().running == server.engine.stats().waiting == server.service.admission.inside == 0
    )
    stats = server.engine.stats()
    assert stats.finished["stop"] >= CLIENTS - len(gone) and stats.pages_used == 0
    assert answers(server)


def test_nothing_is_left_over(start: Callable[..., Running]) -> None:
    """Objects of requests do not outlive them."""
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
