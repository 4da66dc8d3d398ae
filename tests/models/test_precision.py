"""Architectures in lower precision are close to PyTorch's float32 at several sizes, with hardly any kernel
that only converts.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.compare import SIZES, compiled, wanted

ERROR = {"bf16": 1e-2, "f16": 2e-3}
"""The largest difference, relative to the largest magnitude: a few times the rounding of one factor, which is
2**-9 and 2**-11.
"""


def assert_near(name: str, precision: str, *, dynamic: bool) -> None:
    library = compiled(name, "torch", dynamic=dynamic, precision=precision)
    for batch, seq in SIZES if dynamic else SIZES[:1]:
        inputs, expected = wanted(name, batch, seq)
        found = library(*inputs.values())
        assert found.dtype == np.float32
        error = float(np.abs(found - expected).max() / np.abs(expected).max())
        assert error < ERROR[precision], f"{name} at {(batch, seq)}: {error:.2g}"
    report = library.report
    # Only the float32 inputs are converted by a kernel of their own, and only a first layer of few channels
    # has float32 factors.
    assert report.conversions <= 1
    assert report.contractions[precision] >= 12 and report.contractions.get("f32", 0) <= 1


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "gpt2",
        "llama",
        "t5-encoder",
        "vit",
        "resnet50",
        pytest.param("mobilenet_v2", marks=pytest.mark.slow),
        "convnext",
        "whisper-encoder",
    ],
)
def test_bf16(name: str) -> None:
    assert_near(name, "bf16", dynamic=True)


@pytest.mark.parametrize("name", ["bert", "resnet50"])
def test_f16(name: str) -> None:
    assert_near(name, "f16", dynamic=False)
