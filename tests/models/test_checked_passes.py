"""No pass of the pipelines changes what a model computes: they run in check mode on real architectures."""

from __future__ import annotations

import pytest

from tests.models.compare import SIZES, assert_matches, compiled


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "vit",
        "resnet50",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("gpt2", "llama", "t5-encoder", "mobilenet_v2", "convnext")
        ),
    ],
)
def test_passes_keep_the_meaning(name: str) -> None:
    library = compiled(name, "onnx", dynamic=True, check=True)
    assert_matches(library, name, *SIZES[1])
