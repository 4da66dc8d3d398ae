"""`tilewright llm chat LIBRARY`: a chat in the terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from .common import console, import_option
from .llm_model import (
    chat_template_option,
    chosen,
    engine_options,
    image_reader,
    open_engine,
    sampling_options,
    set_chat_template,
)

if TYPE_CHECKING:
    from tilewright.llm.engine.engine import Engine
    from tilewright.llm.vision.given import Images
    from tilewright.llm.vision.reader import ImageReader

_HELP = """\
/reset          start a new conversation
/system TEXT    set the system message and start a new conversation; without TEXT: remove it
/image FILE     attach an image to the next message
/stats          speed of the last reply, and use of the context
/exit           end the chat (also Ctrl-D)
Ctrl-C          stop a reply
A line that ends in \\ continues in the next. Lines pasted together are one message."""


@dataclass
class _Chat:
    engine: Engine
    sampling: Any
    max_tokens: int | None
    system: str | None
    out: Console
    reader: ImageReader | None = None
    """Reads images; None: the model takes text only."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The chat, in which the content of a message is a text, or a list of texts and images."""
    attached: list[Any] = field(default_factory=list)
    """Images that the next message shows."""
    held: int = 0
    """Tokens of the chat so far."""
    stats: str = "no reply yet"
    errors: int = 0
    """The number of messages and commands that failed."""

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        self.held = 0

    def error(self, message: str) -> None:
        """Print an error to stderr, since a program may read the replies from stdout."""
        self.errors += 1
        Console(stderr=True).print(
            f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True
        )

    def attach(self, path: str) -> None:
        """Show the image in the file `path` with the next message."""
        from tilewright.errors import RequestError
        from tilewright.llm.vision.pixels import open_image

        try:
            if self.reader is None:
                raise RequestError("the model takes text only, no images")
            self.attached.append(open_image(Path(path).read_bytes()))
        except (OSError, RequestError) as error:
            self.error(f"{path}: {getattr(error, 'strerror', None) or error}")

    def reply(self, text: str) -> None:
        """Answer `text` and print the reply as it arrives. A reply that is stopped is kept up to that point;
        a message that cannot be answered is dropped.
        """
        from tilewright.errors import TilewrightError

        self.messages.append({"role": "user", "content": [*self.attached, text] if self.attached else text})
        self.attached = []
        said: list[str] = []
        try:
            self._generate(said)
        except TilewrightError as error:
            self.error(str(error))
        if said:
            self.messages.append({"role": "assistant", "content": "".join(said)})
        else:
            self.messages.pop()

    def _prompt(self) -> tuple[list[int], Images | None]:
        """The tokens of the chat, and its images."""
        from tilewright.llm.vision.reader import as_parts

        tokenizer = self.engine.tokenizer
        listed = self.reader is not None and "image" in tokenizer.chat_templates["default"]
        text = tokenizer.render(as_parts(self.messages, listed))
        images = [p for m in self.messages if isinstance(m["content"], list) for p in m["content"]]
        images = [image for image in images if not isinstance(image, str)]
        if self.reader is None or not images:
            return tokenizer.encode(text, special=False), None
        return self.reader.prompt(text, images)

    def _generate(self, said: list[str]) -> None:
        from tilewright.llm.engine.stream import Request

        prompt, images = self._prompt()
        begin = time.perf_counter()
        stream = self.engine.submit(
            Request(prompt=prompt, sampling=self.sampling, max_tokens=self.max_tokens, images=images)
        )
        count, first, note = 0, 0.0, ""
        try:
            for delta in stream:
                first = first or time.perf_counter()
                count += len(delta.tokens)
                said.append(delta.text)
                self.out.out(delta.text, end="", highlight=False)
                if delta.finish_reason == "length":
                    note = " (truncated: token limit reached)"
        except KeyboardInterrupt:
            stream.cancel()
            note = " (stopped)"
        self.out.out(note, style="dim")
        end = time.perf_counter()
        self.held = len(prompt) + count
        rate = f"{(count - 1) / (end - first):.1f} tokens/s" if count > 1 else "no rate"
        self.stats = (
            f"prompt: {len(prompt)} tokens ({stream.cached_tokens} from the cache); reply: {count} tokens, "
            f"the first after {(first or end) - begin:.2f} s, then {rate}; context: {self.held} of "
            f"{self.engine.limit} tokens"
        )


