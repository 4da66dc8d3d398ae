"""Caches of compiled models that belong to one test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilewright.artifact import disk_cache


def with_runtime(folder: Path) -> Path:
    """Copy the objects of the C runtime from the cache into `folder`, a new cache. To compile them takes
    seconds, and they do not depend on the test. Returns the folder.
    """
    runtime = disk_cache.folder_of("runtime")
    if runtime.is_dir():
        unfinished = shutil.ignore_patterns(".tmp-*")  # files that other processes are writing
        shutil.copytree(runtime, folder / runtime.relative_to(disk_cache.cache_folder()), ignore=unfinished)
    return folder


def new_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Let `folder`, with the runtime's objects alone, be the cache. Returns the folder."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(with_runtime(folder)))
    return folder


__all__ = ["new_cache", "with_runtime"]
