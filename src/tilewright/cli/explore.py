"""`tilewright explore MODEL`: a page of the model at every level."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path
from typing import Any

import click

from tilewright.errors import TilewrightError

from .common import (
    compile_options,
    compile_source,
    console,
    function_of,
    gather_inputs,
    input_options,
    is_artifact,
    progress_display,
    require_file,
    source_of,
)


@click.command("explore")
@click.argument("model")
@compile_options
@input_options
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the page to this file.")
@click.option("--against", "baseline", metavar="MODEL", help="A second model or artifact to compare with.")
@click.option(
    "--tuned", metavar="FILE", help="Database of `tilewright tune`: its choices are used, its trials shown."
)
@click.option(
    "--why",
    metavar="TEXT",
    is_flag=False,
    flag_value="",
    help="Print, in place of a page, the reasons for which kernels that read each other's results were not "
    "fused: of all, or of those whose kernel, operator, layer or line contains TEXT.",
)
@click.option("--no-times", is_flag=True, help="Time no call of the model.")
@click.option("--no-browser", is_flag=True, help="Do not open the page in a browser.")
def command(
    model: str,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    files: tuple[tuple[str, str], ...],
    sizes: tuple[tuple[str, int], ...],
    seed: int,
    function: str,
    output: str | None,
    baseline: str | None,
    tuned: str | None,
    why: str | None,
    no_times: bool,
    no_browser: bool,
) -> None:
    """Show MODEL on a page: its graph, each kernel at every level down to the machine's code, what each pass
    did, times, the roofline, and memory. MODEL is an artifact, or a model that is compiled first (a file,
    FILE.py:NAME or MODULE:NAME). The page is one file without references to other places.
    """
    from tilewright.explorer.page import write_page

    if why is not None:
        print(_why(model, why, target, dims, threads, precision))
        return
    about: dict[str, Any] = {
        "function": function,
        "files": files,
        "sizes": sizes,
        "seed": seed,
        "tuned": tuned,
    }
    documents = [
        _document(name, target, dims, threads, precision, no_times, about)
        for name in (model, baseline)
        if name is not None
    ]
    if output is None:
        stem = "".join(c if c.isalnum() else "-" for c in Path(model).name)
        folder = tempfile.mkdtemp(prefix="tilewright-explore-")
        output = str(Path(folder) / f"{stem}.html")
    path = write_page(documents, output)
    console().print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)", highlight=False, soft_wrap=True)
    if not no_browser:
        webbrowser.open(path.resolve().as_uri())


def _why(
    model: str, wanted: str, target: str, dims: tuple[Any, ...], threads: int | None, precision: str | None
) -> str:
    from tilewright.explorer.neighbours import why_text

    if is_artifact(model):
        raise click.UsageError(f"{model} is an artifact, which keeps no reasons; --why takes a model")
    document = _document(model, target, dims, threads, precision, True, {})
    text = why_text(document, wanted)
    if text or not wanted:
        return text or "no kernel reads what another one has computed"
    raise click.UsageError(
        f"no two neighbouring kernels have {wanted!r} in the name of a kernel, layer or line"
    )


def _document(
    model: str,
    target: str,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    no_times: bool,
    about: dict[str, Any],
) -> dict[str, Any]:
    from tilewright.explorer.document import document
    from tilewright.explorer.page import collect
    from tilewright.explorer.recorder import Recorder

    from .inspect import metadata_of

    title = Path(model.partition(":")[0]).name
    recorder, tuned = None, about.get("tuned")
    if tuned is not None:
        require_file(tuned)
    if is_artifact(model):
        if no_times and (metadata := metadata_of(model)) is not None:
            return document(metadata, title=title)
        import tilewright as tw

        library = tw.load(model, threads=threads)
    else:
        # The passes run only in a compilation, so the cache is not used.
        with Recorder() as recorder:
            library = compile_source(
                source_of(model), target, dims, threads, precision, cache=False, tuned=tuned
            )
    if no_times:
        return collect(library, None, title, recorder, tuned)
    called = function_of(library, about["function"])
    inputs = list(gather_inputs(called.metadata, about["files"], about["sizes"], about["seed"]).values())
    try:
        with progress_display() as progress:
            progress("timing a call")
            return collect(called, inputs, title, recorder, tuned)
    except TilewrightError as error:
        console().print(f"no times: {error}", highlight=False, markup=False)
        return collect(library, None, title, recorder, tuned)
