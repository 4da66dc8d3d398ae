"""Writes the page of `tilewright explore`: one HTML file that holds its scripts, styles and data, and calls
no other place. The scripts are built from ``web/explore/``.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..driver.tuning_database import Database
from ..errors import ArtifactError, TilewrightError
from .document import document

if TYPE_CHECKING:
    from ..runtime.model import CompiledModel
    from .recorder import Recorder


def explore(
    library: CompiledModel,
    inputs: Sequence[Any] | None = None,
    path: str | Path = "explore.html",
    *,
    title: str | None = None,
    baseline: CompiledModel | None = None,
    tuned: Database | str | Path | None = None,
    recorder: Recorder | None = None,
) -> Path:
    """Write a page that shows a compiled model at every level.

    Args:
        library: The model, from `tilewright.compile` or `tilewright.load`. One that was loaded has graph,
            memory, kernels and metadata; one that was compiled also the texts of each kernel at each level
            and the lines of the user's code.
        inputs: Inputs of a call that is timed, launch by launch; None: the page has no times.
        path: The file to write.
        title: The name of the model; the default is that of its source.
        baseline: Another compiled model, whose kernels, operators and memory the page compares with the
            first; with `inputs` it is timed, too.
        tuned: A database of `tilewright.tune`, whose trials on this machine the page shows with their
            kernels; for models that were compiled.
        recorder: A `Recorder` that has watched the compilation: the page then shows what each pass changed,
            and why kernels are apart.

    Returns:
        The path of the page.

    Raises:
        ArtifactError: The file cannot be written.
        ShapeError: An input does not fit the model.
    """
    pairs = ((library, recorder), (baseline, None))
    documents = [collect(x, inputs, title, watched, tuned) for x, watched in pairs if x is not None]
    return write_page(documents, path)


def collect(
    library: CompiledModel,
    inputs: Sequence[Any] | None,
    title: str | None = None,
    recorder: Recorder | None = None,
    tuned: Database | str | Path | None = None,
) -> dict[str, Any]:
    """The document of a library, with the times of a call if `inputs` are given."""
    source = library.metadata.get("source", {})
    title = title or source.get("name") or "model"
    if tuned is not None and not isinstance(tuned, Database):
        tuned = Database(tuned)
    if inputs is None:
        return document(library.metadata, title=title, library=library, recorder=recorder, tuned=tuned)
    from ..tools.roofline import machine

    timeline = library.timeline(*inputs)
    sizes = library.symbols_of([x.shape for x in inputs])
    on_device = any("device" in kernel for kernel in library.metadata.get("kernels", ()))
    return document(
        library.metadata,
        title=title,
        library=library,
        recorder=recorder,
        timeline=timeline,
        machine=None if on_device else machine(None),
        sizes=sizes,
        tuned=tuned,
    )


def page_text(documents: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of the page for one model, or for two that are compared."""
    data = base64.b64encode(gzip.compress(json.dumps(list(documents)).encode(), 6)).decode()
    return _page(documents[0]["title"], data)


def live_text(title: str) -> str:
    """The HTML of the page of `tilewright.Live`, which may read events from the server that it is from."""
    return (
        _page(title, "")
        .replace("default-src 'none'", "default-src 'none'; connect-src 'self'", 1)
        .replace("<body>", f'<body data-live="{html.escape(title)}">', 1)
    )


def _page(title: str, data: str) -> str:
    return (
        _built("explore.html")
        .replace("<!-- title -->", html.escape(title))
        .replace("/* style */", _built("explore.css"))
        .replace("/* data */", data)
        # A script must not contain the end of its element.
        .replace("/* script */", _built("explore.js").replace("</script", "<\\/script"))
    )


def write_page(documents: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Write the page to a file.

    Raises:
        ArtifactError: The file cannot be written.
    """
    path = Path(path)
    try:
        path.write_text(page_text(documents), encoding="utf-8")
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def _built(name: str) -> str:
    try:
        return resources.files(__package__).joinpath("built", name).read_text(encoding="utf-8")
    except OSError as error:
        raise TilewrightError(
            f"the page's part {name} is missing from this installation; in a checkout, run 'npm ci' and "
            "'npm run bundle' in web/"
        ) from error


__all__ = ["collect", "explore", "live_text", "page_text", "write_page"]
