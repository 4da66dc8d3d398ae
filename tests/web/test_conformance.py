"""Models run in Node, Deno and Chromium as in PyTorch: small ones here, large ones by `conformance.py`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from . import conformance
from .site import NO_BROWSER, PACKAGE

pytestmark = pytest.mark.skipif(
    not (PACKAGE / "bundle" / "index.js").exists(), reason="needs web/dist: npm ci && npm run build in web/"
)
PLACES = [
    pytest.param(
        place,
        marks=pytest.mark.skipif(shutil.which(place) is None, reason=f"needs {place}"),
    )
    for place in ("node", "deno")
]


def check(name: str, place: str, folder: Path, settings: Sequence[conformance.Setting]) -> None:
    """Assert that a small model is right in all settings."""
    found = conformance.check(name, {place: settings}, folder, "tiny")[place]
    assert {setting.name: found[setting.name]["outcome"] for setting in settings} == {
        setting.name: "right" for setting in settings
    }


@pytest.mark.parametrize("place", PLACES)
def test_sizes_of_one_artifact_give_the_results_of_pytorch(place: str, tmp_path: Path) -> None:
    settings = conformance.Setting("wasm32"), conformance.Setting("wasm32:threads", 2)
    check("bert", place, tmp_path, settings)


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)
@pytest.mark.parametrize("name", [name for name in conformance.SIZES if name != "minilm"])
def test_chromium_gives_the_results_of_pytorch(name: str, tmp_path: Path) -> None:
    check(name, "chromium", tmp_path, conformance.SETTINGS["chromium"])


def test_all_recorded_outcomes_are_right() -> None:
    recorded = json.loads(conformance.DATA.read_text())
    for name in conformance.SIZES:
        for place, settings in conformance.SETTINGS.items():
            outcomes = {setting.name: recorded[name][place][setting.name] for setting in settings}
            wrong = {key for key, value in outcomes.items() if value["outcome"] != "right"}
            assert all(place == "node" and "relaxed" in key for key in wrong), (name, place, wrong)
