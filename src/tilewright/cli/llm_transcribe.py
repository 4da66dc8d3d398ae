"""`tilewright llm transcribe LIBRARY FILE...`: recordings to text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tilewright.llm.speech.forms import FORMS

from .common import import_option
from .llm_model import open_engine

_SUFFIXES = {"text": ".txt", "verbose_json": ".json"}
"""Suffixes of the files of texts, of forms whose suffix is not their name."""


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

    targets = None if output is None else _targets(files, Path(output), _SUFFIXES.get(form, f".{form}"))
    engine = open_engine(library, max_batch, None, False, None, None, device)
    transcriber = Transcriber.of_library(engine, library)
    options = TranscriptionOptions(
        language=language, task=task, timestamps=not no_timestamps, prompt=prompt,
        previous_text=not no_previous_text,
    )  # fmt: skip
    if temperature is not None:
        options = replace(options, temperatures=(temperature,))

    def text(file: str) -> str | Exception:
        try:
            return written(transcriber.transcribe(read_audio(Path(file).read_bytes()), options), form)
        except (OSError, TilewrightError) as error:
            return error

    failed = False
    engine.start()
    try:
        with ThreadPoolExecutor(min(len(files), max_batch or engine.runner.max_batch)) as threads:
            for index, found in enumerate(threads.map(text, files)):
                if isinstance(found, Exception):
                    failed = True
                    click.echo(f"error: {files[index]}: {found}", err=True)
                elif targets is None:
                    click.echo(found, nl=False)
                else:
                    targets[index].parent.mkdir(parents=True, exist_ok=True)
                    targets[index].write_text(found, encoding="utf-8")
                    click.echo(str(targets[index]))
    finally:
        engine.stop()
    return int(failed)


def _targets(files: tuple[str, ...], folder: Path, suffix: str) -> list[Path]:
    """Return the file of the text of each recording.

    Raises:
        click.UsageError: two recordings have the same one.
    """
    of_target: dict[Path, str] = {}
    for file in files:
        target = folder / Path(file).with_suffix(suffix).name
        if target in of_target:
            raise click.UsageError(
                f"the texts of {of_target[target]} and {file} would both be {target}: rename one, or write "
                "them into different folders"
            )
        of_target[target] = file
    return list(of_target)
