"""Packages with entry points that are installed during a test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.ir.plugins import forget_plugins

Install = Callable[[str, str, str, str], None]


@contextmanager
def installing(folder: Path) -> Iterator[Install]:
    """Return a context with a function ``install(package, module, code, entry_points)`` that installs a
    package of one module in `folder`.

    `entry_points` is the text of the package's ``entry_points.txt``. Leaving the context removes the
    packages.
    """
    modules: list[str] = []
    sys.path.insert(0, str(folder))

    def install(package: str, module: str, code: str, entry_points: str) -> None:
        description = folder / f"{package.replace('-', '_')}-1.2.dist-info"
        description.mkdir()
        (description / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (description / "entry_points.txt").write_text(entry_points)
        (folder / f"{module}.py").write_text(code)
        modules.append(module)
        sys.modules.pop(module, None)
        forget_plugins()

    try:
        yield install
    finally:
        sys.path.remove(str(folder))
        for module in modules:
            sys.modules.pop(module, None)
        forget_plugins()
