"""One layer of the published width of each architecture of the zoo on devices, against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.devices import check_zoo
from tests.devices import need, sources_only
from tests.zoo.models import MODELS


@pytest.mark.slow
@pytest.mark.parametrize("target", ["opencl", "cuda"])
@pytest.mark.parametrize("name", MODELS)
def test_a_layer(name: str, target: str) -> None:
    need(target)
    found: dict[str, Any] = {}
    with sources_only():
        check_zoo(name, found.update, target, checked=False, size="layer")
    assert found["outcome"] == "right"
