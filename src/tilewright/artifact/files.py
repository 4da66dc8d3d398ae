"""Files written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.errors import ArtifactError


@contextmanager
def written_whole(path: Path, needed: int) -> Iterator[Path]:
    """A temporary path in the folder of `path`. It is renamed to `path` when the body succeeds, and removed
    when it fails.

    Raises:
        ArtifactError: The folder has fewer than `needed` bytes of space, or the file cannot be written.
    """
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise ArtifactError(f"{path}: its folder cannot be used: {error.strerror or error}") from error
    if free < needed:
        raise _no_space(path, needed, free)
    partial: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        partial = Path(name)
        yield partial
        os.chmod(partial, 0o755 if path.suffix not in (".h", ".tar", ".weights") else 0o644)
        os.replace(partial, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(path, needed, shutil.disk_usage(path.parent).free) from error
        raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def _no_space(path: Path, needed: int, free: int) -> ArtifactError:
    return ArtifactError(
        f"{path}: no space: {needed:,} bytes needed, {free:,} free in {path.parent.resolve()}"
    )


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file, whole or not at all."""
    with written_whole(path, source.stat().st_size) as partial:
        shutil.copyfile(source, partial)


__all__ = ["copy_whole", "written_whole"]
