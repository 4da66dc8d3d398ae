"""Perplexity: the definition, for scorers with given scores, and compiled scorers, compared with
transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tilewright as tw  # noqa: E402
from tests.llm.small_tokenizer import TEXT, byte_level  # noqa: E402
from tilewright.cli.llm import command  # noqa: E402
from tilewright.llm.calibration import calibrate  # noqa: E402
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library, tokenizer_of  # noqa: E402
from tilewright.llm.perplexity import CompiledScorer, LibraryScorer, Perplexity, perplexity  # noqa: E402
from tilewright.llm.quantization import ActivationStatistics  # noqa: E402
from tilewright.llm.weights import Conversion, convert, open_checkpoint  # noqa: E402

OPTIONS = LibraryOptions(
    context=96, chunk=40, max_batch=2, cache_dtype="float32", precision=None, prompt_factors="bfloat16"
)
TOKENS = np.random.default_rng(0).integers(0, 400, 230).astype(np.int32)


class RecordingScorer:
    """A scorer in which every token costs a given number of nats. It records its windows."""

    context = 8

    def __init__(self) -> None:
        self.windows: list[tuple[int, int]] = []

    def __call__(self, window: Any) -> Any:
        self.windows.append((int(window[0]), len(window)))
        return window[1:].astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=400,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
    )
    path: Path = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    byte_level(400).save(str(path / "tokenizer.json"))
    return path


def reference(folder: Path, tokens: Any) -> Any:
    """Return transformers' negative log-likelihoods of all but the first of `tokens`."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor(tokens.astype(np.int64))
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(
            model(ids[None, :-1]).logits[0], ids[1:], reduction="none"
        ).numpy()


@pytest.mark.parametrize(
    ("count", "window", "stride"), [(8, 8, 4), (9, 8, 4), (20, 8, 4), (21, 5, 1), (30, 8, 7), (2, 2, 1)]
)
def test_every_token_but_the_first_counts_once(count: int, window: int, stride: int) -> None:
    score, tokens = RecordingScorer(), np.arange(100, 100 + count, dtype=np.int32)
    found = perplexity(score, tokens, window=window, stride=stride)
    assert found == Perplexity(count - 1, float(tokens[1:].sum()), window, stride)
    assert [first - 100 for first, _ in score.windows] == list(
        range(0, max(1, count - window + stride), stride)
    )
    assert all(length <= window for _, length in score.windows)


def test_definition() -> None:
    assert Perplexity(4, 4 * math.log(7), 8, 4).value == pytest.approx(7)
    assert Perplexity(1, 1e6, 8, 4).value == math.inf


@pytest.mark.parametrize(
    ("count", "window", "stride", "message"),
    [
        (9, 9, 4, "window is 9 tokens"),
        (9, 1, 1, "window is 1 tokens"),
        (9, 8, 8, "stride is 8 tokens"),
        (1, 8, 4, "1 tokens"),
    ],
)
def test_inputs_that_cannot_be_measured_are_refused(
    count: int, window: int, stride: int, message: str
) -> None:
    with pytest.raises(tw.errors.RequestError, match=message):
        perplexity(RecordingScorer(), np.zeros(count, np.int32), window=window, stride=stride)


@pytest.fixture(scope="module")
def compiled(folder: Path) -> Iterator[CompiledScorer]:
    with CompiledScorer(open_checkpoint(folder), OPTIONS) as scorer:
        yield scorer


def test_compiled_scores_are_those_of_transformers(folder: Path, compiled: CompiledScorer) -> None:
    """Compiled scores equal those of transformers in windows of several chunks and pages. An unquantized
    model has the same numerics in prefill and decode.
    """
    for numerics in ("prefill", "decode"):
        np.testing.assert_allclose(
            compiled.scorer(numerics)(TOKENS[:96]), reference(folder, TOKENS[:96]), atol=1e-4
        )
    found = perplexity(compiled.scorer("prefill"), TOKENS)
    expected = [reference(folder, TOKENS[:96])]
    expected += [reference(folder, TOKENS[at : at + 96])[-48:] for at in (48, 96)]
    expected += [reference(folder, TOKENS[144:])[-(230 - 192) :]]
    assert found.tokens == 229 and found.nats == pytest.approx(np.concatenate(expected).sum(), rel=1e-5)


