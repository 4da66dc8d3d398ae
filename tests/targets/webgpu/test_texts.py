"""The WGSL of kernels: loops are written out, four elements are read at once, indices have names, and
barriers order no more than they must.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from tests.devices import need

import tilewright as tw
import tilewright.numpy as tnp
from tilewright import nn

RNG = np.random.default_rng(3)


def drawn(*shape: int) -> Any:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def compiled(model: Any, *args: Any) -> tuple[Any, str]:
    library = tw.compile(model, args, target="webgpu", cache=False)
    assert not library.report.slower
    return library, library.code_text("wgsl")


def test_products_keep_their_sums_in_variables_and_load_vectors() -> None:
    need("webgpu")
    x, w = drawn(512, 64), drawn(64, 256)
    library, text = compiled(lambda x, w: tnp.maximum(x @ w, 0), x, w)
    body = text[text.index("fn main") :]
    assert not re.search(r"var \w+: array<", body)
    assert len(re.findall(r"var<storage, \w+> b\d: array<vec4<f32>>;", text)) == 3
    assert "workgroupBarrier();" in body and "storageBarrier" not in body
    # No index is computed twice.
    definitions = re.findall(r"let at\d+: i32 = (.*);", body)
    assert definitions and len(definitions) == len(set(definitions))
    np.testing.assert_allclose(library(x, w), np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)


def test_rows_that_do_not_begin_at_vectors_are_read_by_elements() -> None:
    """Rows of 30 elements, and views that begin at element 30."""
    need("webgpu")
    x, w = drawn(4, 50, 30), drawn(30, 44)
    library, text = compiled(lambda x, w: tnp.sum(tnp.exp(x[1] @ w), axis=1) + x[2, :, 1], x, w)
    assert re.search(r"read> b0: array<f32>;", text)
    wanted = np.exp(x[1].astype(np.float64) @ w).sum(1) + x[2, :, 1]
    np.testing.assert_allclose(library(x, w), wanted, rtol=1e-5)


def test_vectors_of_padded_images_have_zeros_beside_them() -> None:
    need("webgpu")
    nn.seed(0)
    x, model = drawn(1, 8, 9, 9), nn.Conv2d(8, 16, 3, padding=1).eval()
    library, _ = compiled(model, x)
    np.testing.assert_allclose(library(x), tw.compile(model, (x,))(x), atol=1e-5)


def test_tiles_fit_into_shared_memory() -> None:
    """The best tiles of large products without that limit are larger."""
    compiled(lambda x, w: x @ w, np.zeros((4096, 512), np.float32), np.zeros((512, 512), np.float32))
