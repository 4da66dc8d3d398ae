"""TensorFlow's SavedModel, compared with TensorFlow. The tests need the extra `tensorflow`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw


def test_without_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saved_model.pb").touch()
    monkeypatch.setitem(__import__("sys").modules, "tensorflow", None)
    with pytest.raises(tw.CompileError, match=r"tilewright\[tensorflow\]"):
        tw.compile(tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("jaxlib")
    path = tmp_path_factory.mktemp("saved") / "model"

    class Classifier(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.kernel = tf.Variable(tf.random.stateless_normal((3, 3, 3, 8), (1, 2)))
            self.out = tf.Variable(tf.random.stateless_normal((8, 5), (3, 4)))

        @tf.function(  # type: ignore[untyped-decorator]
            input_signature=[tf.TensorSpec((None, 16, 16, 3)), tf.TensorSpec((None,))]
        )
        def __call__(self, image, scale):  # type: ignore[no-untyped-def]
            y = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(image, self.kernel, 1, "SAME")), 2, 2, "VALID")
            y = tf.reduce_mean(y, (1, 2)) @ self.out
            return {"scores": tf.nn.softmax(y), "best": tf.argmax(y, 1), "scaled": y * scale[:, None]}

    module = Classifier()
    tf.saved_model.save(module, str(path), signatures=module.__call__)
    return module, path


def test_equal_to_tensorflow(model: tuple[Any, Path]) -> None:
    module, path = model
    random = np.random.default_rng(0)
    image, scale = random.standard_normal((2, 16, 16, 3)).astype(np.float32), np.float32([2, 3])
    with tw.compile(path, (image, scale)) as library:
        assert [spec.name for spec in library.inputs] == ["image", "scale"]
        assert [spec.name for spec in library.outputs] == ["best", "scaled", "scores"]
        found = dict(zip(("best", "scaled", "scores"), library(image=image, scale=scale), strict=True))
    for name, value in module(image, scale).items():
        np.testing.assert_allclose(found[name], value.numpy(), 1e-4, 1e-5)


def test_open_shapes_need_examples(model: tuple[Any, Path]) -> None:
    with pytest.raises(tw.CompileError, match="give example inputs"):
        tw.compile(model[1])
