"""Models that packages are made of, and checks of what is in a package."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)


def encoder() -> tuple[Any, tuple[np.ndarray, ...], dict[str, Any]]:
    """A small network with a batch of any size up to 8: the model, its inputs and its options."""
    nn.seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    return model, (X,), {"dims": {"x": {0: "batch<=8"}}}


def counter() -> tuple[Any, None, dict[str, Any]]:
    """Two functions with a state, booleans, integers, an output whose size depends on data, and names that
    are words of languages.
    """
    total = tw.State("total", (4,), "float32")

    def add(type: Any) -> Any:
        total.value = total.value + type
        return total.value

    def find(mask: Any, scale: Any) -> Any:
        return tw.numpy.nonzero(mask)[0], mask.astype("int32") * scale

    functions = {
        "add": (add, (np.ones(4, np.float32),)),
        "find": (find, (np.ones(5, bool), np.array(2, np.int32))),
    }
    return functions, None, {}


def packaged(folder: Path, kind: str, which: Any = encoder, **options: Any) -> Path:
    """Write the package of a model under its name."""
    model, args, more = which()
    return tw.package(model, args, kind=kind, output=folder / which.__name__, **more, **options)


def expected(which: Any = encoder) -> np.ndarray:
    """The outputs of the network in Python."""
    model, args, more = which()
    return np.asarray(tw.compile(model, args, **more)(*args))


def check_no_paths(package: Path) -> None:
    """No file of a package has a path of this machine."""
    words = (str(package.parent), str(Path.home()), str(Path(tw.__file__).parent), "ziglang")
    for path in package.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found = [word for word in words if word.encode() in data]
            assert not found, f"{path.relative_to(package)} has {found}"


def needs(*programs: str) -> None:
    """Skip the test where a program is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")


__all__ = ["X", "check_no_paths", "counter", "encoder", "expected", "needs", "packaged"]
