"""The engine with a compiled model: what a request gets does not depend on what else is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.llm.small_tokenizer import tokenizer  # noqa: E402
from tilewright.llm.engine.engine import Engine, Options  # noqa: E402
from tilewright.llm.engine.sampling import SamplingParameters  # noqa: E402
from tilewright.llm.engine.stream import Request  # noqa: E402
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library  # noqa: E402
from tilewright.llm.weights import Conversion, convert  # noqa: E402


@pytest.fixture(scope="module", params=("none", "int4_g32"))
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LibraryRunner]:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=tokenizer().vocabulary, max_position_embeddings=512,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    folder: Path = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    if request.param != "none":
        convert(folder, folder / "converted", Conversion(request.param))
        folder = folder / "converted"
    with compile_library(folder, LibraryOptions(context=256, chunk=64, max_batch=6)) as library:
        yield LibraryRunner(library)


def requests() -> list[Any]:
    """Prompts that begin alike, of different lengths."""
    rng = np.random.default_rng(0)
    shared = rng.integers(5, tokenizer().vocabulary, 100).tolist()
    sampling = SamplingParameters(temperature=0)
    lengths = (3, 70, 100, 130, 20, 90, 64, 1, 110, 128)
    return [
        Request(
            prompt=(shared + rng.integers(5, tokenizer().vocabulary, 60).tolist())[:n], sampling=sampling, max_tokens=12
        )
        for n in lengths
    ]


def test_output_under_load_is_output_alone(runner: LibraryRunner) -> None:
    """More requests than the batch takes, prompts that begin alike, other chunks."""
    alone = [Engine(runner, tokenizer()).submit(r).collect()[0].tokens for r in requests()]
    engine = Engine(runner, tokenizer(), Options(chunk=32))
    streams = [engine.submit(r) for r in requests()]
    assert [s.collect()[0].tokens for s in streams] == alone