@click.command("chat")
@click.argument("library", type=click.Path(exists=True))
@import_option
@click.option("--system", help="System message.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Length limit of a reply in tokens (default: the rest of the context).",
)
@click.option(
    "--image",
    "pictures",
    multiple=True,
    metavar="FILE",
    help="Image that the first message shows (PNG, JPEG, WebP, GIF or BMP). May be repeated.",
)
@click.option("--seed", type=int, help="Seed of the sampling; equal seeds give equal replies.")
@engine_options
@chat_template_option
@sampling_options
def command(
    library: str,
    system: str | None,
    max_tokens: int | None,
    pictures: tuple[str, ...],
    seed: int | None,
    max_batch: int | None,
    chunk: int | None,
    prefix_cache: bool,
    speculate: int | None,
    draft: str | None,
    device: int | None,
    simulate: bool | None,
    chat_template: str | None,
    **sampling: float | None,
) -> int:
    """Chat with the compiled model LIBRARY in the terminal. /help lists the commands.

    If messages come from a file or a program, one a line, the exit code is 1 if one of them could not be
    answered.
    """
    import_module("jinja2")  # reports a missing package before the model is loaded
    from tilewright.llm.engine.sampling import SamplingParameters

    engine = open_engine(library, max_batch, chunk, prefix_cache, speculate, draft, device, simulate)
    set_chat_template(engine.tokenizer, chat_template)
    if "default" not in engine.tokenizer.chat_templates:
        raise click.ClickException(
            f"{library}: its model has no chat template: give one by --chat-template FILE, or send prompts "
            "to /v1/completions of 'tilewright llm serve'"
        )
    how = SamplingParameters(seed=seed, **chosen(**sampling))
    chat = _Chat(engine, how, max_tokens, system, console(), image_reader(engine, library))
    chat.reset()
    for path in pictures:
        chat.attach(path)
    if chat.errors:
        return 1
    engine.start()
    try:
        _converse(chat)
    finally:
        engine.stop()
    return int(chat.errors > 0 and not sys.stdin.isatty())


def _converse(chat: _Chat) -> None:
    with contextlib.suppress(ImportError):  # editing and history of lines
        import readline

        # The terminal then marks pasted text, so that its lines are not read as separate messages.
        readline.parse_and_bind("set enable-bracketed-paste on")
    if sys.stdin.isatty():
        chat.out.print("/help lists the commands, Ctrl-D ends the chat", style="dim")
    while True:
        try:
            text = _read()
        except UnicodeDecodeError as error:
            chat.error(f"the message is not UTF-8: {error}")
            continue
        if text is None:
            return
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
        elif name == "/image":
            chat.attach(rest.strip())
        elif name == "/stats":
            chat.out.print(chat.stats, markup=False, highlight=False)
        elif name == "/help":
            chat.out.print(_HELP, markup=False, highlight=False)
        else:
            chat.error(f"unknown command {name}; /help lists the commands")


def _read() -> str | None:
    """A message; None at the end of the input, "" if Ctrl-C was pressed. Raises UnicodeDecodeError: it is not
    UTF-8.
    """
    lines: list[str] = []
    try:
        while True:
            line = _line("... " if lines else ">>> ")
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                return "\n".join(lines).strip()
    except EOFError:
        return "\n".join(lines).strip() or None
    except KeyboardInterrupt:
        print()
        return ""


def _line(prompt: str) -> str:
    """A line. Raises EOFError at the end of the input."""
    if sys.stdin.isatty():
        return input(prompt).encode(errors="surrogateescape").decode()
    line = sys.stdin.buffer.readline()  # UTF-8, whatever the locale says
    if not line:
        raise EOFError
    return line.decode().rstrip("\r\n")
