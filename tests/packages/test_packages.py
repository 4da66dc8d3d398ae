"""Arguments of packages of all kinds, refusals, writing the folder, templates, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_cli import run

import tilewright as tw
from tilewright.packages import KINDS
from tilewright.packages.templates import filled

from .models import X, packaged


def double(x: Any) -> Any:
    return x * 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "deb"}, "there is no kind of package 'deb'; known: cpp, windows, android, apple, rust"),
        ({"kind": "rust", "linkage": "shared"}, "linkage 'shared': a package for rust is linked static"),
        ({"linkage": "both"}, "linkage 'both' is unknown; known: shared, static"),
        ({"target": "wasm32"}, "target wasm32: its artifacts are not native libraries"),
        ({"target": "c"}, "target c: its artifacts are not native libraries"),
        (
            {"kind": "windows", "target": "x86_64-linux"},
            "target x86_64-linux is for Linux; a package for win",
        ),
        (
            {"target": "x86_64-linux,x86_64-linux:x86-64-v3"},
            "targets x86_64-linux and x86_64-linux:x86-64-v3 are both for x86_64-linux",
        ),
        ({"target": " , "}, "a package for cpp needs a target, such as cpu"),
        ({"name": "a-b"}, "give letters, digits and underscores"),
        ({"identifier": "encoder"}, "give words of letters, digits and underscores with dots"),
        ({"identifier": "com.exa-mple"}, "give words of letters, digits and underscores with dots"),
    ],
)
def test_refusals(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(tw.ArtifactError, match=message):
        tw.package(double, (X,), **{"kind": "cpp", "output": tmp_path / "p", **options})
    assert not any(tmp_path.iterdir())


def test_a_folder_with_other_files_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(tw.ArtifactError, match="exists and is no package of Tilewright"):
        packaged(tmp_path, "cpp")
    assert (folder / "thesis.txt").read_text() == "mine"


def test_a_package_is_replaced_whole(tmp_path: Path) -> None:
    folder = packaged(tmp_path, "cpp", target="x86_64-linux,aarch64-linux")
    manifest = json.loads((folder / "tilewright-package.json").read_text())
    assert manifest["targets"] == ["x86_64-linux", "aarch64-linux"]
    assert sorted(p.name for p in (folder / "lib").iterdir()) == ["aarch64-linux", "x86_64-linux"]
    packaged(tmp_path, "cpp", target="x86_64-linux", name="other")
    assert [p.name for p in (folder / "lib").iterdir()] == ["x86_64-linux"]
    assert {p.name for p in (folder / "include").iterdir()} == {
        "other.h", "other.hpp", "tilewright.h", "tilewright.hpp"
    }  # fmt: skip
    assert [p.name for p in tmp_path.iterdir()] == ["encoder"]


def test_a_failure_leaves_the_package_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = packaged(tmp_path, "cpp")
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr("tilewright.packages.contents.Contents.write_headers", _fails)
    with pytest.raises(OSError, match="disk"):
        packaged(tmp_path, "cpp")
    assert sorted(folder.rglob("*")) == before
    assert [p.name for p in tmp_path.iterdir()] == ["encoder"]


def _fails(*arguments: object) -> None:
    raise OSError("disk")


def test_every_place_of_a_template_is_filled() -> None:
    assert filled("@a@ x@b @B@ @JvmStatic", {"a": "1"}) == "1 x@b @B@ @JvmStatic"
    with pytest.raises(KeyError, match="unknown"):
        filled("@unknown@", {})


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.py").write_text(
        "import numpy as np\ndef f():\n    return (lambda x: x * 5.0), (np.ones(4, np.float32),)\n"
    )
    folder = tmp_path / "five"
    options = ["--as", "cpp", "-o", str(folder)]
    assert run("package", f"{tmp_path}/models.py:f", *options, "--linkage", "shared") == 0
    printed = capsys.readouterr().out.split()
    assert printed == sorted(str(p) for p in folder.rglob("*") if p.is_file())
    assert "five_run" in (folder / "include" / "five.h").read_text()
    assert len(list(folder.glob("lib/*/libfive.so"))) == 1
    assert run("package", "model.so", *options) == 2
    assert "is an artifact already; package takes a model" in capsys.readouterr().err


def test_every_kind_is_described() -> None:
    """The reference and the guide name all kinds."""
    for name in KINDS:
        assert f'"{name}"' in str(tw.package.__doc__)
