"""Folders from which a page loads a language model: the library, its weights, the tokenizer's files, and
``web-model.json``, which tells what the model needs before anything large is loaded. Any server of static
files can serve them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact.weights import SUFFIX, identity_of, split_weights
from ..errors import ArtifactError
from ..targets.registry import resolve
from .library import save_library
from .memory import planned
from .tokenizer import TOKENIZER
from .weights import Checkpoint

if TYPE_CHECKING:
    from ..runtime.model import CompiledModel

INFO = "web-model.json"
FORMAT = 2
"""The version of the form of `INFO`."""
SHARD_BYTES = 64_000_000
"""Most bytes of a file of weights. Some servers of static files refuse more than 100 MB. Smaller files lose
less where a download is interrupted, and are more requests.
"""


def runs_in_pages(target: str) -> bool:
    """Whether pages can run libraries for a target."""
    return target.partition(":")[0] in ("wasm32", "webgpu")


def save_web_folder(
    library: CompiledModel,
    checkpoint: Checkpoint,
    folder: str | Path,
    name: str,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write a library for ``wasm32`` or ``webgpu`` with all that a page needs.

    Args:
        library: The compiled library.
        checkpoint: The checkpoint that it was compiled from, which has the tokenizer's files.
        folder: The folder to write; it is made if it does not exist.
        name: The model's name in answers.
        shard_bytes: Most bytes of a file of weights; larger ones are split.

    Returns:
        The path of the library in the folder.

    Raises:
        ArtifactError: A file cannot be written, or the library is for another target or has an encoder.
    """
    folder, target = Path(folder), library.metadata["target"]["name"]
    if not runs_in_pages(target):
        raise ArtifactError(f"{folder}: a library for {target} cannot run in a page: compile for webgpu")
    if library.metadata["llm"].get("source_kind"):
        raise ArtifactError(f"{folder}: pages run decoders only; compile the model for a server")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be made: {error.strerror or error}") from error
    path = save_library(library, checkpoint, folder / f"model{resolve(target).suffixes[0]}")
    tokenizer = path.with_suffix(TOKENIZER)
    files = sorted(file.name for file in tokenizer.iterdir() if file.is_file())
    needed = planned(library.metadata)
    weights = path.with_suffix(SUFFIX)
    identity = identity_of(weights)
    shards = split_weights(weights, shard_bytes)
    sizes = [path, *(folder / shard["file"] for shard in shards), *(tokenizer / name for name in files)]
    info = {
        "format": FORMAT,
        "name": name,
        "target": target,
        "library": path.name,
        "weights": {"identity": identity, "shards": shards},
        "tokenizer": tokenizer.name,
        "tokenizer_files": files,
        "context": library.metadata["llm"]["context"],
        "download": sum(file.stat().st_size for file in sizes),
        "memory": {
            "weights": needed.weights,
            "cache": needed.cache,
            "working": max(needed.arenas.values(), default=0),
        },
    }
    try:
        (folder / INFO).write_text(json.dumps(info, indent=1))
    except OSError as error:
        raise ArtifactError(f"{folder / INFO}: cannot be written: {error.strerror or error}") from error
    return path


def web_info(folder: str | Path) -> dict[str, Any]:
    """Read the description of a model in a folder for pages.

    Raises:
        ArtifactError: It is no such folder, or one of another version.
    """
    path = Path(folder) / INFO
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactError(
            f"{folder}: no folder of a model for pages, as it has no {INFO}: make one by 'tilewright llm "
            "compile MODEL --target webgpu -o FOLDER'"
        ) from error
    except ValueError as error:
        raise ArtifactError(f"{path}: not JSON: {error}") from error
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        raise ArtifactError(f"{path}: another version of Tilewright wrote it: compile the model again")
    return info


__all__ = ["INFO", "SHARD_BYTES", "runs_in_pages", "save_web_folder", "web_info"]
