"""The Python code of docs/guide/artifacts.md runs and does what the page says."""

from __future__ import annotations

import numpy as np
import pytest

from .pages import run_page


def test_functions_share_a_cache(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    page = run_page("guide/artifacts.md")
    assert "an index is outside of 0 .. 9" in capsys.readouterr().out
    library, layer = page["library"], page["layer"]
    one = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(
        library.state["cache"][:4], np.repeat([layer(one).numpy()[0], one[0] * 0], [3, 1], 0), atol=1e-5
    )
    total = library.decode(np.repeat(one, 2, 0), np.array([3, 7]))
    np.testing.assert_allclose(total, 5 * layer(one).numpy()[0], rtol=1e-4, atol=1e-4)
