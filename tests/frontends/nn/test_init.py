"""Initial parameters have the shapes, moments and limits of `torch.nn.init`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tilewright import nn

SHAPE = (60, 40, 5)
CASES: dict[str, dict[str, Any]] = {
    "uniform": {"a": -1.0, "b": 3.0},
    "normal": {"mean": 1.0, "std": 0.5},
    "trunc_normal": {"mean": 0.5, "std": 2.0, "a": -1.0, "b": 3.0},
    "xavier_uniform": {"gain": 2.0},
    "xavier_normal": {"gain": 2.0},
    "kaiming_uniform": {"a": 0.3, "mode": "fan_out"},
    "kaiming_normal": {"nonlinearity": "tanh"},
}


@pytest.mark.parametrize("name", CASES)
def test_moments_like_torch(name: str) -> None:
    nn.seed(0)
    torch.manual_seed(0)
    options = CASES[name]
    ours = getattr(nn.init, name)(SHAPE, **options)
    theirs = getattr(torch.nn.init, name + "_")(torch.empty(SHAPE), **options).numpy()
    assert isinstance(ours, nn.Parameter) and ours.dtype == np.float32
    x = ours.numpy()
    deviation = theirs.std()
    assert abs(x.mean() - theirs.mean()) < 0.05 * deviation
    assert abs(x.std() / deviation - 1) < 0.03
    if "uniform" in name or "trunc" in name:
        assert abs(x.min() - theirs.min()) < 0.02 * deviation
        assert abs(x.max() - theirs.max()) < 0.02 * deviation


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (4, 3, 3)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    x = nn.init.orthogonal(shape, gain=2.0).numpy().reshape(shape[0], -1)
    gram = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)


def test_others() -> None:
    np.testing.assert_array_equal(nn.init.eye((2, 3)), np.eye(2, 3))
    np.testing.assert_array_equal(nn.init.zeros((2,)), [0, 0])
    np.testing.assert_array_equal(nn.init.ones((2,)), [1, 1])
    np.testing.assert_array_equal(nn.init.constant((2,), 7), [7, 7])
    for name, slope in (
        ("relu", None),
        ("tanh", None),
        ("leaky_relu", 0.2),
        ("conv2d", None),
        ("selu", None),
    ):
        assert nn.init.calculate_gain(name, slope) == torch.nn.init.calculate_gain(name, slope)
    nn.seed(3)
    first = nn.init.normal((4,)).numpy()
    nn.seed(3)
    np.testing.assert_array_equal(nn.init.normal((4,)), first)
    with nn.placeholders():
        assert nn.init.trunc_normal((1 << 20, 1 << 20)).shape == (1 << 20, 1 << 20)
    with pytest.raises(ValueError, match=r"two dimensions or more, not \(3,\)"):
        nn.init.xavier_uniform((3,))
    with pytest.raises(ValueError, match="'fan_in' or 'fan_out'"):
        nn.init.kaiming_normal((3, 3), mode="fan")
    with pytest.raises(ValueError, match="no gain is known for 'gelu'"):
        nn.init.calculate_gain("gelu")
    with pytest.raises(ValueError, match="shape of a matrix"):
        nn.init.eye((2,))
    with pytest.raises(ValueError, match="no numbers from 2"):
        nn.init.trunc_normal((2,), a=2, b=1)
