"""How the `llm` commands open a compiled model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tilewright.llm.engine.engine import Engine


def open_engine(path: str, **options: Any) -> Engine:
    """An engine, not yet started, for the model library at `path`; `options` are the engine's own."""
    from tilewright.llm.engine.engine import Engine, Options
    from tilewright.llm.library import open_library

    runner, tokenizer, _ = open_library(path)
    return Engine(runner, tokenizer, Options(**options))


def sampling_options(command: Any) -> Any:
    """The options of commands that generate text: how tokens are chosen."""
    for decorate in (
        click.option("--temperature", type=click.FloatRange(min=0), help="0 takes the most probable token."),
        click.option("--top-p", type=click.FloatRange(min=0, min_open=True, max=1), help="Nucleus sampling."),
        click.option("--top-k", type=click.IntRange(min=1), help="Choose from so many most probable tokens."),
        click.option(
            "--min-p", type=click.FloatRange(min=0, max=1), help="Least probability, relative to the best token's."
        ),
        click.option("--repetition-penalty", type=click.FloatRange(min=0, min_open=True), help="Above 1: repeat less."),
    ):
        command = decorate(command)
    return command


def chosen(**values: float | None) -> dict[str, Any]:
    """The sampling parameters that were given, by the names of `SamplingParameters`."""
    return {name: value for name, value in values.items() if value is not None}
