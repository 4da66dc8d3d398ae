"""Keras 3 models on the JAX backend with a symbolic batch, compared with Keras."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")
import jax  # noqa: E402

import tilewright as tw  # noqa: E402

L = keras.layers


def separable_cnn() -> Any:
    layers = [L.Conv2D(8, 3, padding="same", activation="relu"), L.BatchNormalization(), L.MaxPooling2D()]
    layers += [L.SeparableConv2D(12, 3, activation="gelu"), L.GlobalAveragePooling2D(), L.Dropout(0.3)]
    return keras.Sequential([keras.Input((16, 16, 3)), *layers, L.Dense(5, activation="softmax")])


def recurrent() -> Any:
    layers = [L.Embedding(50, 8), L.Bidirectional(L.LSTM(6, return_sequences=True)), L.GRU(5), L.Dense(3)]
    return keras.Sequential([keras.Input((12,), dtype="int32"), *layers])


def transformer() -> Any:
    x = first = keras.Input((10, 16))
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 8)(x, x))
    x = L.LayerNormalization()(x + L.Dense(16)(L.Dense(32, activation="gelu")(x)))
    return keras.Model(first, L.Dense(4)(x[:, 0]))


@pytest.mark.parametrize("build", [separable_cnn, recurrent, transformer])
def test_equal_to_keras(build: Callable[[], Any]) -> None:
    if keras.backend.backend() != "jax":
        pytest.skip("Keras is configured for another backend than JAX")
    model = build()
    (entry,) = model.inputs
    spec = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("batch"), *entry.shape[1:]), entry.dtype)
    run = jax.jit(lambda x: model(x, training=False))  # at once: each operator alone is compiled by XLA
    exported = jax.export.export(run, platforms=["cpu"])(spec)
    random = np.random.default_rng(0)
    with tw.compile(exported) as library:
        for batch in (1, 3):
            x = random.uniform(0, 3, (batch, *entry.shape[1:])).astype(entry.dtype)
            np.testing.assert_allclose(library(x), np.asarray(run(x)), 1e-4, 1e-5)
