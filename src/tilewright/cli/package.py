"""`tilewright package MODEL --as KIND -o FOLDER`: a model as a package for a language or a system."""

from __future__ import annotations

from typing import Any

import click

from tilewright.packages.contents import LINKAGES
from tilewright.packages.kinds import KINDS

from .common import (
    cache_wanted,
    compile_arguments,
    console,
    is_artifact,
    model_options,
    opt_option,
    progress_display,
    source_of,
)


@click.command("package", epilog="; ".join(f"{kind.name}: {kind.title}" for kind in KINDS.values()))
@click.argument("model")
@click.option("--as", "kind", required=True, type=click.Choice(list(KINDS)), help="Kind of package.")
@click.option("-o", "--output", required=True, metavar="FOLDER", help="Folder to write.")
@click.option(
    "--target",
    help="Targets, joined by commas, such as aarch64-android,x86_64-android (default: those of the kind).",
)
@click.option("--name", help="Name of the package and prefix of its C functions (default: the folder's).")
@click.option(
    "--linkage", type=click.Choice(LINKAGES), help="How programs are linked with it (default: by the kind)."
)
@click.option(
    "--identifier",
    help="Kotlin package, and identifier of a framework (default: org.tilewright.NAME).",
)
@model_options
@opt_option
def command(
    model: str,
    kind: str,
    output: str,
    target: str | None,
    name: str | None,
    linkage: str | None,
    identifier: str | None,
    dims: tuple[Any, ...],
    threads: int | None,
    precision: str | None,
    opt: str,
) -> int:
    """Compile MODEL for one or several targets, and write a package: libraries, headers or wrappers that are
    typed for the model, and build files.

    MODEL is a file (.onnx, .pt2, .mlir, .tw), or MODULE:NAME or FILE.py:NAME.
    """
    import tilewright as tw

    if is_artifact(model):
        raise click.UsageError(f"{model} is an artifact already; package takes a model")
    source = source_of(model)
    arguments = compile_arguments("", dims, threads, precision)
    with progress_display() as progress:
        folder = tw.package(
            source.model,
            source.args,
            kind=kind,
            output=output,
            name=name,
            linkage=linkage,
            identifier=identifier,
            progress=progress,
            opt=opt,
            cache=cache_wanted(),
            **{**arguments, "target": target},
        )
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    console().print("\n".join(map(str, files)), highlight=False, markup=False)
    return 0
