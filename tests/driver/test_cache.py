"""The cache of compiled models: it keeps their code, and a cached library reads its weights from the
model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.caches import new_cache

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.artifact import disk_cache
from tilewright.driver import cache as artifact_cache
from tilewright.errors import ArtifactError

X = np.linspace(-1, 1, 2 * 96, dtype=np.float32).reshape(2, 96)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return new_cache(monkeypatch, tmp_path / "cache")


def weights(seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((96, 700), np.float32), rng.standard_normal((700, 96), np.float32)]


def onnx_model(path: Path, matrices: list[np.ndarray[Any, Any]], *, external: str = "") -> Path:
    """An ONNX model of relu(x @ w) @ v, with weights inside or in the external file."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, X.shape) for name in "xy"]
    arrays = [numpy_helper.from_array(m, name) for m, name in zip(matrices, "wv", strict=True)]
    graph = helper.make_graph(nodes, "two", ends[:1], ends[1:], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.parent.mkdir(exist_ok=True, parents=True)
    if external:
        (path.parent / external).parent.mkdir(exist_ok=True)
        (path.parent / external).unlink(missing_ok=True)
        onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def check(library: Any, matrices: list[np.ndarray[Any, Any]]) -> None:
    expected = np.maximum(X @ matrices[0], 0) @ matrices[1]
    np.testing.assert_allclose(library(X), expected, rtol=1e-4, atol=1e-3)


def bytes_in(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("precision", [None, "bf16"])
def test_weights_are_not_copied_into_the_cache(folder: Path, tmp_path: Path, precision: str | None) -> None:
    large = [np.tile(m, (1, 4)) if k == 0 else np.tile(m, (4, 1)) / 4 for k, m in enumerate(weights(0))]
    path = onnx_model(tmp_path / "models" / "large.onnx", large)
    first = tw.compile(path, precision=precision)
    again = tw.compile(path, precision=precision)
    assert not first.report.cached and again.report.cached
    np.testing.assert_array_equal(first(X), again(X))
    assert path.stat().st_size > 2 << 20
    assert bytes_in(disk_cache.folder_of("artifacts")) + bytes_in(disk_cache.folder_of("files")) < 300_000


@pytest.mark.parametrize("external", ["", "weights.bin", "below/weights.bin"])
def test_other_weights_in_the_same_file(tmp_path: Path, external: str) -> None:
    path = tmp_path / "models" / "two.onnx"
    for seed in range(3):
        onnx_model(path, weights(seed), external=external)
        for cached in (False, True):
            library = tw.compile(path)
            assert library.report.cached == cached
            check(library, weights(seed))
            library.close()


def test_the_graph_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = onnx_model(tmp_path / "models" / "two.onnx", weights(0))
    tw.compile(path)
    renamed = path.rename(path.with_name("renamed.onnx"))
    monkeypatch.setattr("tilewright.driver.compile.import_model", None)
    library = tw.compile(renamed)
    assert library.metadata["source"]["name"] == "renamed.onnx"
    check(library, weights(0))


def test_a_shape_in_another_file(tmp_path: Path) -> None:
    """A change of a shape that lies in an external file is noticed. The import evaluates the shape, so that
    no constant of the graph refers to the file.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    path, shapes = tmp_path / "models" / "shaped.onnx", tmp_path / "models" / "below" / "shapes.bin"
    shapes.parent.mkdir(parents=True)
    shape = numpy_helper.from_array(np.array([4, 48], np.int64), "s")
    shape.ClearField("raw_data")
    shape.data_location = TensorProto.EXTERNAL
    shape.external_data.add(key="location", value="below/shapes.bin")
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "s"], ["y"])], "g", ends[:1], ends[1:], [shape]
    )
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
        ).SerializeToString()
    )
    assert (
        onnx.load(path, load_external_data=False).graph.initializer[0].data_location == TensorProto.EXTERNAL
    )
    (path.parent / "notes.json").write_text("{}")
    for sizes in ((4, 48), (8, 24)):
        shapes.write_bytes(np.array(sizes, np.int64).tobytes())
        assert tw.compile(path)(X).shape == sizes


def test_files_beside_a_model_do_not_matter(tmp_path: Path) -> None:
    path = onnx_model(tmp_path / "models" / "two.onnx", weights(0))
    tw.compile(path)
    (path.parent / "notes.txt").write_text("something else")
    assert tw.compile(path).report.seconds.keys() == {"find", "load", "other"}


def normalized(channels: int) -> Any:
    """Convolutions and batch normalizations that are folded into their weights, with an input."""
    import torch

    torch.manual_seed(0)
    layers = [
        m for _ in range(2) for m in (torch.nn.Conv2d(channels, channels, 3), torch.nn.BatchNorm2d(channels))
    ]
    for layer in layers[1::2]:
        torch.nn.init.uniform_(layer.running_mean)
        torch.nn.init.uniform_(layer.running_var, 1, 2)
        torch.nn.init.uniform_(layer.weight)
    return torch.nn.Sequential(*layers).eval(), torch.randn(1, channels, 8, 8)


def computed() -> Any:
    """A model whose weight is computed in several steps, two of which read the same intermediate, with an
    input.
    """
    import torch

    class Computed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(400, 500) / 20)

        def forward(self, x: Any) -> Any:
            w = torch.tanh(self.weight)
            return x @ (w + torch.sin(w) * 2).reshape(250, 800)[:, 10:]

    torch.manual_seed(0)
    return Computed(), torch.randn(3, 250)


@pytest.mark.parametrize("make", [lambda: normalized(128), lambda: normalized(48), computed])
@pytest.mark.parametrize("precision", [None, "bf16"])
def test_folded_weights_are_folded_again(folder: Path, make: Any, precision: str | None) -> None:
    """The cache keeps recipes of folded weights rather than their values, and the weights are computed again
    from the model.
    """
    model, x = make()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    first, again = (tw.compile(model, (x,), precision=precision) for _ in range(2))
    assert not first.report.cached and again.report.cached
    np.testing.assert_array_equal(first(x), again(x))
    if precision is None:
        np.testing.assert_allclose(again(x), model(x).detach(), rtol=1e-3, atol=1e-4)
    (entry,) = [p for p in disk_cache.folder_of("artifacts").rglob("*") if p.is_file()]
    _, kept = artifact_cache.find(entry.parent.name + entry.name) or (None, b"")
    assert 0 < len(kept) < size / 10


def test_narrowed_weights_are_narrowed_again(tmp_path: Path) -> None:
    """The weights of an integer product, from which the zero point is subtracted at compile time, are also
    kept as a recipe.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    w = rng.integers(60, 180, (500, 400), np.uint8)
    x = rng.integers(0, 256, (3, 500), np.uint8)
    arrays = [numpy_helper.from_array(a, n) for a, n in ((w, "w"), (np.uint8(7), "p"), (np.uint8(120), "q"))]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape),
        helper.make_tensor_value_info("y", TensorProto.INT32, (3, 400)),
    ]
    nodes = [helper.make_node("MatMulInteger", ["x", "w", "p", "q"], ["y"])]
    graph = helper.make_graph(nodes, "integers", ends[:1], ends[1:], arrays)
    path = tmp_path / "integers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    for cached in (False, True):
        library = tw.compile(path)
        assert library.report.cached == cached
        np.testing.assert_array_equal(library(x), (x.astype(np.int32) - 7) @ (w.astype(np.int32) - 120))
    (entry,) = [p for p in disk_cache.folder_of("artifacts").rglob("*") if p.is_file()]
    _, kept = artifact_cache.find(entry.parent.name + entry.name) or (None, b"")
    assert 0 < len(kept) < w.nbytes / 10


