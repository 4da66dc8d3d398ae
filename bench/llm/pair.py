"""A model and a draft model of a quarter of its size, both trained on a few modules of Python's standard
library until they know them. Training takes some minutes; the checkpoints are kept in a folder.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 1024
LENGTH, BATCH = 512, 2
"""Tokens of a sequence in training, and sequences of a step."""
RATE = 1e-3
"""The largest learning rate."""
PROMPT = 128
_NAMES = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"
SHAPES = {
    "model": dict(zip(_NAMES, (640, 1792, 10, 10), strict=True)),
    "draft": dict(zip(_NAMES, (640, 1792, 2, 10), strict=True)),
}
"""Shapes of Llamas of 44.9 and 9.5 million parameters."""
LEFT_OUT = ("argparse.py", "tarfile.py", "textwrap.py", "queue.py")
"""Modules on which no model is trained."""
COUNT = 4
"""The number of modules on which the models are trained."""
SIZES = range(5_000, 16_000)
"""Their bytes."""


def modules() -> list[Path]:
    """The first modules of these sizes in the order of their names, and those that are left out."""
    found = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    known = [path for path in found if path.name not in LEFT_OUT and path.stat().st_size in SIZES][:COUNT]
    return [*known, *(path for path in found if path.name in LEFT_OUT)]


def pair(folder: Path, steps: int) -> dict[str, Path]:
    """The folders of the checkpoints, which are trained for `steps` steps where they do not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = _tokenizer(folder / "tokenizer.json")
    paths = {name: folder / name for name in SHAPES}
    for name, path in paths.items():
        if not (path / "config.json").exists():
            _save(_trained(name, steps, backend), backend, path)
    return paths


def prompts(folder: Path, seen: bool) -> list[list[int]]:
    """The beginnings of modules on which the model was trained, or of those on which it was not."""
    backend = _tokenizer(folder / "tokenizer.json")
    texts = [path.read_text() for path in modules() if (path.name not in LEFT_OUT) == seen]
    found = [backend.encode(text).ids[:PROMPT] for text in texts]
    return [prompt for prompt in found if len(prompt) == PROMPT]


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


def _text(backend: Any) -> Any:
    """The tokens of the training text."""
    import torch

    texts = [path.read_text() for path in modules() if path.name not in LEFT_OUT]
    return torch.tensor(np.concatenate([part.ids for part in backend.encode_batch(texts)]))


def training_tokens(folder: Path) -> int:
    """The number of tokens of the training text."""
    return len(_text(_tokenizer(folder / "tokenizer.json")))


def _new(name: str) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SHAPES[name],
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    return transformers.LlamaForCausalLM(config)


def _trained(name: str, steps: int, backend: Any) -> Any:
    """A model, trained on passages of the text, in bfloat16 with float32 master weights."""
    import torch

    import tilewright as tw

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = _new(name)

        def forward(self, tokens: Any) -> Any:
            return self.model(tokens, use_cache=False).logits.flatten(0, 1)

    scores, text = Scores(), _text(backend)

    def batch() -> tuple[Any, Any]:
        rows = text[torch.randint(len(text) - LENGTH, (BATCH, 1)) + torch.arange(LENGTH + 1)]
        return rows[:, :-1].contiguous(), rows[:, 1:].flatten()

    rule = tw.optim.AdamW(lr=tw.optim.lr_scheduler.OneCycleLR(RATE, steps, pct_start=0.1), weight_decay=0.01)
    step = tw.train_step(scores, torch.nn.CrossEntropyLoss(), rule, batch(), precision="bf16", clip=1.0)
    for at in range(steps):
        loss = float(step(*batch()))
        if at % 50 == 0 or at == steps - 1:
            print(f"{name}, step {at}: loss {loss:.3f}", flush=True)
    step.sync()
    return scores.model


def _save(model: Any, backend: Any, folder: Path) -> None:
    import transformers

    model.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


__all__ = ["PROMPT", "pair", "prompts", "training_tokens"]
