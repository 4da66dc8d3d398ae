"""A model library without a compiled model: `python -m tests.cli.llm_library ARGUMENTS` is the command line
with the echo model as every library.
"""

from __future__ import annotations

import sys
import time
import types
from pathlib import Path
from typing import Any

from tests.llm.server.echo import TEMPLATE, EchoRunner, tokenizer


class Priced(EchoRunner):
    """Tells what it does."""

    weight_bytes = 10_000_000
    flops = 20_000_000.0

    def cache_bytes(self, tokens: int) -> int:
        return 100 * tokens


class Slow(Priced):
    """Takes its time for each token, so that an answer of some hundred is interrupted before it ends."""

    def decode(self, tokens: Any, lengths: Any, pages: Any, slots: Any) -> Any:
        time.sleep(0.03)
        return super().decode(tokens, lengths, pages, slots)


def open_library(path: str) -> tuple[Any, Any, Any]:
    """A file that says "bare" is of a model without a chat template, one that says "slow" of a slow one."""
    said = Path(path).read_bytes()
    return Slow() if said == b"slow" else Priced(), tokenizer(None if said == b"bare" else TEMPLATE), None


def install() -> None:
    """Put `open_library` where the commands look for it."""
    module: Any = types.ModuleType("tilewright.llm.library")
    module.open_library = open_library
    sys.modules["tilewright.llm.library"] = module


if __name__ == "__main__":
    from tilewright.cli import main

    install()
    main(sys.argv[1:])