def test_a_cached_library_can_be_saved(tmp_path: Path) -> None:
    path = onnx_model(tmp_path / "models" / "two.onnx", weights(0))
    tw.compile(path)
    library = tw.compile(path)
    assert library.report.cached
    for name, where in (("inside.so", "inside"), ("beside.so", "beside")):
        check(tw.load(library.save(tmp_path / name, weights=where)), weights(0))
    assert "graph.relu" in library.ir("graph") or "graph.matmul" in library.ir("graph")


def test_a_file_that_changes_before_its_weights_are_needed(tmp_path: Path) -> None:
    path = onnx_model(tmp_path / "models" / "two.onnx", weights(0))
    tw.compile(path)
    first, second, third = (tw.compile(path) for _ in range(3))
    path.rename(tmp_path / "old.onnx")
    check(first, weights(0))
    onnx_model(path, weights(1))
    check(second, weights(0))
    (tmp_path / "old.onnx").replace(path)
    with path.open("r+b") as file:  # reading beyond the end of a mapped file would kill the process
        file.truncate(100)
    with pytest.raises(ArtifactError, match=r"two.onnx has changed since the model was compiled"):
        third(X)


def test_models_in_memory(folder: Path) -> None:
    for seed in range(2):
        w, v = weights(seed)

        turned = v.T.copy()

        def model(x: Any, w: Any = w, turned: Any = turned) -> Any:
            return tnp.maximum(x @ w, 0) @ turned.T

        for cached in (False, True):
            library = tw.compile(model, (X,))
            assert library.report.cached == cached
            check(library, [w, v])
    assert bytes_in(disk_cache.folder_of("artifacts")) < 300_000


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/self/smaps of Linux")
def test_weights_are_in_memory_once(tmp_path: Path) -> None:
    """A model's file does not stay in memory once its weights are packed."""
    large = [np.tile(m, (1, 20)) if k == 0 else np.tile(m, (20, 1)) / 20 for k, m in enumerate(weights(0))]
    path = onnx_model(tmp_path / "models" / "large.onnx", large)
    tw.compile(path).close()
    library = tw.compile(path)
    assert library.report.cached
    check(library, large)
    ours, resident = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            resident += int(line.split()[1]) << 10
    assert resident < path.stat().st_size / 8


def test_seconds_add_up(tmp_path: Path) -> None:
    import time

    path = onnx_model(tmp_path / "models" / "two.onnx", weights(0))
    for _ in range(2):
        begin = time.perf_counter()
        report = tw.compile(path).report
        elapsed = time.perf_counter() - begin
        assert elapsed * 0.9 <= report.total_seconds + 0.005 and report.total_seconds <= elapsed
        assert report.seconds["other"] < 0.5 * elapsed
        assert f"seconds: {report.total_seconds:.3f}: " in str(report)
