"""Folders that cannot be read are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import WeightsError
from tilewright.llm.weights import open_checkpoint, read_adapter

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