def test_a_library_scores_the_same(folder: Path, tmp_path: Path) -> None:
    """A library scores the same by the functions with which it serves, one token per call."""
    convert(folder, tmp_path / "int4", Conversion("int4_g32"))
    checkpoint = open_checkpoint(tmp_path / "int4")
    tokens = TOKENS[:70]
    with CompiledScorer(checkpoint, OPTIONS) as scorer, compile_library(checkpoint, OPTIONS) as library:
        scores = {}
        for numerics in ("prefill", "decode"):
            scores[numerics] = scorer.scorer(numerics)(tokens)
            served = LibraryScorer(LibraryRunner(library), numerics)
            np.testing.assert_allclose(served(tokens), scores[numerics], atol=2e-3)
    assert 0 < np.abs(scores["prefill"] - scores["decode"]).max() < 0.1  # The two numerics differ.
    np.testing.assert_allclose(scores["decode"], reference(folder, tokens), atol=0.3)


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=100
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(tw.CompileError, match="bert is an encoder"):
        CompiledScorer(open_checkpoint(tmp_path), OPTIONS)
    with pytest.raises(tw.CompileError, match="bert is an encoder"):
        calibrate(open_checkpoint(tmp_path), TOKENS)


def test_statistics_are_those_of_the_inputs(folder: Path) -> None:
    """The statistics are those of the inputs in two windows, of which the last is shorter. Layers with the
    same input share statistics.
    """
    found = calibrate(open_checkpoint(folder), TOKENS, window=150, precision=None)
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    expected = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            expected[name] = ActivationStatistics(module.in_features)
            module.register_forward_pre_hook(
                lambda _, inputs, of=expected[name]: of.update(inputs[0].numpy())
            )
    with torch.no_grad():
        for part in (TOKENS[:150], TOKENS[150:]):
            model(torch.tensor(part[None].astype(np.int64)))
    assert found.keys() == expected.keys()
    for name, of in expected.items():
        np.testing.assert_allclose(found[name].mean_square, of.mean_square, rtol=1e-4)
        np.testing.assert_allclose(found[name].mean_absolute, of.mean_absolute, rtol=1e-4)
    assert found["model.layers.0.self_attn.q_proj"] is found["model.layers.0.self_attn.v_proj"]


def test_commands(folder: Path, tmp_path: Path) -> None:
    """A text calibrates a conversion and measures its perplexity, several quantizations give a table, and a
    file that is no text is refused.
    """
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXT * 3), encoding="utf-8")
    options = ["--quantization", "int4_g32", "--calibration", str(text), "--perplexity", str(text)]
    found = CliRunner().invoke(command, ["convert", str(folder), "-o", str(tmp_path / "out"), *options])
    assert found.exit_code == 0, found.output
    assert "original" in found.output and found.output.count("%") == 2
    count = len(tokenizer_of(open_checkpoint(folder)).encode(text.read_text(encoding="utf-8")))
    assert f"perplexity of {count - 1} tokens" in found.output

    options = ["--text", str(text), "--tokens", "40", "--window", "16", "--numerics", "decode"]
    found = CliRunner().invoke(command, ["perplexity", str(tmp_path / "out"), *options, "--json", "-"])
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    measured = result["perplexity"]["original"]["decode"]
    assert (measured["tokens"], measured["window"], measured["stride"]) == (39, 16, 8)

    text.write_bytes(b"\xff\xfe")
    found = CliRunner().invoke(command, ["perplexity", str(folder), "--text", str(text)])
    assert found.exit_code == 1 and "utf-8" in found.output
