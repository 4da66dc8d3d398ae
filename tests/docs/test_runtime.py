"""The Python of docs/runtime.md runs and does what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def test_functions_share_a_cache() -> None:
    text = (Path(__file__).parents[2] / "docs" / "runtime.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    found: dict[str, Any] = {}
    exec(code, found)
    library, layer = found["library"], found["layer"]
    one = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(
        library.state["cache"][:4], np.repeat([layer(one).numpy()[0], one[0] * 0], [3, 1], 0), atol=1e-5
    )
    total = library.decode(np.repeat(one, 2, 0), np.array([3, 7]))
    np.testing.assert_allclose(total, 5 * layer(one).numpy()[0], rtol=1e-4, atol=1e-4)
