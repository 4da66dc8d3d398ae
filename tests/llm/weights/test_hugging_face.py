"""Folders that cannot be read, or that list modules wrongly, are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import WeightsError
from tilewright.llm.weights import open_checkpoint, read_adapter
from tilewright.llm.weights.hugging_face import accompanying, listed_modules

LONG = "x" * 5000


@pytest.mark.parametrize("read", [read_adapter, open_checkpoint])
def test_a_path_that_is_too_long(read: Any) -> None:
    with pytest.raises(WeightsError, match="x{5000}: (cannot be read: File name too long|no such f)"):
        read(Path(LONG))


@pytest.mark.parametrize("read", [read_adapter, open_checkpoint])
def test_a_folder_without_permission(read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's refusal is simulated: the superuser may read any folder."""

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path / "file"))

    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(WeightsError, match="file: cannot be read: Permission denied"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_folder_in_the_place_of_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 1, "lora_alpha": 1}')
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(WeightsError, match=f"{name}: cannot be read: Is a directory"):
        read_adapter(tmp_path)


def test_modules(tmp_path: Path) -> None:
    """One reader gives classes and folders; a folder's files accompany the model."""
    listed = [{"type": "a.b.Transformer", "path": ""}, {"type": "a.Dense", "path": "2_Dense"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense" / "config.json").write_text("{}")
    assert set(accompanying(tmp_path)) == {"modules.json", "2_Dense/config.json"}
    found = listed_modules(tmp_path, (tmp_path / "modules.json").read_bytes())
    assert found == [("Transformer", ""), ("Dense", "2_Dense")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "modules.json: not a list of modules"),
        ("3", "modules.json: not a list of modules"),
        ("[" * 100_000, "modules.json: not a list of modules"),
        ('[{"path": ""}]', "modules.json: not a list of modules: KeyError\\('type'\\)"),
        ('[{"type": "X", "path": "../other"}]', "'../other' is not the name of a folder in it"),
        ('[{"type": "X", "path": ".."}]', "'..' is not the name of a folder in it"),
    ],
)
def test_modules_that_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(WeightsError, match=message):
        accompanying(tmp_path)
