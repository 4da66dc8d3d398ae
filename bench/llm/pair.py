"""A model and a draft model of a quarter of its size, trained on the same text: modules of Python's standard
library. Training takes some minutes; the checkpoints are kept in a folder.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 1024
LENGTH = 64
"""Tokens of a sequence in training."""
_NAMES = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"
SHAPES = {
    "model": dict(zip(_NAMES, (384, 1024, 8, 4), strict=True)),
    "draft": dict(zip(_NAMES, (320, 1024, 2, 4), strict=True)),
}
"""Shapes of Llamas of 13.4 and 2.9 million parameters."""
LEFT_OUT = ("argparse.py", "tarfile.py", "textwrap.py", "queue.py")
"""Modules whose beginnings are prompts; no model is trained on them."""


COUNT = 24
"""The number of modules on which the models are trained."""


def modules() -> list[Path]:
    """The first modules of the standard library in the order of their names, and those that are left out."""
    found = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    known = [path for path in found if path.name not in LEFT_OUT][:COUNT]
    return [*known, *(path for path in found if path.name in LEFT_OUT)]


def pair(folder: Path, steps: int) -> dict[str, Path]:
    """The folders of the checkpoints, which are trained for `steps` steps where they do not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = _tokenizer(folder / "tokenizer.json")
    for name, shape in SHAPES.items():
        if not (folder / name / "config.json").exists():
            _train(folder / name, shape, steps, backend)
    return {name: folder / name for name in SHAPES}


def prompts(folder: Path, tokens: int) -> list[list[int]]:
    """The beginnings of modules on which the models were not trained."""
    backend = _tokenizer(folder / "tokenizer.json")
    found = [backend.encode(path.read_text()).ids[:tokens] for path in modules() if path.name in LEFT_OUT]
    return [prompt for prompt in found if len(prompt) == tokens]


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if path.exists():
        return Tokenizer.from_file(str(path))
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train([str(path) for path in modules()], trainer)
    backend.save(str(path))
    return backend


def _train(folder: Path, shape: dict[str, int], steps: int, backend: Any) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    texts = [path.read_text() for path in modules() if path.name not in LEFT_OUT]
    tokens = torch.tensor(np.concatenate([part.ids for part in backend.encode_batch(texts)]))
    config = transformers.LlamaConfig(
        **shape,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        starts = torch.randint(len(tokens) - LENGTH, (8, 1))
        batch = tokens[starts + torch.arange(LENGTH)]
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            print(f"{folder.name}, step {step}: loss {loss.item():.2f}", flush=True)
    model.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


__all__ = ["pair", "prompts"]
