"""`tilewright llm bench`: the speed at which a compiled model, or any OpenAI-compatible server, answers one
user and many.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.table import Table

from .common import add_row, console, import_option, json_option, progress_display, write_json
from .llm_model import engine_options, open_engine

if TYPE_CHECKING:
    import httpx

    from tilewright.llm.engine.engine import Engine

_PERCENTILES = (50, 90, 99)


@dataclass
class Sample:
    """One answer: the time of the request and the arrival times of its tokens, in seconds. Tokens that arrive
    together have one time.
    """

    begin: float
    prompt_tokens: int = 0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """Pairs (time, number of tokens)."""
    tokens: int = 0
    """The number of tokens, which a server reports at the end."""
    end: float = 0.0
    error: str | None = None

    @property
    def first(self) -> float:
        return self.arrivals[0][0] - self.begin

    def gaps(self) -> list[float]:
        """Seconds between tokens. Tokens that arrive together share the time equally."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [(b - a) / count for (a, _), (b, count) in pairs for _ in range(count)]


Ask = Callable[[int, int, random.Random], Awaitable[Sample]]
"""Called with a prompt's length, the answer's length (both in tokens) and a source of random numbers; makes
one request with a new prompt.
"""


class _Counts(click.ParamType):
    name = "N,..."

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            counts = tuple(int(part) for part in str(value).split(",")) if isinstance(value, str) else value
        except ValueError:
            counts = ()
        if not counts or min(counts) < 1:
            self.fail(f"'{value}' is not a list of counts: write it as 1,4,16", param, ctx)
        return counts


