"""The command line with a model that echoes its prompt in place of every compiled library, so that no model
is compiled: `python -m tests.cli.llm_library ARGUMENTS`.
"""

from __future__ import annotations

import sys
import time
import types
from pathlib import Path
from typing import Any

from tests.llm.server.echo import TEMPLATE, EchoRunner, tokenizer


class Priced(EchoRunner):
    """An echo model that states its work and memory, from which the bench command computes a roofline."""

    weight_bytes = 10_000_000
    flops = 20_000_000.0

    def cache_bytes(self, tokens: int) -> int:
        return 100 * tokens


class Slow(Priced):
    """An echo model that is slow enough for a test to interrupt an answer of some hundred tokens."""

    def decode(self, tokens: Any, lengths: Any, pages: Any, slots: Any) -> Any:
        time.sleep(0.03)
        return super().decode(tokens, lengths, pages, slots)


class Steady(Priced):
    """An echo model whose steps take the same time whatever they check, so that guesses win."""

    def decode(self, tokens: Any, lengths: Any, pages: Any, slots: Any) -> Any:
        time.sleep(0.01)
        return super().decode(tokens, lengths, pages, slots)


def open_library(path: str, *, device: int = 0, simulate: bool = False) -> tuple[Any, Any, Any]:
    """The echo model, its tokenizer and, in place of the configuration, None. A file that contains "bare"
    stands for a model without a chat template, one that contains "slow" for a slow model, and "steady" for
    one with which speculation wins.
    """
    said = Path(path).read_text()
    runner = {"slow": Slow, "steady": Steady}.get(said, Priced)()
    return runner, tokenizer(None if said == "bare" else TEMPLATE), None


def install() -> None:
    """Put `open_library`, a runner of it, and a size of all libraries, where the commands look for them."""
    module("library", open_library=open_library, LibraryRunner=Priced)
    module("library_size", library_bytes=lambda path: 1000)
    module("parallel.launch", open_runner=lambda path, **where: open_library(path, **where)[:2])


def module(name: str, **contents: Any) -> None:
    """Put a module with these contents in place of one of ``tilewright.llm``."""
    made = types.ModuleType(f"tilewright.llm.{name}")
    vars(made).update(contents)
    sys.modules[made.__name__] = made


if __name__ == "__main__":
    from tilewright.cli import main

    install()
    main(sys.argv[1:])
