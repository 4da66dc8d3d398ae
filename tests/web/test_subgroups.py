"""Kernels with subgroups in Chromium, whose simulated GPU has subgroups of 4 threads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.errors import DeviceError

from .site import NO_BROWSER, PACKAGE, WEBGPU, chromium, served

RUN = """async ([files, rows]) => {
  const { load } = await import("/tilewright/index.js");
  const results = [];
  for (const file of files) {
    const model = await load(`/${file}`, { worker: false, cache: false });
    const { x } = await (await fetch("/inputs.json")).json();
    const name = model.inputs[0].name;
    const input = { data: Float32Array.from(x), shape: [rows, x.length / rows] };
    const outputs = await model.run({ [name]: input });
    results.push(Object.values(outputs).map(({ data }) => [...data]));
  }
  return results;
}"""


def softmax(x: Any) -> Any:
    weights = tnp.exp(x - tnp.max(x, axis=1)[:, None])
    return weights / tnp.sum(weights, axis=1)[:, None]


def reductions(x: Any) -> Any:
    """Sums and maxima of rows, of floats and of integers."""
    whole = (x * 10).astype("int32")
    return tnp.sum(x, axis=1), tnp.max(x, axis=1), tnp.sum(whole, axis=1), tnp.min(whole, axis=1)


def library(model: Callable[[Any], Any], x: np.ndarray, target: str) -> Any:
    return tw.compile(model, (x,), target=target, cache=False)


def test_only_kernels_that_combine_values_exchange_them() -> None:
    x = np.ones((3, 1000), np.float32)
    text = library(softmax, x, "webgpu:subgroups").code_text("wgsl")
    assert "subgroupShuffleXor" in text and "enable subgroups;" in text
    plain = library(softmax, x, "webgpu").code_text("wgsl")
    assert "subgroup" not in plain
    assert text.count("workgroupBarrier") < plain.count("workgroupBarrier")
    assert "subgroupShuffleXor" not in library(lambda x: x + 1, x, "webgpu:subgroups").code_text("wgsl")


def test_wgpu_tells_that_it_lacks_them() -> None:
    x = np.ones((3, 1000), np.float32)
    with pytest.raises(DeviceError, match="run this library in a browser"):
        library(softmax, x, "webgpu:subgroups")(x)


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER)
@pytest.mark.skipif(not (PACKAGE / "bundle").exists(), reason="needs the package: npm run build in web/")
@pytest.mark.parametrize("columns", [2, 3, 37, 256, 1000])
@pytest.mark.parametrize("model", [softmax, reductions])
def test_results_are_those_of_shared_memory(model: Any, columns: int, tmp_path: Path) -> None:
    x = np.random.default_rng(columns).standard_normal((5, columns)).astype(np.float32)
    files = ["plain.tar", "subgroups.tar"]
    for file, target in zip(files, ("webgpu", "webgpu:subgroups"), strict=True):
        library(model, x, target).save(tmp_path / file)
    (tmp_path / "inputs.json").write_text(json.dumps({"x": x.ravel().tolist()}))
    (tmp_path / "index.html").write_text("<!doctype html><title>test</title>")
    (tmp_path / "tilewright").symlink_to(PACKAGE / "bundle")
    with served(tmp_path) as site, chromium(*WEBGPU) as browser:
        page = browser.new_page()
        page.goto(site)
        plain, found = page.evaluate(RUN, [files, 5])
    assert found == plain
    expected = tw.compile(model, (x,), target="cpu")(x)
    for result, wanted in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(np.reshape(result, wanted.shape), wanted, rtol=1e-5, atol=1e-5)
