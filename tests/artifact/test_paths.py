"""Artifacts contain no paths of the machine that they were made on."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.artifact.trailer import read_metadata
from tilewright.ir.location import Location

X = np.ones((2, 8), np.float32)


def own(x: Any) -> Any:
    found = tw.numpy.nonzero(x)[0]
    return tw.numpy.exp(x) + 1, found


def module() -> Any:
    torch = pytest.importorskip("torch")

    class Sliced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: Any, n: Any) -> Any:
            y = self.linear(x)
            found = torch.nonzero(y)
            return torch.relu(y), found, x.reshape(-1)[n]

    return Sliced().eval(), (torch.ones(2, 8), torch.tensor([1]))


@pytest.mark.parametrize(
    ("kind", "name"), [("own", "m.so"), ("own", "m.tar"), ("own", "m.wasm"), ("torch", "m.so")]
)
def test_no_path_of_this_machine(kind: str, name: str, tmp_path: Path) -> None:
    model, args = (own, (X,)) if kind == "own" else module()
    library = tw.compile(model, args, target="wasm32" if name == "m.wasm" else "cpu", cache=False)
    path = library.save(tmp_path / name)
    data = path.read_bytes()
    roots = {
        sys.prefix,
        sys.base_prefix,
        os.getcwd(),
        str(Path.home()),
        str(Path(__file__).parent),
        *site.getsitepackages(),
    }
    for root in (*roots, str(Path(np.__file__).parents[1]), "/tmp/"):
        assert len(root) < 4 or root.encode() not in data, root
    metadata = read_metadata(path)
    assert metadata is not None
    places = [place for kernel in metadata["kernels"] for place in kernel["locations"]]
    assert any("test_paths.py:" in place for place in places), places


def test_portable_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/", "/home/me/project", "/home/me/project/src"])
    for file, expected in {
        "/home/me/project/src/net/layers.py": "net/layers.py",
        "/home/me/project/run.py": "run.py",
        "/home/me/projectile/run.py": "run.py",
        "/else/where/lib/python3.12/site-packages/torch/nn/linear.py": "torch/nn/linear.py",
        "<stdin>": "<stdin>",
        "": "",
    }.items():
        assert Location("n", file, 3, (Location("m", file, 4),)).portable == Location(
            "n", expected, 3, (Location("m", expected, 4),)
        )
