"""Convolutions by cuDNN, on a simulated device whose stand-in for the library checks descriptions, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.errors import CompileError
from tilewright.frontends.nn.functional import conv
from tilewright.runtime.simulated_device import SimulatedDriver

rng = np.random.default_rng(0)

FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "f32_3x3_s2_p1": ((2, 6, 9, 8), (4, 6, 3, 3), {"stride": 2, "padding": 1}),
    "f32_2x3_s1x2_p0x1": ((1, 3, 5, 6), (2, 3, 2, 3), {"stride": (1, 2), "padding": (0, 1)}),
    "f32_3x3_p2_d2_g3": ((2, 6, 7, 5), (9, 2, 3, 3), {"padding": 2, "dilation": 2, "groups": 3}),
    "f32_3x3_p1_g4": ((1, 4, 6, 6), (4, 1, 3, 3), {"padding": 1, "groups": 4}),
    "f32_1x1": ((2, 5, 3, 4), (7, 5, 1, 1), {}),
    "f32_5_s3_p2": ((3, 4, 17), (6, 4, 5), {"stride": 3, "padding": 2}),
    "f32_2x3x2_p1x0x1": ((1, 3, 4, 5, 3), (2, 3, 2, 3, 2), {"padding": (1, 0, 1)}),
}
"""Shapes of images and weights, and the arguments of a convolution, by the beginning of its kernel's name."""


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def convolved(x: np.ndarray, w: np.ndarray, **arguments: Any) -> np.ndarray:
    """The convolution by PyTorch in float64."""
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[x.ndim - 3]
    wide = (torch.from_numpy(np.asarray(a).astype(np.float64)) for a in (x, w))
    return np.asarray(function(*wide, **arguments))


