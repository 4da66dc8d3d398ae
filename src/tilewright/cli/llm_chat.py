"""`tilewright llm chat LIBRARY`: a chat in the terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from .common import console
from .llm_model import chosen, engine_options, open_engine, sampling_options

if TYPE_CHECKING:
    from tilewright.llm.engine.engine import Engine

_HELP = """\
/reset          forget what was said
/system TEXT    set the system message, and forget what was said; without TEXT: have none
/stats          how fast, and how full the context is
/exit           or Ctrl-D: leave
Ctrl-C          stop a reply
A line that ends in \\ goes on in the next."""


@dataclass
class _Chat:
    engine: Engine
    sampling: Any
    max_tokens: int | None
    system: str | None
    out: Console
    messages: list[dict[str, str]] = field(default_factory=list)
    held: int = 0
    """Tokens of the chat so far."""
    stats: str = "nothing was said yet"

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        self.held = 0

    def reply(self, text: str) -> None:
        """Answer `text`, printing as it comes. A reply that is stopped is kept as far as it came; what cannot be answered is forgotten."""
        from tilewright.errors import TilewrightError

        self.messages.append({"role": "user", "content": text})
        said: list[str] = []
        try:
            self._generate(said)
        except TilewrightError as error:
            self.out.print(f"error: {error}", style="red", markup=False, highlight=False)
        if said:
            self.messages.append({"role": "assistant", "content": "".join(said)})
        else:
            self.messages.pop()

    def _generate(self, said: list[str]) -> None:
        from tilewright.llm.engine.stream import Request

        tokenizer = self.engine.tokenizer
        prompt = tokenizer.encode(tokenizer.render(self.messages), special=False)
        begin = time.perf_counter()
        stream = self.engine.submit(Request(prompt=prompt, sampling=self.sampling, max_tokens=self.max_tokens))
        count, first, note = 0, 0.0, ""
        try:
            for delta in stream:
                first = first or time.perf_counter()
                count += len(delta.tokens)
                said.append(delta.text)
                self.out.out(delta.text, end="", highlight=False)
                if delta.finish_reason == "length":
                    note = " (cut: no tokens left)"
        except KeyboardInterrupt:
            stream.cancel()
            note = " (stopped)"
        self.out.out(note, style="dim")
        end = time.perf_counter()
        self.held = len(prompt) + count
        rate = f"{(count - 1) / (end - first):.1f} tokens/s" if count > 1 else "no rate"
        self.stats = (
            f"{len(prompt)} tokens read ({stream.cached_tokens} known already), the first of {count} after "
            f"{(first or end) - begin:.2f} s, then {rate}; {self.held} of {self.engine.limit} tokens of context used"
        )


@click.command("chat")
@click.argument("library", type=click.Path(exists=True))
@click.option("--system", help="The system message.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest reply (default: as much as the context holds).")
@click.option("--seed", type=int, help="Equal seeds give equal replies.")
@engine_options
@sampling_options
def command(
    library: str,
    system: str | None,
    max_tokens: int | None,
    seed: int | None,
    max_batch: int | None,
    chunk: int | None,
    prefix_cache: bool,
    speculate: int | None,
    draft: str | None,
    **sampling: float | None,
) -> None:
    """Chat with the compiled model LIBRARY in the terminal. /help tells what else there is."""
    from tilewright.llm.engine.sampling import SamplingParameters

    engine = open_engine(library, max_batch, chunk, prefix_cache, speculate, draft)
    chat = _Chat(engine, SamplingParameters(seed=seed, **chosen(**sampling)), max_tokens, system, console())
    chat.reset()
    engine.start()
    try:
        _converse(chat)
    finally:
        engine.stop()


def _converse(chat: _Chat) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (editing and history of lines)
    if sys.stdin.isatty():
        chat.out.print("/help for commands, Ctrl-D to leave", style="dim")
    while (text := _read()) is not None:
        name, _, rest = text.partition(" ")
        if not text:
            continue
        if not text.startswith("/"):
            chat.reply(text)
        elif name == "/exit":
            return
        elif name == "/reset":
            chat.reset()
        elif name == "/system":
            chat.system = rest.strip() or None
            chat.reset()
        elif name == "/stats":
            chat.out.print(chat.stats, markup=False, highlight=False)
        elif name == "/help":
            chat.out.print(_HELP, markup=False, highlight=False)
        else:
            chat.out.print(f"there is no command {name}; /help lists them", style="red", markup=False)


def _read() -> str | None:
    """A message; None at the end of the input, "" if Ctrl-C was pressed."""
    tty = sys.stdin.isatty()
    lines: list[str] = []
    try:
        while True:
            line = input(("... " if lines else ">>> ") if tty else "")
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                return "\n".join(lines).strip()
    except EOFError:
        return "\n".join(lines).strip() or None
    except KeyboardInterrupt:
        print()
        return ""
