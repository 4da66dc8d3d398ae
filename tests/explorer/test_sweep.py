"""The committed figures of the sweep, ``python -m tests.explorer.sweep``, hold its bounds."""

from __future__ import annotations

import json
from datetime import date

from tests.explorer.sweep import LEAST_FRAMES, MOST_SECONDS, RESULTS, VIEWS, misses
from tests.explorer.sweep_models import MODELS


def test_the_committed_pages_hold_the_bounds() -> None:
    results = json.loads(RESULTS.read_text())
    assert date.fromisoformat(results["date"]) and results["machine"] and results["cores"]
    assert [page["model"] for page in results["pages"]] == list(MODELS)
    for page in results["pages"]:
        assert misses(page) == []
        assert page["searched layer"] == page["back at"] and page["its kernel"] and page["slowest kernel"]
        assert "in use at one time" in page["peak of memory"]
        assert page["seconds to show a view"].keys() == set(VIEWS)


def test_a_slow_or_troubled_page_misses() -> None:
    good = {
        "model": "m",
        "seconds to open": MOST_SECONDS,
        "frames per second": LEAST_FRAMES,
        "frames per second, all open": LEAST_FRAMES,
        "serious troubles by axe": [],
    }
    assert misses(good) == []
    assert len(misses({**good, "seconds to open": 2.1, "frames per second": 20.0})) == 2
    assert misses({**good, "serious troubles by axe": ["graph, phone, dark: contrast"]})
