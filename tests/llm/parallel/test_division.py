"""Models divided among threads give the logits of the whole model, and read their own parts only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.llm.models import tiny
from tilewright.errors import CompileError
from tilewright.frontends.trace import Tensor
from tilewright.ir.types import f32, i8
from tilewright.llm.cache import NoCache
from tilewright.llm.library import LibraryOptions, compile_library, model_of
from tilewright.llm.parallel.cuts import COLUMNS, ROWS, Cut
from tilewright.llm.parallel.exchange import equal_parts
from tilewright.llm.parallel.place import Place
from tilewright.llm.quantization import dequantize, quantize, scheme_of
from tilewright.llm.quantized_linear import QuantizedMatrix, factors
from tilewright.llm.weights import Conversion, convert, open_checkpoint
from tilewright.llm.weights.checkpoint import LazyTensor

from .threads import on_threads, places

DTYPES = {"i8": i8, "f32": f32}
QUICK = ("llama", "mixtral", "gpt 2", "gemma 2")
DIVIDED = (
    "llama", "llama 3, tied", "mistral", "qwen 2", "qwen 3", "qwen 2 experts", "mixtral", "gemma 2",
    "gemma 3", "phi 3", "gpt 2", "gpt neox", "granite", "cohere 2",
)  # fmt: skip


def logits_of(checkpoint: Any, tensor: int, pipeline: int, x: Any) -> tuple[list[Any], list[int]]:
    """The logits of the processes that have the head, and the number of parameters of each process."""
    models: list[Any] = [model_of(checkpoint, None, place) for place in places(tensor, pipeline)]
    found = on_threads([lambda model=model: model(x, NoCache(x)).numpy() for model in models])
    return found[:tensor], [sum(p.size for p in model.parameters()) for model in models]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in DIVIDED]
)
def test_families(name: str, tmp_path: Path) -> None:
    """The logits are those of `transformers`, divided by heads and columns, by layers, and by both."""
    theirs = tiny.checkpoint(name, tmp_path)
    x = tiny.tokens(2, 21)
    wanted = tiny.logits(theirs, x)
    whole = sum(p.numel() for p in theirs.parameters())
    checkpoint = open_checkpoint(tmp_path)
    for tensor, pipeline in ((2, 1), (4, 1), (1, 2), (2, 2)):
        found, sizes = logits_of(checkpoint, tensor, pipeline, x)
        for logits in found:
            np.testing.assert_allclose(logits, wanted, atol=1e-4, rtol=1e-4)
        # heads of keys are repeated where there are fewer than processes; norms, routers, positions always
        assert max(sizes) < whole * (0.8 if tensor * pipeline == 2 else 0.6), (tensor, pipeline, sizes, whole)


def test_a_vocabulary_without_equal_parts(tmp_path: Path) -> None:
    theirs = tiny.checkpoint("llama", tmp_path, vocab_size=97)
    x = tiny.tokens(2, 9)
    found, _ = logits_of(open_checkpoint(tmp_path), 4, 1, x)
    np.testing.assert_allclose(found[2], tiny.logits(theirs, x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("count", "size"), [(96, 4), (97, 4), (5, 4), (3, 4), (1, 2)])
def test_equal_parts_cover_each_index_once(count: int, size: int) -> None:
    parts = equal_parts(count, size)
    assert [k for _, counts, stop in parts for k in range(counts, stop)] == list(range(count))
    assert all(start <= counts and 0 <= start <= count - -(-count // size) for start, counts, _ in parts)


@pytest.mark.parametrize("scheme", ["int4_g32", "int4_g32_asym", "int8", "int3_g32", "fp8_e4m3"])
def test_quantized_matrices_are_cut_between_groups(scheme: str) -> None:
    random = np.random.default_rng(0)
    matrix = random.standard_normal((256, 512)).astype(np.float32)
    whole = quantize(matrix, scheme_of(scheme))
    tensor = LazyTensor(
        "w", matrix.shape, np.dtype(np.float32), "w", lambda: dequantize(whole), whole.scheme, lambda: whole
    )
    for cut in (
        Cut(ROWS, ((128, 256),)),
        Cut(COLUMNS, ((128, 256),)),
        Cut(COLUMNS, ((0, 128), (384, 512))),
    ):
        part = cut.of(tensor, False)
        wanted = cut.taken(dequantize(whole), cut.axis)
        np.testing.assert_array_equal(part.read(), wanted)
        np.testing.assert_array_equal(dequantize(part.read_quantized()), wanted)
    if scheme not in ("int8",):
        with pytest.raises(CompileError, match="w: cannot be divided .* (groups|blocks of rows)"):
            Cut(COLUMNS, ((0, 40),)).of(tensor, False)


@pytest.mark.parametrize("product", ["i8", "f32"])
@pytest.mark.parametrize(
    ("name", "scheme"),
    [("llama", "int4_g32"), ("mixtral", "int4_g32"), ("llama", "int8"), ("mixtral", "int8"),
     ("llama", "int8_g128")],
)  # fmt: skip
def test_quantized_models(name: str, scheme: str, product: str, tmp_path: Path) -> None:
    """The parts of a quantized model have the whole model's numbers, and say the same: activations are
    rounded to 8 bits as those of whole rows.
    """
    tiny.checkpoint(name, tmp_path / "m", intermediate_size=256, head_dim=64)  # two groups of 128 columns
    convert(tmp_path / "m", tmp_path / "q", Conversion(scheme))
    checkpoint = open_checkpoint(tmp_path / "q")
    whole: Any = model_of(checkpoint)
    divided: list[Any] = [model_of(checkpoint, None, place) for place in places(2)]
    if name == "llama":
        assert type(divided[0].model.layers[0].mlp.down_proj.inner).__name__ == "QuantizedLinear"

    def said(model: Any) -> tuple[list[int], Any]:
        x = tiny.tokens(1, 9)
        with factors(DTYPES[product]):
            for _ in range(6):
                logits = model(x, NoCache(x)).numpy()
                x = np.concatenate([x, logits[:, -1:].argmax(-1).astype(x.dtype)], 1)
        return x[0].tolist(), logits

    tokens, wanted = said(whole)
    for found, logits in on_threads([lambda model=model: said(model) for model in divided]):
        assert found == tokens
        np.testing.assert_allclose(logits, wanted, atol=1e-4, rtol=1e-4)


def test_what_is_rounded_by_whole_rows() -> None:
    def rounds(dtype: Any, one_scale: bool, bits: int | None = None) -> bool:
        matrix = QuantizedMatrix(Tensor(np.zeros((2, 32), dtype)), Tensor(np.ones((2, 1))), bits=bits)
        return matrix.rounds_by_rows(one_scale)

    assert rounds(np.int8, True) and not rounds(np.int8, False)
    assert rounds(np.int8, False, 4) and not rounds(np.int8, False, 6)
    assert not rounds(ml_dtypes.float8_e4m3fn, True)  # factors are rounded to bf16


@pytest.mark.parametrize(
    ("name", "tensor", "pipeline", "message"),
    [
        ("llama", 3, 1, "layers.0.self_attn cannot be divided among 3 processes: it has 4 heads"),
        ("olmo 2", 2, 1, "normalized over all heads"),
        ("mamba", 2, 1, "MambaMixer|Mamba"),
        ("gpt oss", 2, 1, "ClippedExperts, for which there is no rule"),
        ("llama", 1, 3, "2 layers cannot be divided into 3 stages"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    name: str, tensor: int, pipeline: int, message: str, tmp_path: Path
) -> None:
    tiny.checkpoint(name, tmp_path)
    with pytest.raises(CompileError, match=message):
        model_of(open_checkpoint(tmp_path), None, Place(tensor, pipeline, 0))


def test_options_that_a_divided_library_lacks_are_refused(tmp_path: Path) -> None:
    tiny.checkpoint("llama", tmp_path)
    for options, message in (
        (LibraryOptions(tensor_parallel=2, max_adapters=1), "adapters cannot be divided"),
        (LibraryOptions(tensor_parallel=2, draws=True), "only libraries for CPUs"),
        (LibraryOptions(tensor_parallel=2, task="embed"), "only models that generate text"),
        (LibraryOptions(tensor_parallel=2, rank=2), "rank 2 of 2 processes does not exist"),
        (LibraryOptions(tensor_parallel=0), "both must be at least 1"),
    ):
        with pytest.raises(CompileError, match=message):
            compile_library(tmp_path, options)


def test_only_the_own_part_of_a_file_is_read(tmp_path: Path) -> None:
    """A part of a mapped tensor is a view of the file's bytes, so the system reads no others."""
    tiny.checkpoint("llama", tmp_path)
    tensor = open_checkpoint(tmp_path)["model.layers.0.mlp.gate_proj.weight"]
    whole, part = tensor.load(), Cut(ROWS, ((40, 80),)).of(tensor, False).load()
    assert part.base is not None and np.shares_memory(part, whole)
    assert part.ctypes.data == whole.ctypes.data + 40 * whole.strides[0]
    assert whole.dtype in (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))
