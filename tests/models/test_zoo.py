"""Every architecture from both front ends gives PyTorch's results, with fixed and with dynamic sizes."""

from __future__ import annotations

import pytest

from tests.models.compare import SIZES, assert_matches, compiled
from tests.zoo.models import MODELS, fast_without_related

FRONT_ENDS = ("onnx", "torch")


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", MODELS)
def test_dynamic(name: str, front_end: str) -> None:
    library = compiled(name, front_end, dynamic=True)
    for batch, seq in SIZES:
        assert_matches(library, name, batch, seq)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", fast_without_related())
def test_static(name: str, front_end: str) -> None:
    batch, seq = SIZES[0] if front_end == "torch" else (1, 16)
    library = compiled(name, front_end, dynamic=False)
    shape = library.inputs[0].shape
    if isinstance(shape[0], int):
        batch = shape[0]
    assert_matches(library, name, batch, seq)
