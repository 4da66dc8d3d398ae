"""Warnings at compile time about abilities that a library lacks, and the metadata about its source."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

from click.testing import CliRunner  # noqa: E402

from tests.llm.small_library import checkpoint  # noqa: E402
from tests.llm.small_tokenizer import byte_level  # noqa: E402
from tests.llm.weights.gguf_files import gguf_of  # noqa: E402
from tests.llm.weights.models import folder_of, small_model  # noqa: E402
from tilewright.cli.llm import command  # noqa: E402
from tilewright.errors import CompileError, WeightsError  # noqa: E402
from tilewright.llm import library  # noqa: E402
from tilewright.llm.library import LibraryOptions, compile_library, missing_files  # noqa: E402
from tilewright.llm.weights import Conversion, convert, open_checkpoint  # noqa: E402
from tilewright.llm.weights.safetensors import read_safetensors  # noqa: E402

SMALL = LibraryOptions(context=64, chunk=16, max_batch=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("llama"), vocabulary=100)


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], dict[str, Any]]:
    """A function that returns the metadata of a library without compiling it."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(
        library, "compile", lambda *_, extra_metadata, **__: seen.append(extra_metadata["llm"])
    )

    def describe(source: Any) -> dict[str, Any]:
        compile_library(source, SMALL)
        return seen[-1]

    return describe


@pytest.mark.parametrize(("kind", "scheme"), [("Q4_0", "int4_g32"), ("Q8_0", "int8_g32"), ("F16", "none")])
def test_quantization_of_a_gguf_file(kind: str, scheme: str, tmp_path: Path, described: Any) -> None:
    model = small_model("llama", intermediate_size=128)
    path = gguf_of(folder_of(model, tmp_path / "hf"), tmp_path / "m.gguf", kind)
    assert described(path)["quantization"] == scheme
    assert (
        described(convert(open_checkpoint(path), tmp_path / "kept", Conversion("none")))["quantization"]
        == scheme
    )
    assert (
        described(convert(open_checkpoint(path), tmp_path / "bf16", Conversion("bf16")))["quantization"]
        == "bf16"
    )


def test_a_model_that_sees(tmp_path: Path, described: Any) -> None:
    """Processes that share a model leave its encoder out, which is told; otherwise nothing is left out."""
    text = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "query_pre_attn_scalar": 16,
    }
    seeing = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(text_config=text, vision_config=seeing, mm_tokens_per_image=4)
    folder_of(transformers.Gemma3ForConditionalGeneration(config), tmp_path / "both")
    with pytest.warns(UserWarning, match=r"does not support images, which the model in .*both takes"):
        compile_library(tmp_path / "both", replace(SMALL, tensor_parallel=2))
    folder_of(small_model("gemma3_text"), tmp_path / "text")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        described(tmp_path / "both")
        described(tmp_path / "text")
    config_file = tmp_path / "both" / "config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), "model_type": "unknown"}))
    with pytest.raises(CompileError, match=r"no model definition for 'unknown', which wraps a 'gemma3_text'"):
        described(tmp_path / "both")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_that_are_not_finite(value: float, dtype: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = {"good": torch.full((700, 500), 3.0), "bad": torch.full((700, 500), 3.0)}
    weights["bad"][699, 499] = value
    save_file({name: w.to(getattr(torch, dtype)) for name, w in weights.items()}, tmp_path / "m.safetensors")
    tensors, _ = read_safetensors(tmp_path / "m.safetensors")
    assert (tensors["good"].read() == 3).all() and (tensors["good"].transpose().read() == 3).all()
    for tensor in (tensors["bad"], tensors["bad"].transpose()):
        with pytest.raises(WeightsError, match="bad: holds values that are not finite"):
            tensor.read()


def test_compiling_weights_that_are_not_finite(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, tmp_path / "bad")
    file = tmp_path / "bad" / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.1.mlp.up_proj.weight"][5, 7] = float("nan")
    save_file(weights, file)
    with pytest.raises(WeightsError, match=r"layers\.1\.mlp\.up_proj\.weight.*not finite"):
        compile_library(tmp_path / "bad", SMALL, opt="O0")


def test_files_that_are_missing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path / "model")
    (line,) = missing_files(open_checkpoint(tmp_path / "model"))
    assert "has no tokenizer.json" in line
    with pytest.warns(UserWarning, match=r"has no tokenizer\.json: `llm chat` and `llm serve` need one"):
        monkeypatch.setattr(library, "compile_library", lambda *_, **__: None)
        CliRunner().invoke(command, ["compile", str(tmp_path / "model"), "-o", str(tmp_path / "m.so")])
    byte_level(100).save(str(tmp_path / "model" / "tokenizer.json"))
    (line,) = missing_files(open_checkpoint(tmp_path / "model"))
    assert "has no chat template" in line and "--chat-template FILE" in line
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    assert missing_files(open_checkpoint(tmp_path / "model")) == []


def test_locations_name_the_definition(folder: Path, described: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locations of operators name the model's definition, and not the code that calls the compiler."""
    modules: list[Any] = []
    monkeypatch.setattr(library, "compile", lambda module, **_: modules.append(module))
    compile_library(folder, SMALL)
    found = [op.location for op in modules[0].walk() if op.location.file]
    assert len(found) > 100 and {location.file.rpartition("/")[0] for location in found} == {
        "tilewright/llm",
        "tilewright/llm/models",
    }
    source = (Path(library.__file__).parents[2] / "tilewright/llm/layers.py").read_text().splitlines()
    lines = {source[location.line - 1] for location in found if location.file.endswith("/layers.py")}
    assert any("down_proj(" in line for line in lines)
    named = [
        str(location) for location in found if location.name.startswith("model.layers.1.self_attn.q_proj")
    ]
    assert named and all("(tilewright/llm/" in name for name in named)
