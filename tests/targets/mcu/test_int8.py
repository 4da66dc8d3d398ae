"""MLPerf Tiny's networks in 8-bit integers on Cortex-M, exactly as on the target `cpu`.

A softmax at the end, of floats, adds in another order and is left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from bench.mcu.networks import NETWORKS
from tests.targets.mcu.boards import QEMU, run_on

import tilewright as tw
from tilewright import nn

pytest.importorskip("ziglang")
needs_qemu = pytest.mark.skipif(QEMU is None, reason="qemu-system-arm is not installed")

MAIN = """
#include <stddef.h>
#include "model.h"
void say(const char*);
void say_bytes(const void*, size_t);
static const _Alignas(8) unsigned char x[] = {{{data}}};
static _Alignas(8) float y[{size}];
int main(void) {{
  if (model_run((const float*)x, y)) return say(model_error()), 1;
  say_bytes(y, sizeof y);
  return 0;
}}
"""


def outputs(quantized: object, x: np.ndarray, processor: str, place: Path) -> tuple[np.ndarray, np.ndarray]:
    """The results of a model on a processor, and on the target `cpu`."""
    want = np.asarray(tw.compile(quantized, target="cpu")(x))
    path = tw.compile(quantized, target=processor).save(place / "model.tar")
    main = MAIN.format(data=", ".join(map(str, x.tobytes())), size=want.size)
    found = bytes.fromhex(run_on(processor, [path], main, place))
    return np.frombuffer(found, np.float32).reshape(want.shape), want


@needs_qemu
@pytest.mark.parametrize(
    ("name", "processor"),
    [
        ("keyword-spotting", "cortex-m4"),
        ("anomaly-detection", "cortex-m7"),
        ("keyword-spotting", "cortex-m55"),
        *[
            pytest.param(name, processor, marks=pytest.mark.slow)
            for name in NETWORKS
            for processor in ("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55")
        ],
    ],
)
def test_networks_equal_cpu(name: str, processor: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    found, want = outputs(network.quantized(softmax=False), network.samples()[0], processor, tmp_path)
    assert np.array_equal(found, want)


@needs_qemu
def test_rows_and_columns_that_fill_no_pair(tmp_path: Path) -> None:
    """Three rows, seven columns, and sums of nine terms: odd numbers of all that is taken in pairs."""
    nn.seed(1)
    model = nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 5))
    x = np.random.default_rng(1).standard_normal((3, 9)).astype(np.float32)
    found, want = outputs(tw.quantize(model, [x]), x, "cortex-m4", tmp_path)
    assert np.array_equal(found, want)


def test_products_of_bytes_are_pairs_of_halfwords() -> None:
    """The loop of a layer has four multiply-adds of pairs to each two words of weights, and no soft float."""
    network = NETWORKS["anomaly-detection"]
    assembly = tw.compile(network.quantized(), target="cortex-m4").ir("asm")
    assert len(re.findall(r"\bsmlad\b", assembly)) >= 8 and "sxtb16" in assembly
    assert "vcvtr.s32.f32" in assembly and "roundeven" not in assembly and "__aeabi_f" not in assembly
