"""Kernels that several tests use."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
import tilewright.numpy as tnp

RMS = """
static float root(float x) { return __builtin_sqrtf(x); }

void rms(int64_t begin, int64_t end, int64_t n, int64_t d, const float *restrict x, const float *restrict w,
         float *restrict y, double eps) {
    for (int64_t i = begin; i < end; i++) {
        float total = 0;
        for (int64_t j = 0; j < d; j++) total += x[i * d + j] * x[i * d + j];
        float scale = 1.0f / root(total / d + (float)eps);
        for (int64_t j = 0; j < d; j++) y[i * d + j] = x[i * d + j] * scale * w[j];
    }
}
"""


def rms_reference(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * w


def rms_pattern(x: tw.Tensor, w: tw.Tensor, eps: float) -> tw.Tensor:
    return x / tnp.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rms_kernel(source: Any = RMS, **changed: Any) -> tw.Kernel:
    """Root-mean-square normalization, with changes of its description."""
    options: dict[str, Any] = {
        "inputs": [tw.f32["*n", "d"], tw.f32["d"]],
        "outputs": [tw.f32["*n", "d"]],
        "scalars": {"eps": 1e-5},
        "split": "n",
        "reference": rms_reference,
        "pattern": rms_pattern,
        **changed,
    }
    return tw.c_kernel("rms", source=source, **options)


def moments_kernel() -> tw.Kernel:
    """Two outputs of other shapes and types than the input: the mean and the place of the largest element."""
    return tw.c_kernel(
        "moments",
        source="""
        void moments(int64_t n, int64_t d, const double *restrict x, double *restrict mean,
                     int64_t *restrict place) {
            for (int64_t i = 0; i < n; i++) {
                double total = 0;
                int64_t best = 0;
                for (int64_t j = 0; j < d; j++) {
                    total += x[i * d + j];
                    if (x[i * d + j] > x[i * d + best]) best = j;
                }
                mean[i] = total / d;
                place[i] = best;
            }
        }""",
        inputs={"x": tw.f64["n", "d"]},
        outputs={"mean": tw.f64["n"], "place": tw.i64["n"]},
        reference=lambda x: (x.mean(1), x.argmax(1)),
    )
