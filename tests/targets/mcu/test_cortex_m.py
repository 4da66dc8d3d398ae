"""Programs for Cortex-M processors, run by QEMU's system emulator."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.targets.mcu.boards import MACHINES, QEMU, run_on

import tilewright as tw
from tilewright import nn

pytest.importorskip("ziglang")
needs_qemu = pytest.mark.skipif(QEMU is None, reason="qemu-system-arm is not installed")


def as_c(name: str, array: np.ndarray[Any, Any]) -> str:
    return f"static const float {name}[] = {{{', '.join(f'{float(x).hex()}f' for x in array.ravel())}}};\n"


def save_two(target: str, place: Path) -> tuple[list[Path], str, np.ndarray[Any, Any]]:
    """Two models, the main function that runs them, and the numbers that it says."""
    nn.seed(0)
    conv, linear = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(64, 5)

    def images(x: tw.Tensor) -> tw.Tensor:
        features = nn.functional.max_pool(nn.functional.relu(conv(x)), 2)
        return nn.functional.softmax(linear(features.reshape(1, 64)), -1)

    layers = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).eval()
    image = np.random.default_rng(1).normal(size=(1, 1, 8, 8)).astype(np.float32)
    rows = np.random.default_rng(2).normal(size=(3, 6)).astype(np.float32)
    paths = [
        tw.compile(images, (image,), target=target).save(place / "images.tar", prefix="images"),
        tw.compile(layers, (rows,), target=target, dims={"x": {0: "batch<=4"}}).save(
            place / "layers.tar", prefix="layers"
        ),
    ]
    main = f"""
#include <stddef.h>
#include "images.h"
#include "layers.h"
void say(const char*);
void say_bytes(const void*, size_t);
{as_c("image", image)}{as_c("rows", rows)}
int main(void) {{
  float scores[5], out[9];
  if (images_run(image, scores) || layers_run(3, rows, out)) return 1;
  say_bytes(scores, sizeof scores);
  say_bytes(out, sizeof out);
  return layers_run(5, rows, out) == 2 ? 0 : 3;
}}
"""
    expected = [images(tw.tensor(image)).numpy().ravel(), layers(tw.tensor(rows)).numpy().ravel()]
    return paths, main, np.concatenate(expected)


@needs_qemu
@pytest.mark.parametrize("name", MACHINES)
def test_two_models_run(name: str, tmp_path: Path) -> None:
    paths, main, expected = save_two(name, tmp_path)
    found = np.frombuffer(bytes.fromhex(run_on(name, paths, main, tmp_path)), np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@needs_qemu
def test_loops_over_distant_elements_end(tmp_path: Path) -> None:
    """LLVM's gathers of MVE, with the loop's counter as their index, lost the end of the loop."""
    x = np.random.default_rng(3).normal(size=(8, 2, 2)).astype(np.float32)
    path = tw.compile(lambda x: x.mean(0), (x,), target="cortex-m55").save(tmp_path / "model.tar")
    main = f"""
#include <stddef.h>
#include "model.h"
void say_bytes(const void*, size_t);
{as_c("x", x)}
int main(void) {{
  float y[4];
  if (model_run(x, y)) return 1;
  say_bytes(y, sizeof y);
  return 0;
}}
"""
    found = np.frombuffer(bytes.fromhex(run_on("cortex-m55", [path], main, tmp_path)), np.float32)
    np.testing.assert_allclose(found, x.mean(0).ravel(), rtol=1e-6)


def test_memories_that_are_too_small() -> None:
    x = np.ones((1, 64), np.float32)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    tw.compile(model, (x,), target="cortex-m4:flash=128K+ram=4K")
    with pytest.raises(
        tw.CompileError, match=r"not fit on .*: it needs \d+ bytes of flash of 65536, \d+ too"
    ):
        tw.compile(model, (x,), target="cortex-m4:flash=64K+ram=4K")
    with pytest.raises(tw.CompileError, match="an example is ram=256K"):
        tw.compile(model, (x,), target="cortex-m4:ram=much")


def test_notes_state_the_memory(tmp_path: Path) -> None:
    x = np.ones((1, 6), np.float32)
    path = tw.compile(nn.Linear(6, 3), (x,), target="cortex-m33").save(tmp_path / "m.tar")
    with tarfile.open(path) as archive:
        file = archive.extractfile("NOTES.md")
        assert file is not None
        notes = file.read().decode()
    assert "- Weights: " in notes and "- Code: " in notes and "for cortex-m33 with hardware floating" in notes
    assert "4 bits" not in notes


@pytest.mark.parametrize("target", ["c", "cortex-m4"])
def test_notes_state_the_bytes_of_weights_of_four_bits(target: str, tmp_path: Path) -> None:
    """Convolutions have two weights in a byte, in whole panels of columns; a depthwise one has one."""
    nn.seed(6)
    model = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 6, 2))
    x = np.random.default_rng(6).standard_normal((1, 4, 4, 4)).astype(np.float32)
    library = tw.compile(tw.quantize(model, [x], weight_bits=4), target=target)
    shared, alone = library.metadata["static"]["four_bits"]
    assert shared == (4 * 8 + 32 * (6 if target == "cortex-m4" else 8)) // 2 and alone == 3 * 3 * 8
    with tarfile.open(library.save(tmp_path / "m.tar")) as archive:
        file = archive.extractfile("NOTES.md")
        assert file is not None
        notes = file.read().decode()
    assert f"{shared} bytes with two in each, {alone} bytes with one in each" in notes
