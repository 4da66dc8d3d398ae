"""Processes that Ray starts train together."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("sklearn")
pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


def test_two_processes_equal_one_on_the_joint_batch() -> None:
    path = ROOT / "examples" / "train_on_ray.py"
    spec = importlib.util.spec_from_file_location("train_on_ray", path)
    assert spec and spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    source = os.pathsep.join([str(ROOT / "src"), str(path.parent)])
    environment = {"env_vars": {"PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "lo"}}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment)
    try:
        first, second = example.train(2, steps=20)
        (alone,) = example.train(1, steps=20)
    finally:
        ray.shutdown()
    assert first == second
    np.testing.assert_allclose(first, alone, rtol=1e-4)
    assert first[-1] < 0.85 * first[0]
