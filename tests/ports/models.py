"""The models that run on other processors and systems, with their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import nn
from tilewright.artifact import temporary
from tilewright.llm.models.base import CausalLM

from ..differential.sample_models import SAMPLES
from ..zoo.models import MINILM
from ..zoo.models import MODELS as LISTED
from .emulators import run_model

TOLERANCE = 1e-5
"""Allowed difference of float results, relative to the largest of the tensor."""
SMALL_MODEL = Path(__file__).parents[2] / "examples" / "small-model"


@dataclass(frozen=True)
class Compiled:
    """A function that compiles a model for a target, and inputs.

    Results of `exact` models have the same bits on all targets. With `tokens` the model is a language model,
    whose result is its input with so many more tokens.
    """

    compile: Callable[[str], Any]
    inputs: list[list[np.ndarray]]
    exact: bool = False
    tokens: int = 0


def _mlp() -> Compiled:
    nn.seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 100), nn.ReLU(), nn.Linear(100, 10))
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    return Compiled(lambda target: tw.compile(model.eval(), (x,), target=target, cache=False), [[x]])


def _cnn() -> Compiled:
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(32 * 14 * 14, 10),
        ).eval()  # fmt: skip
    x = np.random.default_rng(1).standard_normal((2, 3, 32, 32)).astype(np.float32)
    args = (torch.from_numpy(x),)
    return Compiled(lambda target: tw.compile(model, args, target=target, cache=False), [[x]])


def _from_zoo(name: str, size: str) -> Compiled:
    entry = MINILM if name == "minilm" else LISTED[name]
    given = {key: np.asarray(value) for key, value in entry.inputs(size).items()}
    path = entry.onnx_model(size)
    return Compiled(lambda target: tw.compile(path, target=target, cache=False), [list(given.values())])


def _sample(name: str, *inputs: list[np.ndarray]) -> Compiled:
    build = next(sample.build for sample in SAMPLES if sample.name == name)
    return Compiled(build(), list(inputs))


def _lstm() -> Compiled:
    ids = np.random.default_rng(2).integers(0, 64, (3, 12))
    compiled = _sample("lstm")
    library = compiled.compile("cpu")
    shape = [int(n) if str(n).isdigit() else 3 for n in library.metadata["inputs"][0]["shape"]]
    return Compiled(compiled.compile, [[np.resize(ids, shape)]])


def _transformer() -> Compiled:
    """A BERT of dynamic batch and length, on three sizes."""
    rng = np.random.default_rng(3)
    sizes = ((1, 2), (3, 16), (2, 37))
    return _sample("bert", *([rng.integers(5, 250, s), np.ones(s, np.int64)] for s in sizes))


def _quantized() -> Compiled:
    compiled = _sample("quantized-conv")
    entries = compiled.compile("cpu").metadata["inputs"]
    rng = np.random.default_rng(4)
    shapes = [[2 if n == "batch" else int(n) for n in entry["shape"]] for entry in entries]
    given = [rng.standard_normal(s).astype(e["dtype"]) for s, e in zip(shapes, entries, strict=True)]
    return Compiled(compiled.compile, [given])


def _int8(model: Any, samples: list[np.ndarray], **options: Any) -> Compiled:
    """A model of 8-bit integers by `tilewright.quantize`."""
    quantized = tw.quantize(model, samples, **options)
    return Compiled(
        lambda target: tw.compile(quantized, target=target, cache=False),
        [[x] for x in samples[:2]],
        exact=True,
    )


def _int8_mlp() -> Compiled:
    nn.seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 100), nn.ReLU(), nn.Linear(100, 10))
    rng = np.random.default_rng(6)
    return _int8(model, [rng.standard_normal((5, 64)).astype(np.float32) for _ in range(8)])


def _int8_cnn(**options: Any) -> Compiled:
    """Convolutions with a shortcut, of which one is depthwise, poolings, and a linear layer."""
    nn.seed(0)
    rng = np.random.default_rng(7)
    return _int8(
        Residual(), [rng.standard_normal((2, 3, 18, 18)).astype(np.float32) for _ in range(8)], **options
    )


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.shortcut, self.scores = nn.Conv2d(24, 24, 1), nn.Linear(24, 7)

    def forward(self, x: tw.Tensor) -> tw.Tensor:
        x = nn.functional.max_pool(nn.functional.relu(self.first(x)), 2)
        x = nn.functional.relu(self.depthwise(self.second(x)) + self.shortcut(x))
        return self.scores(x.mean((2, 3)))


def _int8_mobilenet() -> Compiled:
    entry = LISTED["mobilenet_v2"]
    (shape,) = (np.shape(value) for value in entry.inputs("tiny").values())
    rng = np.random.default_rng(8)
    samples = [rng.standard_normal(shape).astype(np.float32) for _ in range(4)]
    return _int8(entry.onnx_model("tiny"), samples)


def _language_model(tokens: int = 0) -> Compiled:
    """The logits of the small model of the examples, for 24 tokens, or `tokens` more that it generates."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(SMALL_MODEL, dtype=torch.float32).eval()

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids, use_cache=False).logits

    ids = np.random.default_rng(5).integers(3, model.config.vocab_size, (1, 24))
    length = {"ids": {1: torch.export.Dim("length", min=2, max=64)}} if tokens else None
    exported = torch.export.export(Logits(), (torch.from_numpy(ids),), dynamic_shapes=length)
    return Compiled(lambda target: tw.compile(exported, target=target, cache=False), [[ids]], tokens=tokens)


