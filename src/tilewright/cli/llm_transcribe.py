"""`tilewright llm transcribe LIBRARY FILE...`: recordings to text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from .common import import_option
from .llm_model import open_engine

FORMS = ("text", "json", "verbose_json", "srt", "vtt")


@click.command("transcribe")
@click.argument("library", type=click.Path(exists=True))
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@import_option
@click.option("--language", metavar="CODE", help="Spoken language, such as en (default: the model tells it).")
@click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    default="transcribe",
    show_default=True,
    help="Text in the spoken language, or in English.",
)
@click.option(
    "--format", "form", type=click.Choice(FORMS), default="text", show_default=True, help="Form of the text."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    help="Folder for a file of text for each recording (default: standard output).",
)
@click.option("--no-timestamps", is_flag=True, help="One segment for each window of 30 s.")
@click.option("--prompt", default="", help="Text before the recording, whose words and style are continued.")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    help="The only sampling temperature (default: 0, raised in steps of 0.2 where a text is not accepted).",
)
@click.option("--no-previous-text", is_flag=True, help="Do not continue the text of the window before.")
@click.option("--max-batch", type=click.IntRange(min=1), help="Largest number of recordings at a time.")
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="Number of the GPU.  [default: 0]")
def command(
    library: str,
    files: tuple[str, ...],
    language: str | None,
    task: Any,
    form: Any,
    output: str | None,
    no_timestamps: bool,
    prompt: str,
    temperature: float | None,
    no_previous_text: bool,
    max_batch: int | None,
    device: int | None,
) -> int:
    """Write the text of recordings FILES (WAV; other formats if soundfile is installed) with the compiled
    model LIBRARY.

    Several files are transcribed at a time, in one batch. The exit code is 1 if one could not be read.
    """
    from tilewright.errors import TilewrightError
    from tilewright.llm.speech.audio import read_audio
    from tilewright.llm.speech.forms import written
    from tilewright.llm.speech.transcription import Transcriber, TranscriptionOptions

    engine = open_engine(library, max_batch, None, False, None, None, device)
    transcriber = Transcriber.of_library(engine, library)
    options = TranscriptionOptions(
        language=language, task=task, timestamps=not no_timestamps, prompt=prompt,
        previous_text=not no_previous_text,
    )  # fmt: skip
    if temperature is not None:
        options = replace(options, temperatures=(temperature,))

    def text(file: str) -> str | TilewrightError:
        try:
            return written(transcriber.transcribe(read_audio(Path(file).read_bytes()), options), form)
        except TilewrightError as error:
            return error

    failed = False
    engine.start()
    try:
        with ThreadPoolExecutor(min(len(files), max_batch or engine.runner.max_batch)) as threads:
            for file, found in zip(files, threads.map(text, files), strict=True):
                if isinstance(found, TilewrightError):
                    failed = True
                    click.echo(f"error: {file}: {found}", err=True)
                elif output is None:
                    click.echo(found, nl=False)
                else:
                    target = Path(output) / Path(file).with_suffix("." + form.replace("verbose_", "")).name
                    target = target.with_suffix(".txt") if form == "text" else target
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(found, encoding="utf-8")
                    click.echo(str(target))
    finally:
        engine.stop()
    return int(failed)
