"""Model libraries: pages in any order, chunks, batches and verification. Quantized libraries are compared
with the model of the dequantized weights.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tilewright as tw  # noqa: E402
from tests.llm.small_library import check_bits, checkpoint  # noqa: E402
from tests.llm.small_tokenizer import byte_level  # noqa: E402
from tilewright.cli import inspect  # noqa: E402
from tilewright.cli.llm import command  # noqa: E402
from tilewright.ir.types import f32, i4, i8  # noqa: E402
from tilewright.llm.library import (  # noqa: E402
    LibraryOptions,
    LibraryRunner,
    compile_library,
    open_library,
    page_bytes,
    parts_of,
)
from tilewright.llm.memory import planned  # noqa: E402
from tilewright.llm.quantization import quantize, scheme_of  # noqa: E402
from tilewright.llm.quantized_linear import QuantizedEmbedding, QuantizedLinear, factors  # noqa: E402
from tilewright.llm.weights import Conversion, convert, open_checkpoint  # noqa: E402
from tilewright.targets.cpu.isa import host_isa  # noqa: E402
from tilewright.targets.llvm.brgemm import panel_of  # noqa: E402

every_isa = pytest.mark.every_isa

TOKENS = np.random.default_rng(0).integers(0, 100, 150).astype(np.int32)
EXACT = LibraryOptions(context=256, chunk=64, max_batch=4, cache_dtype="float32", precision=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("llama"), vocabulary=100)


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[LibraryRunner]:
    with compile_library(folder, EXACT) as library:
        yield LibraryRunner(library)


def wanted(folder: Path, tokens: Any = TOKENS, weights: Any = None) -> Any:
    """Return the logits of transformers after each token, with other weights if given."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    if weights is not None:
        model.load_state_dict({n: torch.tensor(w) for n, w in weights.items()}, strict=False)
    with torch.no_grad():
        return model(torch.tensor(tokens[None].astype(np.int64))).logits[0].numpy()


def table(*rows: list[int]) -> Any:
    width = max(map(len, rows))
    return np.array([row + [-1] * (width - len(row)) for row in rows], np.int32)


def test_a_draft_model_chooses_several_tokens_in_one_call(folder: Path) -> None:
    """They are those of one call for each, and the cache holds them afterwards; one of two sequences has a
    token more to catch up with.
    """
    pages, last = table([3, 1], [0, 2]), np.array([1, 2], np.int32)
    tokens, lengths = TOKENS[[20, 21, 60]], np.array([20, 21, 62], np.int32)
    slots = np.array([0, 0, 1], np.int32)
    with compile_library(folder, replace(EXACT, guesses=3)) as library:
        runner = LibraryRunner(library)
        assert runner.guessing is not None and runner.guessing.most == 3
        for apart in (True, False):
            runner.prefill(TOKENS[:20], 0, pages[0], 0)
            runner.prefill(TOKENS[-62:], 0, pages[1], 1)
            call = tokens, lengths, pages[slots], slots
            if apart:
                expected = []
                for i in range(3):
                    logits = runner.decode(*call)[last if not i else slice(None)]
                    expected.append(logits.argmax(axis=1).astype(np.int32))
                    call = expected[-1], lengths[last] + i + 1, pages, np.arange(2, dtype=np.int32)
            else:
                found = runner.guessing.guess(*call[:3], last, 3)
                np.testing.assert_array_equal(found, np.stack(expected, axis=1))
            logits = runner.decode(expected[-1], lengths[last] + 3, pages, np.arange(2, dtype=np.int32))
            if apart:
                after = logits.copy()
        np.testing.assert_array_equal(logits, after)


def test_only_a_draft_model_without_more_state_chooses_several_tokens(folder: Path) -> None:
    with pytest.raises(tw.CompileError, match="guesses=2: a draft model that .* leave --guesses out"):
        compile_library(folder, replace(EXACT, guesses=2, max_adapters=1))


