"""The server with a library for a GPU, on a simulated device."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.devices import need, running
from tests.llm.devices import without_nvrtc
from tests.llm.small_library import checkpoint, library
from tilewright.llm.engine.engine import Engine
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.stream import Request
from tilewright.llm.library import LibraryOptions, LibraryRunner

from .conftest import Running
from .echo import tokenizer
from .test_http import answers, until

CLIENTS = 16


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LibraryRunner]:
    need("cuda")
    folder = checkpoint(tmp_path_factory.mktemp("llama"), vocabulary=tokenizer().vocabulary)
    with without_nvrtc():
        made = library(folder, "int4_g32", LibraryOptions(context=128, chunk=32, max_batch=6), target="cuda")
    with running(made) as found:
        yield LibraryRunner(found)


def requests() -> list[tuple[list[int], dict[str, Any], int]]:
    """Prompts, how tokens are chosen, and how many follow."""
    draw = random.Random(3)
    shared = draw.choices(range(256), k=40)
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 3, "top_p": 0.9},
        {"temperature": 0, "frequency_penalty": 0.7},
        {"temperature": 1, "seed": 4},
    ]
    return [
        (shared[: draw.choice([0, 20, 40])] + draw.choices(range(256), k=5), ways[i % 4], 4 + i % 5)
        for i in range(CLIENTS)
    ]


def test_16_clients_get_what_each_gets_alone(start: Callable[..., Running], runner: LibraryRunner) -> None:
    """16 clients stream at the same time from a library of 6 sequences."""
    alone = []
    for prompt, way, most in requests():
        request = Request(prompt, SamplingParameters(**way), max_tokens=most, ignore_eos=True)
        alone.append(Engine(runner, tokenizer()).submit(request).collect()[0].text)
    server = start(runner=runner, queue=CLIENTS)

    async def talk(client: AsyncOpenAI, index: int) -> str:
        prompt, way, most = requests()[index]
        stream: Any = await client.completions.create(
            model="echo", prompt=prompt, max_tokens=most, stream=True, extra_body={"ignore_eos": True}, **way
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def everybody() -> list[str]:
        url = f"{server.url}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(talk(client, index) for index in range(CLIENTS)))

    assert asyncio.run(everybody()) == alone
    until(lambda: server.engine.stats().running == server.engine.stats().waiting == 0)
    assert server.engine.stats().pages_used == 0
    assert answers(server)
