"""The small model: how its script makes training data and continues an interrupted training, the cost of
quantization, and the same weights in a GGUF file.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.llm.weights.gguf_files import gguf_of  # noqa: E402

from tilewright.llm.cache import NoCache  # noqa: E402
from tilewright.llm.calibration import calibrate  # noqa: E402
from tilewright.llm.library import LibraryOptions, tokenizer_of  # noqa: E402
from tilewright.llm.load_weights import load_weights  # noqa: E402
from tilewright.llm.models import build  # noqa: E402
from tilewright.llm.perplexity import NUMERICS, CompiledScorer, perplexity  # noqa: E402
from tilewright.llm.weights import Checkpoint, Conversion, convert, open_checkpoint, rescaled  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = EXAMPLES / "small-model"
MODULE = '''
def halve(x):
    """Half of a number,
    rounded down.

    More about it."""

class Shelf:
    """Where books stand."""

    def _hidden(self):
        """Not for everybody to know."""
'''


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("train_small_model", EXAMPLES / "train_small_model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokens_of(checkpoint: Checkpoint, name: str, count: int) -> Any:
    text = (MODEL / name).read_text(encoding="utf-8")
    return np.array(tokenizer_of(checkpoint).encode(text)[:count], np.int32)


def test_questions_are_answered_by_docstrings(script: Any) -> None:
    pairs = dict(script.summaries("household/__init__.py", MODULE))
    assert pairs == {
        "household.halve": "Half of a number, rounded down.",
        "household.Shelf": "Where books stand.",
    }
    (turns,) = script.conversations({"a.py": 'def f():\n    """Does what f does."""'}, random.Random(0))
    assert [turn["role"] for turn in turns] == ["user", "assistant"] and turns[1][
        "content"
    ] == "Does what f does."


def test_training_goes_on_where_it_was(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that continues after an interruption ends with the same weights as training without one."""
    shape = script.SHAPE | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 8}
    for name, value in {"SHAPE": shape, "LENGTH": 16, "BATCH": 2, "SAVED_EVERY": 2, "WARMUP": 1}.items():
        monkeypatch.setattr(script, name, value)
    tokens = torch.randint(script.VOCABULARY, (400,), generator=torch.Generator().manual_seed(0))
    whole = script.train(tokens, tmp_path / "whole.pt", 4, 0)
    (tmp_path / "whole.pt").unlink()
    loss_of, seen = script.loss_of, []

    def until_the_third(model: Any, batch: Any) -> Any:
        seen.append(batch)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return loss_of(model, batch)

    with monkeypatch.context() as patched:
        patched.setattr(script, "loss_of", until_the_third)
        with pytest.raises(KeyboardInterrupt):
            script.train(tokens, tmp_path / "part.pt", 4, 0)
    again = script.train(tokens, tmp_path / "part.pt", 4, 0)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_what_is_committed(script: Any) -> None:
    """The committed model has the hub's format, is small enough for a repository, and has the chat template
    that it was trained with.
    """
    sizes = {path.name: path.stat().st_size for path in MODEL.iterdir()}
    assert sum(sizes.values()) < 15_000_000 and sizes["model.safetensors"] < 14_000_000
    tokenizer = tokenizer_of(open_checkpoint(MODEL))
    assert tokenizer.chat_templates == {"default": script.CHAT_TEMPLATE}
    assert [tokenizer.backend.id_to_token(token) for token in tokenizer.eos] == [script.TURN_END, script.END]
    held_out = (MODEL / "held_out.txt").read_text(encoding="utf-8")
    assert held_out not in (MODEL / "calibration.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def unquantized() -> float:
    """The perplexity of some held-out text under transformers in float32."""

    class Reference:
        context = 512
        model = transformers.LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

        def __call__(self, window: Any) -> Any:
            ids = torch.tensor(window.astype(np.int64))
            with torch.no_grad():
                logits = self.model(ids[None, :-1]).logits[0]
            return torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none").numpy()

    return perplexity(Reference(), tokens_of(open_checkpoint(MODEL), "held_out.txt", 2500), stride=448).value


@pytest.mark.parametrize(("scheme", "bound"), [("int8", 0.02), ("int4_g32", 0.08)])
def test_quantization_costs_little(scheme: str, bound: float, unquantized: float, tmp_path: Path) -> None:
    checkpoint = convert(MODEL, tmp_path, Conversion(scheme))
    tokens = tokens_of(checkpoint, "held_out.txt", 2500)
    with CompiledScorer(checkpoint, LibraryOptions(context=512)) as compiled:
        for numerics in NUMERICS:
            found = perplexity(compiled.scorer(numerics), tokens, stride=448).value
            assert 0.99 * unquantized < found < (1 + bound) * unquantized, numerics


def test_calibration_helps_where_bits_are_few(tmp_path: Path) -> None:
    """With 3-bit weights, calibration lowers the mean squared error of the logits by at least a tenth."""
    source, how = open_checkpoint(MODEL), Conversion("int3_g64", "bf16")
    aware = rescaled(source, calibrate(source, tokens_of(source, "calibration.txt", 2000)), how)
    tokens = tokens_of(source, "held_out.txt", 200)[None]
    exact, plain, scaled = (
        logits(checkpoint, tokens)
        for checkpoint in (
            source,
            convert(source, tmp_path / "plain", how),
            convert(aware, tmp_path / "aware", how),
        )
    )
    assert np.square(scaled - exact).mean() < 0.9 * np.square(plain - exact).mean()


def logits(checkpoint: Checkpoint, tokens: Any) -> Any:
    model = build(checkpoint.config)
    load_weights(model, checkpoint)
    return np.asarray(model(tokens, NoCache(tokens)))


@pytest.mark.parametrize(("kind", "bound"), [("F32", 0), ("F16", 1e-4), ("Q8_0", 0.02)])
def test_a_gguf_file_of_the_same_weights(kind: str, bound: float, tmp_path: Path) -> None:
    """A GGUF file of the model, read directly or converted, gives the same tokens and nearly the same logits.
    F16 has enough digits for bf16, but not its smallest numbers.
    """
    folder = open_checkpoint(MODEL)
    gguf_of(MODEL, tmp_path / "m.gguf", kind, tokenizer_metadata(folder))
    file = open_checkpoint(tmp_path / "m.gguf")
    converted = convert(file, tmp_path / "out", Conversion("none"))
    text = (MODEL / "held_out.txt").read_text(encoding="utf-8")[:2000]
    assert (
        tokenizer_of(file).encode(text)
        == tokenizer_of(folder).encode(text)
        == tokenizer_of(converted).encode(text)
    )
    tokens = tokens_of(folder, "held_out.txt", 100)[None]
    expected = logits(folder, tokens)
    found = logits(file, tokens)
    assert np.abs(found - expected).max() <= bound * np.abs(expected).max()
    np.testing.assert_array_equal(logits(converted, tokens), found)
    if kind == "Q8_0":  # int8_g32 of the original folder has other scales than Q8_0, but the same precision
        ours = convert(folder, tmp_path / "int8", Conversion("int8_g32"))
        assert np.abs(logits(ours, tokens) - expected).max() <= bound * np.abs(expected).max()


def tokenizer_metadata(checkpoint: Checkpoint) -> dict[str, Any]:
    """The tokenizer's entries in a GGUF file's metadata."""
    tokenizer = json.loads(checkpoint.files["tokenizer.json"]())
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    template = tokenizer_of(checkpoint).chat_templates["default"]
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": sorted(vocabulary, key=lambda token: vocabulary[token]),
        "token_type": [3 if i in special else 1 for i in range(len(vocabulary))],
        "merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()} | {
        "tokenizer.chat_template": template
    }


def test_the_script_names_only_files_of_the_library(script: Any) -> None:
    training, held_out = script.documents()
    assert not training.keys() & held_out.keys() and 0.02 < len(held_out) / len(training) < 0.1
    assert not any("site-packages" in name for name in training)
    assert all(ast.parse(text) for name, text in list(held_out.items())[:5] if name.endswith(".py"))