@click.command("bench")
@click.argument("library", type=click.Path(exists=True), required=False)
@import_option
@click.option(
    "--url",
    help="Server to measure in place of LIBRARY, e.g. http://127.0.0.1:8000/v1, with the key OPENAI_API_KEY.",
)
@click.option("--model", help="Name of the model at the server (default: the first of its list).")
@click.option(
    "--prompt-tokens",
    "prompts",
    type=_Counts(),
    default="128",
    show_default=True,
    help="Lengths of prompts in tokens.",
)
@click.option(
    "--tokens", type=click.IntRange(min=2), default=64, show_default=True, help="Length of answers in tokens."
)
@click.option(
    "--users", type=_Counts(), default="1,4,16", show_default=True, help="Numbers of concurrent users."
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Number of requests of each user, one after the other.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random prompts.")
@engine_options
@json_option
def command(
    library: str | None,
    url: str | None,
    model: str | None,
    prompts: tuple[int, ...],
    tokens: int,
    users: tuple[int, ...],
    requests: int,
    seed: int,
    json_path: str | None,
    **options: Any,
) -> None:
    """Measure the model LIBRARY in this process, or the server at --url. Prompts are random and all
    different, so that a prefix cache has no effect.

    Requests to a server set ignore_eos, so that all answers have the same length.
    """
    if (library is None) == (url is None):
        raise click.UsageError("give either a LIBRARY or --url")
    if url is not None and any(value not in (None, True) for value in options.values()):
        raise click.UsageError(
            "options of the engine apply to a LIBRARY only; the server at --url has its own"
        )
    with progress_display() as progress:
        plan = [(prompt, count) for prompt in prompts for count in users]

        async def measure(ask: Ask) -> list[dict[str, Any]]:
            progress("warming up")
            warm = await ask(prompts[0], 2, random.Random(seed - 1))
            if warm.error:
                raise click.ClickException(warm.error)
            rows = []
            for i, (prompt, count) in enumerate(plan):
                progress(f"{count} users, prompts of {prompt} tokens", i, len(plan))
                rows.append(await _level(ask, prompt, tokens, count, requests, seed + i))
            return rows

        if library is not None:
            rows, about = _in_process(library, options, measure, tokens)
        else:
            rows, about = asyncio.run(_of_server(str(url), model, measure))
    result = about | {"tokens": tokens, "requests_per_user": requests, "levels": rows}
    if write_json(result, json_path):
        _show(result)


Measure = Callable[[Ask], Coroutine[Any, Any, list[dict[str, Any]]]]


def _in_process(
    path: str, options: dict[str, Any], measure: Measure, tokens: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from tilewright.runtime.device_library import is_for_device

    engine = open_engine(path, **options)
    engine.start()
    try:
        rows = asyncio.run(measure(_engine_asker(engine)))
    finally:
        engine.stop()
    library = getattr(engine.runner, "library", None)
    on_device = library is not None and is_for_device(library.metadata)
    if options["speculate"] is None and not on_device:  # steps of one token
        batch = options["max_batch"] or engine.runner.max_batch
        for row in rows:
            row["roofline"] = _roofline(engine.runner, row, tokens, batch)
    return rows, {"library": path}


def _engine_asker(engine: Engine) -> Ask:
    from tilewright.errors import TilewrightError
    from tilewright.llm.engine.sampling import SamplingParameters
    from tilewright.llm.engine.stream import Request

    async def ask(prompt_tokens: int, tokens: int, draw: random.Random) -> Sample:
        prompt = [draw.randrange(engine.runner.vocabulary) for _ in range(prompt_tokens)]
        sample = Sample(time.perf_counter(), prompt_tokens)
        request = Request(
            prompt=prompt, sampling=SamplingParameters(temperature=0), max_tokens=tokens, ignore_eos=True
        )
        try:
            async for delta in engine.submit(request):
                if delta.tokens:
                    sample.arrivals.append((time.perf_counter(), len(delta.tokens)))
                    sample.tokens += len(delta.tokens)
        except TilewrightError as error:
            sample.error = str(error)
        sample.end = time.perf_counter()
        return sample

    return ask


async def _of_server(
    url: str, model: str | None, measure: Measure
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    import httpx

    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600, limits=limits) as client:
        try:
            if model is None:
                response = await client.get("models")
                response.raise_for_status()
                model = str(response.json()["data"][0]["id"])
            return await measure(_server_asker(client, model)), {"url": url, "model": model}
        except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
            raise click.ClickException(f"{url}: {error or type(error).__name__}") from None


def _server_asker(client: httpx.AsyncClient, model: str) -> Ask:
    import httpx

    async def ask(prompt_tokens: int, tokens: int, draw: random.Random) -> Sample:
        # Numbers below 256 are tokens of every model; their meaning does not matter.
        body = {
            "model": model,
            "prompt": [draw.randrange(3, 256) for _ in range(prompt_tokens)],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sample = Sample(time.perf_counter(), prompt_tokens)
        try:
            async with client.stream("POST", "completions", json=body) as response:
                if response.status_code != 200:
                    sample.error = (
                        f"{response.status_code}: {(await response.aread()).decode(errors='replace')[:500]}"
                    )
                else:
                    await _read(response.aiter_lines(), sample)
        except httpx.HTTPError as error:
            sample.error = f"{type(error).__name__}: {error}"
        sample.end = time.perf_counter()
        return sample

    return ask


async def _read(lines: AsyncIterator[str], sample: Sample) -> None:
    async for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        content = json.loads(line[6:])
        if "error" in content:
            sample.error = str(content["error"])
        if content.get("choices"):
            sample.arrivals.append((time.perf_counter(), 1))
        if usage := content.get("usage"):
            sample.prompt_tokens, sample.tokens = usage["prompt_tokens"], usage["completion_tokens"]
    if not sample.tokens:  # a server that reports no numbers sends one token an event
        sample.tokens = len(sample.arrivals)


async def _level(ask: Ask, prompt: int, tokens: int, users: int, requests: int, seed: int) -> dict[str, Any]:
    """Measure requests of `users` at a time."""

    async def user(number: int) -> list[Sample]:
        draw = random.Random(f"{seed} {number}")
        return [await ask(prompt, tokens, draw) for _ in range(requests)]

    begin = time.perf_counter()
    samples = [
        sample for user_samples in await asyncio.gather(*map(user, range(users))) for sample in user_samples
    ]
    return summary(samples, users, prompt, time.perf_counter() - begin)


def summary(samples: Sequence[Sample], users: int, prompt: int, seconds: float) -> dict[str, Any]:
    """The figures of one level. Latencies are in milliseconds, rates in tokens/s over all users."""
    good = [sample for sample in samples if sample.error is None and sample.arrivals]
    errors = [sample.error for sample in samples if sample.error is not None]
    first = [sample.first for sample in good]
    gaps = [gap for sample in good for gap in sample.gaps()]
    prompts = sum(sample.prompt_tokens for sample in good)
    return {
        "users": users,
        "prompt_tokens": prompt,
        "answers": len(good),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
        "seconds": seconds,
        "output_rate": sum(sample.tokens for sample in good) / seconds,
        "total_rate": (prompts + sum(sample.tokens for sample in good)) / seconds,
        "prefill_rate": prompts / len(good) / float(np.median(first)) if good and users == 1 else None,
        "first_token_ms": _percentiles(first),
        "inter_token_ms": _percentiles(gaps),
        "answer_ms": _percentiles([sample.end - sample.begin for sample in good]),
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    return {f"p{p}": float(np.percentile(seconds, p)) * 1e3 for p in _PERCENTILES}


def _roofline(runner: Any, row: dict[str, Any], tokens: int, most: int) -> dict[str, float] | None:
    """Roofline times and their share of the measured times: of a decoding step of at most `most` sequences,
    and of one user's prefill. None where the runner does not describe its work.

    A runner may have `weight_bytes` (read for each token), `cache_bytes` (a function: bytes read of a
    sequence of so many tokens) and `flops` (for each token). A decoding step reads the weights once and every
    user's cached tokens. Prefill is bound by arithmetic at the peak of bf16 products. Bytes that fit the
    caches count as free.
    """
    names = ("weight_bytes", "cache_bytes", "flops")
    if row["inter_token_ms"] is None or not all(hasattr(runner, name) for name in names):
        return None
    from tilewright.tools.roofline import LARGE, machine

    here = machine()

    def milliseconds(moved: int, flops: float) -> float:
        reading = moved / here.bandwidth if moved > LARGE else 0.0
        return max(reading, flops / here.bf16_flops) * 1e3

    batch = min(row["users"], most)
    moved = runner.weight_bytes + batch * runner.cache_bytes(row["prompt_tokens"] + tokens // 2)
    decode = milliseconds(moved, batch * runner.flops)
    figures = {"decode_floor_ms": decode, "decode_share": decode / row["inter_token_ms"]["p50"]}
    if row["users"] == 1:
        prefill = milliseconds(runner.weight_bytes, row["prompt_tokens"] * runner.flops)
        figures |= {"prefill_floor_ms": prefill, "prefill_share": prefill / row["first_token_ms"]["p50"]}
    return figures


def _show(result: dict[str, Any]) -> None:
    out = console()
    table = Table(box=None)
    columns = (
        "users",
        "prompt",
        "output tok/s",
        "prefill tok/s",
        "first token ms p50",
        "p99",
        "inter-token ms p50",
        "p99",
        "errors",
        "decode of roofline",
        "prefill of roofline",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for row in result["levels"]:
        first, inter, roof = (
            row.get(name) or {} for name in ("first_token_ms", "inter_token_ms", "roofline")
        )
        add_row(
            table,
            str(row["users"]),
            str(row["prompt_tokens"]),
            f"{row['output_rate']:.1f}",
            "" if row["prefill_rate"] is None else f"{row['prefill_rate']:.0f}",
            *(
                f"{figures[p]:.1f}" if p in figures else ""
                for figures in (first, inter)
                for p in ("p50", "p99")
            ),
            str(row["errors"]),
            *(f"{roof[name]:.0%}" if name in roof else "" for name in ("decode_share", "prefill_share")),
        )
    out.print(table)
    if wrong := next((row["first_error"] for row in result["levels"] if row["errors"]), None):
        out.print(f"the first error: {wrong}", style="red", markup=False, highlight=False)