def _quantized_language_model(scheme: str, tokens: int) -> Compiled:
    """As `_language_model`, with weights in a quantization `scheme`."""
    from tilewright.llm.load_model import model_of
    from tilewright.llm.weights import Conversion, convert, open_checkpoint

    folder = temporary.folder() / scheme
    convert(SMALL_MODEL, folder, Conversion(scheme))
    model = model_of(open_checkpoint(folder))
    assert isinstance(model, CausalLM)
    ids = np.random.default_rng(5).integers(3, model.config.vocabulary, (1, 24))

    def logits(ids: tw.Tensor) -> tw.Tensor:
        return model.head(model.states(ids))

    def compiled(target: str) -> Any:
        return tw.compile(logits, (ids,), dims={"ids": {1: "length<=64"}}, target=target, cache=False)

    return Compiled(compiled, [[ids]], tokens=tokens)


def _generated(library: Any, ids: np.ndarray, tokens: int) -> np.ndarray:
    """A row of tokens with `tokens` more, each the one with the largest logit."""
    for _ in range(tokens):
        ids = np.concatenate([ids, np.argmax(library(ids)[:, -1], -1, keepdims=True)], 1)
    return ids


MODELS: dict[str, Callable[[], Compiled]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "lstm": _lstm,
    "transformer": _transformer,
    "quantized": _quantized,
    "int8-mlp": _int8_mlp,
    "int8-cnn": _int8_cnn,
    "int8-cnn-signed": lambda: _int8_cnn(activations="symmetric"),
    "int8-mobilenet_v2": _int8_mobilenet,
    "mobilenet_v2": lambda: _from_zoo("mobilenet_v2", "full"),
    "minilm": lambda: _from_zoo("minilm", "tiny"),
    "language-model": _language_model,
    "generated-tokens": partial(_language_model, 16),
    "generated-tokens-int4": partial(_quantized_language_model, "int4_g32", 16),
    "generated-tokens-int8": partial(_quantized_language_model, "int8", 16),
}


@cache
def expected(name: str) -> tuple[Compiled, list[list[np.ndarray]]]:
    """A model, and its results on `cpu`."""
    model = MODELS[name]()
    with model.compile("cpu") as library:
        if model.tokens:
            return model, [[_generated(library, *arrays, model.tokens)] for arrays in model.inputs]
        results = [library(*arrays) for arrays in model.inputs]
    return model, [list(r) if isinstance(r, tuple) else [r] for r in results]


def compared(found: list[list[np.ndarray]], wanted: list[list[np.ndarray]], exact: bool) -> str:
    """``ok`` with the largest relative difference of results, or what is wrong."""
    worst = 0.0
    for got, want in zip(
        (a for r in found for a in r), (np.asarray(a) for r in wanted for a in r), strict=True
    ):
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        if want.dtype.kind in "iub" or exact:
            if not np.array_equal(got, want):
                return f"{np.count_nonzero(got != want)} of {want.size} numbers differ"
            continue
        scale = float(np.abs(want.astype(np.float64)).max()) or 1.0
        error = float(np.abs(got.astype(np.float64) - want).max()) / scale
        if not error <= TOLERANCE:
            return f"differs by {error:.1e} of the largest result"
        worst = max(worst, error)
    return f"ok {worst:.1e}"


def difference(name: str, target: str, guarded: bool = False) -> str:
    """``ok`` with the largest relative difference of a model's results on a target from those on `cpu`, or
    what is wrong. With `guarded`, memory ends where the model's data end (`run_model`).
    """
    model, wanted = expected(name)
    with model.compile(target) as library:
        found = run_model(library, target, model.inputs, tokens=model.tokens, guarded=guarded)
    return compared(found, wanted, model.exact)


__all__ = ["MODELS", "Compiled", "compared", "difference", "expected"]
