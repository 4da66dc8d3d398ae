"""Libraries of sentence-transformers' folders give its vectors, and its scores of pairs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sentences = pytest.importorskip("sentence_transformers")
from sentence_transformers.sentence_transformer import modules  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

from tests.llm.models.test_encoders import MODELS  # noqa: E402
from tilewright.errors import CompileError, WeightsError  # noqa: E402
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library  # noqa: E402
from tilewright.llm.weights import Conversion, convert  # noqa: E402

WORDS = "the a cat dog sat ran on under mat tree yes no query : what is an animal thing".split()
TEXTS = ["the cat sat on the mat", "a dog", "what is an animal under the tree ran the dog on a thing"]
EXACT = LibraryOptions(context=30, precision=None)


def save_tokenizer(folder: Path, causal: bool = False, segments: bool = True) -> None:
    """A tokenizer of words: pairs in the form of BERT, or texts that end with a token of their own."""
    vocabulary = {word: i for i, word in enumerate(["[CLS]", "[PAD]", "[SEP]", "[UNK]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="$A [SEP]" if causal else "[CLS] $A [SEP]",
        pair="$A $B:1 [SEP]:1" if causal else "[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 2)],
    )
    transformers.PreTrainedTokenizerFast(
        model_input_names=["input_ids", *["token_type_ids"] * segments, "attention_mask"],
        tokenizer_object=backend,
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
    ).save_pretrained(folder)


def save_model(architecture: str, folder: Path, causal: bool = False, **settings: Any) -> None:
    cls = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = cls(cls.config_class(**{**MODELS.get(architecture, MODELS["Qwen3Model"]), **settings}))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.2) if p.ndim > 1 else p.normal_(0.5, 0.3)
    model.save_pretrained(folder)
    save_tokenizer(folder, causal, architecture.startswith("Bert"))


def pooling(*kinds: str) -> list[Any]:
    return [modules.Pooling(64, kinds)]


torch.manual_seed(1)
AFTER: dict[str, tuple[str, list[Any]]] = {
    "bge": ("BertModel", [*pooling("cls"), modules.Normalize()]),
    "minilm": ("BertModel", pooling("mean")),
    "joined": ("MPNetModel", [*pooling("max", "mean"), modules.Normalize()]),
    "embedding gemma": (
        "Gemma3TextModel",
        [
            *pooling("mean"),
            modules.Dense(64, 96, bias=False, activation_function=torch.nn.Identity()),
            modules.Dense(96, 64),
            modules.LayerNorm(64),
            modules.Normalize(),
        ],
    ),
    "qwen3": ("Qwen3ForCausalLM", [*pooling("lasttoken"), modules.Normalize()]),
    "e5 mistral": ("MistralModel", [*pooling("lasttoken"), modules.Normalize()]),
}


def saved(name: str, folder: Path) -> Any:
    """Save a model of sentence-transformers, and return it."""
    architecture, after = AFTER[name]
    causal = not architecture.startswith(("Bert", "MPNet"))
    tied = {"tie_word_embeddings": True} if name == "qwen3" else {}
    save_model(architecture, folder / "base", causal, **tied)
    transformer = sentences.base.modules.Transformer(str(folder / "base"))
    model = sentences.SentenceTransformer(
        modules=[transformer, *after], device="cpu", prompts={"query": "query : ", "document": ""}
    )
    model.save(str(folder / "model"))
    shutil.rmtree(folder / "base")
    return model


def encoded(model: Any, text: str, prompt: str = "") -> Any:
    return np.array(model.tokenizer(prompt + text)["input_ids"], np.int32)


@pytest.mark.parametrize("name", AFTER)
def test_like_sentence_transformers(name: str, tmp_path: Path) -> None:
    model = saved(name, tmp_path)
    wanted = model.encode(TEXTS)  # with padding
    with compile_library(tmp_path / "model", EXACT) as library:
        runner = LibraryRunner(library)
        assert list(library.functions) == ["embed"]
        for text, vector in zip(TEXTS, wanted, strict=True):
            np.testing.assert_allclose(runner.embed(encoded(model, text)), vector, atol=1e-4, rtol=1e-4)
        asked = model.encode(TEXTS[1], prompt_name="query")
        prompt = runner.texts.prompts["query"]
        np.testing.assert_allclose(
            runner.embed(encoded(model, TEXTS[1], prompt)), asked, atol=1e-4, rtol=1e-4
        )


def test_converted(tmp_path: Path) -> None:
    """A converted folder keeps the modules."""
    model = saved("embedding gemma", tmp_path)
    convert(tmp_path / "model", tmp_path / "converted", Conversion("none"))
    with compile_library(tmp_path / "converted", EXACT) as library:
        found = LibraryRunner(library).embed(encoded(model, TEXTS[0]))
    np.testing.assert_allclose(found, model.encode(TEXTS[0]), atol=1e-4, rtol=1e-4)


def test_refused(tmp_path: Path) -> None:
    saved("minilm", tmp_path)
    with pytest.raises(CompileError, match=r"task='score': Bert in .*/model is made for embed"):
        compile_library(tmp_path / "model", LibraryOptions(task="score"))
    path = tmp_path / "model" / "modules.json"
    listed = json.loads(path.read_text())

    def compiled(**changes: str) -> None:
        path.write_text(json.dumps([*listed, {"idx": 9, "name": "9", "path": "9_X", "type": "X", **changes}]))
        compile_library(tmp_path / "model", EXACT)

    with pytest.raises(
        CompileError, match="module WordWeights of modules.json is not supported; known: Trans"
    ):
        compiled(type="sentence_transformers.models.WordWeights")
    with pytest.raises(WeightsError, match="9_X/model.safetensors: no such file; weights in pickle"):
        compiled(type="sentence_transformers.models.Dense")
    with pytest.raises(WeightsError, match=r"'\.\./elsewhere' is not the name of a folder"):
        compiled(path="../elsewhere")


CROSS = [
    "BertForSequenceClassification",
    "XLMRobertaForSequenceClassification",
    "ModernBertForSequenceClassification",
]


@pytest.mark.parametrize("architecture", CROSS)
def test_cross_encoders(architecture: str, tmp_path: Path) -> None:
    kinds = {"type_vocab_size": 1} if architecture.startswith("XLM") else {}
    save_model(architecture, tmp_path, num_labels=1, **kinds)
    model = sentences.CrossEncoder(str(tmp_path), device="cpu")
    wanted = model.predict([(TEXTS[1], text) for text in TEXTS], activation_fn=torch.nn.Identity())
    with compile_library(tmp_path, EXACT) as library:
        runner = LibraryRunner(library)
        assert runner.texts.task == "score" and not runner.texts.plain
        for text, score in zip(TEXTS, wanted, strict=True):
            pair = model.tokenizer(TEXTS[1], text, return_token_type_ids=True)
            found = runner.score(*(np.array(pair[k], np.int32) for k in ("input_ids", "token_type_ids")))
            np.testing.assert_allclose(found, [score], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("listed", [True, False])
def test_a_reranker_that_answers_yes_or_no(listed: bool, tmp_path: Path) -> None:
    """The score of a decoder is the difference of the logits of two tokens: those of the module that the
    folder lists, or of ``yes`` and ``no``.
    """
    save_model("Qwen3ForCausalLM", tmp_path, causal=True)
    yes, no = (4 + WORDS.index(word) for word in ("yes", "no"))
    if listed:
        yes, no = no, yes
        (tmp_path / "1_LogitScore").mkdir()
        (tmp_path / "1_LogitScore" / "config.json").write_text(
            json.dumps({"true_token_id": yes, "false_token_id": no})
        )
        kinds = ["base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore"]
        (tmp_path / "modules.json").write_text(
            json.dumps(
                [
                    {"idx": k, "name": str(k), "path": path, "type": f"sentence_transformers.{kinds[k]}"}
                    for k, path in enumerate(("", "1_LogitScore"))
                ]
            )
        )
    model = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path).eval()
    tokens = np.random.default_rng(0).integers(3, 22, 20).astype(np.int32)
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens[None].astype(np.int64))).logits[0, -1].numpy()
    options = LibraryOptions(context=30, precision=None, task=None if listed else "score")
    with compile_library(tmp_path, options) as library:
        runner = LibraryRunner(library)
        assert runner.texts.prompted
        found = runner.score(tokens, np.zeros(20, np.int32))
    np.testing.assert_allclose(found, [logits[yes] - logits[no]], atol=1e-4, rtol=1e-4)
