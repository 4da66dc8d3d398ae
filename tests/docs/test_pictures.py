"""The pictures of models in docs/images are those that docs/tools/model_pictures.py draws."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = spec_from_file_location("model_pictures", DOCS / "tools" / "model_pictures.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["levels.svg", "roofline.svg"])
def test_a_picture_is_drawn_by_its_script(script: ModuleType, name: str) -> None:
    assert (DOCS / "images" / name).read_text() == script.pictures()[name](), f"run {script.__doc__}"


@pytest.mark.slow
def test_the_pictures_of_bert_are_drawn_by_their_script(script: ModuleType) -> None:
    pytest.importorskip("transformers")
    made = script.pictures()
    for name in ("fusion.svg", "arena.svg"):
        assert (DOCS / "images" / name).read_text() == made[name](), f"{name}: run {script.__doc__}"