@every_isa
def test_chunks_then_batched_decoding(folder: Path, runner: LibraryRunner) -> None:
    """Two sequences in pages without order give the right logits; the second sequence's pages were used by
    another one before.
    """
    logits = wanted(folder)
    runner.prefill(TOKENS[60:100], 0, np.array([9], np.int32), 1)
    for start, stop in ((0, 50), (50, 64), (64, 100)):
        pages = table([3, 7])[0, : -(-stop // 64)]
        np.testing.assert_allclose(
            runner.prefill(TOKENS[start:stop], start, pages, 0), logits[stop - 1], atol=1e-4
        )
    np.testing.assert_allclose(
        runner.prefill(TOKENS[:30], 0, np.array([9], np.int32), 1), logits[29], atol=1e-4
    )
    for step in range(40):
        lengths = np.array([100 + step, 30 + step], np.int32)
        pages = table([3, 7, 1], [9, 4])
        found = runner.decode(TOKENS[lengths], lengths, pages, np.array([0, 1], np.int32))
        np.testing.assert_allclose(found, logits[lengths], atol=1e-4)


@every_isa
def test_rows_and_chunks_do_not_matter(runner: LibraryRunner) -> None:
    check_bits(runner)


@every_isa
def test_verification_in_a_copied_page(folder: Path, runner: LibraryRunner) -> None:
    runner.prefill(TOKENS[:40], 0, np.array([5], np.int32), 0)
    runner.copy_page(5, 6)
    other = TOKENS[::-1].copy()
    # Writing to the original does not change the copy.
    runner.decode(other[:1], np.array([20], np.int32), table([5]), np.array([0], np.int32))
    found = runner.decode(
        TOKENS[40:44], np.arange(40, 44, dtype=np.int32), table(*[[6]] * 4), np.zeros(4, np.int32)
    )
    np.testing.assert_allclose(found, wanted(folder)[40:44], atol=1e-4)


def test_windows(tmp_path: Path) -> None:
    """Gemma 2, in which every other layer has a window, gives the right logits for prompts and tokens of
    several windows.
    """
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        hidden_size=64,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        vocab_size=100,
        sliding_window=33,
        max_position_embeddings=512,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    )
    model = transformers.Gemma2ForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(5)
        logits = model(torch.tensor(TOKENS[None].astype(np.int64))).logits[0].numpy()
    assert abs(logits).max() > 1
    model.save_pretrained(tmp_path)
    with compile_library(tmp_path, EXACT) as library:
        runner = LibraryRunner(library)
        for start in (0, 64):
            pages = np.array([5, 2, 7][: start // 64 + 1], np.int32)
            np.testing.assert_allclose(
                runner.prefill(TOKENS[start : start + 64], start, pages, 0), logits[start + 63], atol=1e-4
            )
        for n in range(128, 150):
            found = runner.decode(
                TOKENS[n : n + 1], np.array([n], np.int32), table([5, 2, 7]), np.array([0], np.int32)
            )
            np.testing.assert_allclose(found[0], logits[n], atol=1e-4)
        check_bits(runner)


@every_isa
@pytest.mark.parametrize(("dtype", "error"), (("int8", 0.02), ("int4", 0.25)))
def test_cached_qvalues(folder: Path, dtype: str, error: float) -> None:
    """A quantized cache has a small error, also in a copied page with its copied scales, and takes as many
    bytes as planned.
    """
    with compile_library(folder, replace(EXACT, cache_dtype=dtype)) as library:
        runner = LibraryRunner(library)
        held = sum(library.state[s["name"]].nbytes for s in library.metadata["states"])
        assert (
            held
            == planned(library.metadata).cache
            == runner.pages * page_bytes(runner.description["config"], dtype)
        )
        assert planned(library.metadata).per_token * 64 == page_bytes(runner.description["config"], dtype)
        runner.prefill(TOKENS[:64], 0, np.array([5], np.int32), 0)
        runner.prefill(TOKENS[64:100], 64, np.array([5, 2], np.int32), 0)
        runner.copy_page(2, 6)
        other = TOKENS[::-1].copy()
        runner.decode(other[:1], np.array([70], np.int32), table([5, 2]), np.array([0], np.int32))
        found = runner.decode(
            TOKENS[100:101], np.array([100], np.int32), table([5, 6]), np.array([0], np.int32)
        )[0]
        check_bits(runner)
    logits = wanted(folder)[100]
    assert np.linalg.norm(found - logits) < error * np.linalg.norm(logits)


@pytest.mark.parametrize(
    "scheme",
    (
        pytest.param("int8_g32", marks=every_isa),
        pytest.param("int4_g32", marks=every_isa),
        "int4_g32_asym",
        "int3_g32",
    ),
)
def test_quantized(folder: Path, tmp_path: Path, scheme: str) -> None:
    """The error of rounding activations to 8 bits, or operands to bf16, is small compared with the logits."""
    convert(folder, tmp_path / "converted", Conversion(scheme))
    checkpoint = open_checkpoint(tmp_path / "converted")
    logits = wanted(folder, weights={n: t.read() for n, t in checkpoint.items()})
    with compile_library(checkpoint, LibraryOptions(context=256, chunk=64, max_batch=4)) as library:
        runner = LibraryRunner(library)
        assert "quantized_matmul" in library.ir("graph")
        pages = np.array([2], np.int32)
        for found, place in (
            (runner.prefill(TOKENS[:50], 0, pages, 0), 49),
            (
                runner.decode(TOKENS[50:51], np.array([50], np.int32), pages[None], np.array([0], np.int32))[
                    0
                ],
                50,
            ),
        ):
            assert np.abs(found - logits[place]).max() < 0.05 * np.abs(logits).max()
        check_bits(runner)


def are_qvalues_packed() -> bool:
    """Return whether quantized values are packed in panels, two values of 4 bits in a byte, which is so on
    machines that multiply bytes or pairs of them.
    """
    return panel_of(host_isa(), i8, i4).group == 4


@every_isa
@pytest.mark.parametrize(("scheme", "share"), [("int8", 1), ("int4_g32", 0.5)])
def test_an_embedding_that_is_the_head_is_stored_once(scheme: str, share: float) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((1100, 64)).astype(np.float32)
    table = QuantizedEmbedding(**parts_of(quantize(matrix, scheme_of(scheme))))
    ids = np.array([3, 1099, 0, 500])
    with tw.compile(lambda ids: table.attend(table(ids)), (ids,), cache=False) as library:
        np.testing.assert_allclose(library(ids), table.attend(table(ids)).numpy(), rtol=1e-4, atol=1e-3)
        stored = library.metadata["parameters"]
    assert sorted(p["of"][0]["name"] for p in stored) == ["qvalues", "scales"]
    panel, packed = panel_of(host_isa(), i8, i4), are_qvalues_packed()
    columns = -(-1100 // panel.nr) * panel.nr if packed else 1100
    bits = {p["of"][0]["name"]: p["bytes"] for p in stored}["qvalues"] * 8
    assert bits == columns * 64 * 8 * (share if packed else 1)


@every_isa
def test_minimums_and_columns_ordered_by_importance() -> None:
    """A layer takes the layouts of GPTQ without ``sym`` and with ``desc_act``."""
    rng = np.random.default_rng(0)
    x, order = rng.standard_normal((3, 64)).astype(np.float32), rng.permutation(64)
    qvalues, scales = rng.integers(-8, 8, (5, 64), np.int8), rng.random((5, 2)).astype(np.float16)
    offsets = rng.random((5, 2)).astype(np.float32)
    with factors(f32):
        layer = QuantizedLinear(
            *map(tw.Tensor, (qvalues, scales)), minimums=tw.Tensor(offsets), permutation=tw.Tensor(order)
        )
        y = layer(tw.Tensor(x)).numpy()
    weights = np.empty((5, 64))
    weights[:, order] = qvalues * np.repeat(scales.astype(np.float64), 32, 1) - np.repeat(offsets, 32, 1)
    np.testing.assert_allclose(y, x @ weights.T, rtol=1e-4)


def test_saved_and_opened(folder: Path, tmp_path: Path) -> None:
    """The command saves a library with its weights and tokenizer, and weights of another library are
    refused.
    """
    source = tmp_path / "source"
    shutil.copytree(folder, source)
    byte_level(100).save(str(source / "tokenizer.json"))
    options = [
        "--context-window-size",
        "256",
        "--max-batch-size",
        "2",
        "--quantization",
        "int4_g32",
        "--opt",
        "O1",
    ]
    found = CliRunner().invoke(command, ["compile", str(source), "-o", str(tmp_path / "model.so"), *options])
    assert found.exit_code == 0, found.output
    assert re.search(
        r"estimated memory: .*KV cache 0.1 MiB \(256 bytes a token\)\nmemory: .*, arena .* MiB \(prefill\)",
        found.output,
    )
    assert "optimization O1 (LLVM 1): drop-derivative-marks, cse, " in found.output
    opened, tokenizer, config = open_library(tmp_path / "model.so")
    with opened.library:
        assert (opened.context, opened.max_batch, opened.pages) == (256, 2, 8)
        assert tokenizer.vocabulary == 258 and config["model_type"] == "llama"
        assert opened.library.metadata["opt"] == "O1"
        check_metadata(opened.library.metadata, found.output)
        shown = CliRunner().invoke(inspect.command, [str(tmp_path / "model.so"), "--json"])
        assert json.loads(shown.output)["llm"]["memory"] == planned(opened.library.metadata).to_metadata()
        first = opened.prefill(TOKENS[:50], 0, np.array([2], np.int32), 0)
    with compile_library(
        tmp_path / "model.converted", LibraryOptions(context=256, max_batch=2), opt="O1"
    ) as library:
        np.testing.assert_array_equal(
            LibraryRunner(library).prefill(TOKENS[:50], 0, np.array([1], np.int32), 0), first
        )
    (tmp_path / "model.weights").unlink()
    with pytest.raises(tw.ArtifactError, match=r"model\.weights"):
        open_library(tmp_path / "model.so")


def check_metadata(metadata: Any, printed: str) -> None:
    about, memory = metadata["llm"], planned(metadata)
    assert (about["model_type"], about["architectures"], about["quantization"]) == (
        "llama",
        ["LlamaForCausalLM"],
        "int4_g32",
    )
    assert (about["context"], about["chunk"], about["page"], about["sliding_window"]) == (256, 256, 64, None)
    assert memory.per_token == 2 * 2 * 2 * 16 * 2 and memory.cache == 8 * 64 * memory.per_token
    assert (
        memory.arenas.keys() == metadata["functions"].keys() and memory.total > memory.weights + memory.cache
    )
    assert f"memory: {memory}" in printed
    (q,) = (
        p for p in metadata["parameters"] if p["of"][0]["name"] == "model.layers.1.self_attn.q_proj.qvalues"
    )
    assert q["of"][0]["dtype"] == "int4" and q["of"][0]["shape"] == [64, 64]
    assert q["bytes"] == (64 * 64 // 2 if are_qvalues_packed() else 64 * 64)
    assert any("4 bits a value" in step for step in q["steps"]) == are_qvalues_packed()
    names = {of["name"] for p in metadata["parameters"] for of in p["of"]}
    assert {"model.embed_tokens.qvalues", "lm_head.scales"} <= names
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        inspect._show(metadata, None)
    text = out.getvalue()
    for part in (
        "model type: llama",
        "context: 256",
        "abi: 3",
        f"memory, {memory}",
        "self_attn.q_proj.qvalues",
        "x 2",
    ):
        assert part in text


@pytest.mark.parametrize("size", ["4GB", "900TB"])
def test_a_cache_larger_than_memory_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setattr("tilewright.llm.memory.machine_memory", lambda: 1 << 30)
    found = CliRunner().invoke(
        command, ["compile", str(folder), "-o", str(tmp_path / "model.so"), "--kv-cache", size]
    )
    assert isinstance(found.exception, tw.CompileError)
    assert re.search(
        r"needs \d+.* MiB: weights .*this machine has \d+.*--kv-cache.*--no-memory-check",
        str(found.exception),
    )


@pytest.mark.parametrize("opt", ["O0", "O3"])
def test_levels_of_optimization(folder: Path, opt: str) -> None:
    logits = wanted(folder)
    with compile_library(folder, EXACT, opt=opt) as library:
        runner, pages = LibraryRunner(library), np.array([2], np.int32)
        np.testing.assert_allclose(runner.prefill(TOKENS[:50], 0, pages, 0), logits[49], atol=1e-4)
        found = runner.decode(TOKENS[50:51], np.array([50], np.int32), pages[None], np.array([0], np.int32))
        np.testing.assert_allclose(found[0], logits[50], atol=1e-4)
        check_bits(runner)


def normalized(x: Any) -> Any:
    return x / np.linalg.norm(x)


def test_embeddings(folder: Path, runner: LibraryRunner) -> None:
    model = transformers.LlamaModel.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden = model(torch.tensor(TOKENS[None, :70].astype(np.int64))).last_hidden_state[0].numpy()
    np.testing.assert_allclose(runner.embed(TOKENS[:70]), normalized(hidden.mean(0)), atol=1e-5)


def test_an_encoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=100,
        max_position_embeddings=128,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        hidden = model(torch.tensor(TOKENS[None, :70].astype(np.int64))).last_hidden_state[0].numpy()
    with compile_library(tmp_path, LibraryOptions(context=128, precision=None)) as library:
        runner = LibraryRunner(library)
        np.testing.assert_allclose(runner.embed(TOKENS[:70]), normalized(hidden.mean(0)), atol=1e-5)
        with pytest.raises(tw.CompileError, match="bert has embeddings only"):
            runner.prefill(TOKENS[:2], 0, np.array([0], np.int32), 0)


def test_bounds_are_kept(runner: LibraryRunner) -> None:
    with pytest.raises(tw.ShapeError, match="tokens"):
        runner.prefill(TOKENS[:65], 0, np.array([0, 1], np.int32), 0)


def test_libraries_of_other_models_are_refused() -> None:
    with (
        tw.compile(lambda x: x + 1, (np.zeros(3, np.float32),), cache=False) as library,
        pytest.raises(tw.CompileError, match="not compiled from a language model"),
    ):
        LibraryRunner(library)