@pytest.mark.parametrize("opt", ["O1", "O2"], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize("form", FORMS)
def test_forms(driver: SimulatedDriver, form: str, opt: str) -> None:
    shape, weight_shape, arguments = FORMS[form]
    x, w, bias = normal(*shape), normal(*weight_shape), normal(weight_shape[0])

    def model(x: tw.Tensor) -> tw.Tensor:
        return tnp.maximum(conv(x, w, bias, **arguments), 0)

    library = tw.compile(model, (x,), target="cuda", libraries="cudnn", opt=opt)
    layout = "last" if opt == "O2" else "first"
    assert library.report.libraries == {f"cudnn_{form}_{layout}": 1}
    wanted = convolved(x, w, **arguments) + bias.reshape(-1, *[1] * (x.ndim - 2))
    result = library.simulated(checked=True)(x)
    np.testing.assert_allclose(result, np.maximum(wanted, 0), rtol=1e-5, atol=1e-5)
    assert driver.counters()["library_calls"] == 1


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_element_types(driver: SimulatedDriver, dtype: str) -> None:
    numpy = tw.bf16.numpy if dtype == "bfloat16" else np.dtype(dtype)
    x, w = normal(2, 8, 6, 5).astype(numpy), normal(4, 8, 3, 3).astype(numpy)
    library = tw.compile(lambda x, w: conv(x, w, padding=1), (x, w), target="cuda", libraries="cudnn")
    result = np.asarray(library.simulated(checked=True)(x, w)).astype(np.float64)
    tolerance = {"float64": 1e-12, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(result, convolved(x, w, padding=1), rtol=tolerance, atol=tolerance)
    assert driver.counters()["library_calls"] == 1


def test_images_at_any_element(driver: SimulatedDriver) -> None:
    """Tensor cores need aligned tensors; for others another algorithm is chosen, at run time."""
    x, w = normal(2, 1 + 4 * 5 * 8, dtype=np.float16), normal(4, 8, 3, 3, dtype=np.float16)

    def model(x: tw.Tensor, w: tw.Tensor) -> tw.Tensor:
        images = tnp.reshape(x, (-1,))[1:161].reshape(1, 4, 5, 8)
        return conv(tnp.transpose(images, (0, 3, 1, 2)), w)

    library = tw.compile(model, (x, w), target="cuda", libraries="cudnn")
    images = x.reshape(-1)[1:161].reshape(1, 4, 5, 8).transpose(0, 3, 1, 2)
    result = np.asarray(library.simulated(checked=True)(x, w)).astype(np.float64)
    np.testing.assert_allclose(result, convolved(images, w), rtol=2e-3, atol=2e-3)


def test_sizes_of_the_run(driver: SimulatedDriver, tmp_path: Path) -> None:
    """Sizes that change between runs, no images among them; and a saved artifact."""
    w, v = normal(5, 3, 3, 3), normal(2, 5, 1, 1)
    library = tw.compile(
        lambda x: conv(tnp.tanh(conv(x, w, stride=2, padding=1)), v),
        (normal(2, 3, 8, 7),),
        dims={"x": {0: "0<=images<=9", 2: "height", 3: "width"}},
        target="cuda",
        libraries="cudnn",
    )
    assert sum(library.report.libraries.values()) == 2
    loaded = tw.load(library.save(tmp_path / "model.so"), simulate="checked")
    for shape in ((2, 3, 8, 7), (1, 3, 5, 9), (0, 3, 4, 4), (3, 3, 1, 2)):
        x = normal(*shape)
        wanted = convolved(np.tanh(convolved(x, w, stride=2, padding=1)), v)
        np.testing.assert_allclose(loaded(x), wanted, rtol=1e-4, atol=1e-5)


def test_runs_as_graphs_and_with_products(driver: SimulatedDriver) -> None:
    """Repeated runs replay one graph, which contains the calls of both libraries."""
    w, matrix = normal(4, 3, 3, 3), normal(4 * 4 * 4, 5)
    library = tw.compile(
        lambda x: tnp.reshape(conv(x, w), (2, -1)) @ tnp.asarray(matrix),
        (normal(2, 3, 6, 6),),
        target="cuda",
        libraries=["cublas", "cudnn"],
    )
    assert {name.partition("_")[0] for name in library.report.libraries} == {"cublas", "cudnn"}
    simulated = library.simulated(checked=True)
    driver.reset()
    for _ in range(5):
        x = normal(2, 3, 6, 6)
        wanted = convolved(x, w).reshape(2, -1) @ matrix
        np.testing.assert_allclose(simulated(x), wanted, rtol=1e-4, atol=1e-4)
    counters = driver.counters()
    assert counters["library_calls"] == 10 and counters["graph_launches"] > 0


def test_what_is_left_to_the_compiler() -> None:
    x, w = torch.zeros(1, 2, 6, 6), torch.zeros(3, 2, 3, 3)

    class Uneven(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.conv2d(torch.nn.functional.pad(x, (1, 0, 0, 1)), w)

    def library(model: Any, *args: Any) -> Any:
        return tw.compile(model, args, target="cuda", libraries="cudnn").report.libraries

    padded = library(Uneven(), x)
    # A padding that differs between sides is a part of the convolution, or a kernel of its own before it.
    assert padded in ({}, {"cudnn_f32_3x3_last": 1})
    four = normal(1, 1, 2, 2, 2, 2), normal(1, 1, 1, 1, 1, 1)
    assert library(lambda x, w: conv(x, w), *four) == {}
    with pytest.raises(CompileError, match="'cudnn' is for the target cuda"):
        tw.compile(lambda x, w: conv(x, w), (x.numpy(), w.numpy()), libraries="cudnn")


def test_recorded_timings_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = normal(1, 2, 6, 6), normal(3, 2, 3, 3)
    database = tmp_path / "timings.jsonl"
    times = {"": 1.0, "cudnn": 2.0}
    monkeypatch.setattr("tilewright.tools.measure_libraries._race", lambda runs: {n: times[n] for n in runs})
    options: Any = {"target": "cuda", "libraries": "cudnn"}

    def model(x: tw.Tensor, w: tw.Tensor) -> tw.Tensor:
        return conv(conv(x, w), np.ones((1, 3, 1, 1), np.float32))

    first, second = tw.measure_libraries(model, args, database=database, **options)
    assert first.structure == "convolution f32_3x3_last of 1 x 6 x 6 x 2 x 3"
    assert second.structure == "convolution f32_1x1_last of 1 x 4 x 4 x 3 x 1 by a constant"
    assert (first.library, second.library) == ("", "")
    assert tw.compile(model, args, tuned=database, **options).report.libraries == {}
    times["cudnn"] = 0.5
    (found,) = tw.measure_libraries(lambda x, w: conv(x, w, stride=2), args, database=database, **options)
    assert found.library == "cudnn"
