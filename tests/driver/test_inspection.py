"""`CompiledModel.inspect` and `tw.inspect`: values inside of a run, and where a NaN comes from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.outer = nn.Linear(6, 3)

    def forward(self, x: tw.Tensor) -> tw.Tensor:
        return self.outer(tnp.tanh(self.inner(x)))


class Stack(nn.Module):
    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.join = nn.Linear(3, 4)
        self.shift = shift

    def forward(self, x: tw.Tensor) -> tw.Tensor:
        y = self.blocks[1](self.join(self.blocks[0](x)))
        return tnp.log(y * y + self.shift).sum(-1)


X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


@pytest.mark.parametrize("dims", [None, {"x": {0: "batch<=8"}}])
def test_a_module_by_its_path_has_the_values_of_its_result(dims: object) -> None:
    model = Stack(1.0).eval()
    library = tw.compile(model, (X,), dims=dims)
    found = library.inspect(X, "blocks.0", "blocks.1.inner", "blocks.*/tanh")
    first = model.blocks[0](tw.Tensor(X))
    np.testing.assert_allclose(found["blocks.0"].array, first.numpy(), rtol=1e-5, atol=1e-6)
    hidden = model.blocks[1].inner(model.join(first))
    np.testing.assert_allclose(found["blocks.1.inner"].array, hidden.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["blocks.*/tanh"].array, np.tanh(hidden.numpy()), rtol=1e-5, atol=1e-6)
    assert found.first_nonfinite is None
    at_once = tw.inspect(model, X, "blocks.0", "blocks.1.inner")
    for name, value in at_once.items():
        np.testing.assert_allclose(value.array, found[name].array, rtol=1e-5, atol=1e-6)


def test_statistics_are_those_of_finite_elements() -> None:
    found = tw.inspect(lambda x: tnp.sqrt(x) + 0, np.array([4.0, -1.0, 0.0, np.inf]), "sqrt").value
    assert (found.nans, found.infinities, found.minimum, found.maximum, found.mean) == (1, 1, 0.0, 2.0, 1.0)
    counts, edges = found.histogram(2)
    assert counts.tolist() == [1, 1]
    assert edges.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("at_once", [False, True])
def test_the_first_nan_is_found_with_its_line_and_operands(at_once: bool) -> None:
    model = Stack(-100.0).eval()
    found = tw.inspect(model, X) if at_once else tw.compile(model, (X,)).inspect(X)
    broken = found.first_nonfinite
    assert broken is not None
    assert broken.operator == "log"
    assert broken.nans == X.shape[0] * 3
    line = next(k for k, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "tnp.log" in text)
    assert f"{Path(__file__).name}:{line}" in broken.place
    (source,) = found.sources
    assert source.nans == 0
    assert source.maximum < 0
    assert "the first NaN or infinity: log at" in found.text()


def test_a_name_that_is_none_gets_similar_ones() -> None:
    library = tw.compile(Stack(1.0).eval(), (X,))
    with pytest.raises(tw.CompileError, match=r"called 'block.0'.*similar names: .*blocks.0"):
        library.inspect(X, "block.0")
    assert "blocks.0.inner/matmul" in library.inspect(X).names


def test_the_run_begins_with_the_states_and_keeps_them() -> None:
    total = tw.State("total", 3)

    def add(x: tw.Tensor) -> tw.Tensor:
        total.value = total.value + x
        return tnp.exp(total.value)

    ones = np.ones(3, np.float32)
    library = tw.compile(add, (ones,))
    library(ones)
    found = library.inspect(ones, "exp")
    np.testing.assert_allclose(found.value.array, np.exp(2.0) * ones, rtol=1e-6)
    assert library.state["total"].tolist() == [1.0, 1.0, 1.0]


def test_a_loaded_artifact_says_why_it_cannot(tmp_path: Path) -> None:
    library = tw.compile(lambda x: x + 1, (X,))
    with pytest.raises(tw.ArtifactError, match="compiling again"):
        tw.load(library.save(tmp_path / "model.so")).inspect(X, "add")
