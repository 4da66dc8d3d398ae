"""The model that all engines run: a GGUF file of Llama's shape with random weights, the same for the same
seed, or with a given model's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from . import k_quants

SEED = 0


@dataclass(frozen=True)
class Format:
    """A format of matrices in GGUF: its name, that of files of this type, and the bytes of a weight.

    `encode` makes the bytes of the format from float32; None: by the package ``gguf``.
    """

    name: str
    file: str
    size: float
    encode: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None = None


FORMATS = {
    "int4": Format("Q4_0", "MOSTLY_Q4_0", 18 / 32),
    "bf16": Format("BF16", "MOSTLY_BF16", 2),
    "q4_k": Format("Q4_K", "MOSTLY_Q4_K_S", 144 / 256, k_quants.q4_k),
    "q6_k": Format("Q6_K", "MOSTLY_Q6_K", 210 / 256, k_quants.q6_k),
    "mxfp4": Format("MXFP4", "MOSTLY_MXFP4_MOE", 17 / 32),
    "f16": Format("F16", "MOSTLY_F16", 2),
}
"""Formats of matrices in the file, by precision. Q4_0 has 4-bit weights in groups of 32 with a float16
scale.
"""


@dataclass(frozen=True)
class Size:
    """A Llama's shape and the measured lengths: tokens of a prompt, of a short and of a long context."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    prompt: int
    context: tuple[int, int]
    users: int = 8
    steps: int = 16
    epsilon: float = 1e-5
    theta: float = 1e4
    tied: bool = False
    """Whether the embedding is the output's matrix, too."""

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def held(self) -> int:
        """Largest number of tokens of one sequence, in whole pages."""
        return -(-(max(*self.context, self.prompt) + self.steps + 2) // 64) * 64

    @property
    def cached(self) -> int:
        """Tokens of all sequences together that a cache must hold, in whole pages."""
        return max(self.held, self.users * -(-(self.context[0] + self.steps + 2) // 64) * 64)

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Shapes [out, in] of the matrices, by their names in GGUF."""
        d, kv = self.hidden, self.kv_heads * self.head_dim
        shapes = dict.fromkeys(("token_embd", "output")[: 2 - self.tied], (self.vocabulary, d))
        for i in range(self.layers):
            shapes |= {f"blk.{i}.{name}": shape for name, shape in {
                "attn_q": (d, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, d),
                "ffn_gate": (self.ffn, d), "ffn_up": (self.ffn, d), "ffn_down": (d, self.ffn),
            }.items()}  # fmt: skip
        return shapes

    def norms(self) -> list[str]:
        return [
            "output_norm",
            *(f"blk.{i}.{name}" for i in range(self.layers) for name in ("attn_norm", "ffn_norm")),
        ]

    def multiplied(self) -> int:
        """Weights that a token is multiplied with: all matrices but the embeddings, unless they are the
        output's.
        """
        return sum(m * n for name, (m, n) in self.matrices().items() if self.tied or name != "token_embd")

    def step_bytes(self, precision: str, batch: int, held: float) -> float:
        """Bytes that a decoding step must read: the weights, and keys and values (16 bits) of `held` tokens
        of each sequence.
        """
        weights = self.multiplied() * FORMATS[precision].size
        return weights + batch * held * 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def flops(self, tokens: int) -> float:
        """Operations of the products with weights for `tokens` tokens; the head counts for the last token
        only.
        """
        head = self.vocabulary * self.hidden
        return 2.0 * ((self.multiplied() - head) * tokens + head)


SIZES = {
    "1b": Size(2048, 16, 32, 8, 8192, 32000, prompt=256, context=(64, 1024)),
    "300m": Size(1024, 16, 16, 8, 4096, 32000, prompt=256, context=(64, 256)),
    "tiny": Size(128, 1, 4, 2, 256, 512, prompt=32, context=(16, 64), users=4, steps=3),
}


def kept_or_temporary(folder: Path | None) -> AbstractContextManager[str | Path]:
    """The folder that keeps models and libraries for the next run; without one, a temporary folder."""
    return TemporaryDirectory() if folder is None else nullcontext(folder)


def prompts(size: Size, tokens: int, count: int = 1, number: int = 0) -> list[list[int]]:
    """Random prompts; others for another `number`."""
    random = np.random.default_rng([SEED, 1, tokens, number])
    return random.integers(2, size.vocabulary, (count, tokens)).tolist()


def matrix(size: Size, name: str) -> np.ndarray[Any, Any]:
    """A matrix in float32 [out, in] with values that bf16 can represent. Products keep the variance of their
    input; the contribution of a layer shrinks with the number of layers.
    """
    shapes = size.matrices()
    random = np.random.default_rng([SEED, 0, list(shapes).index(name)])
    rows, columns = shapes[name]
    scale = columns**-0.5 * ((2 * size.layers) ** -0.5 if name.endswith(("attn_output", "ffn_down")) else 1)
    values = random.standard_normal((rows, columns), np.float32)
    values *= scale
    bits = values.view(np.uint32)
    bits += 1 << 15
    bits &= 0xFFFF0000
    return values


@dataclass(frozen=True)
class Source:
    """Where a file's contents come from."""

    tensor: Callable[[str], np.ndarray[Any, Any]]
    """A matrix [out, in] or a norm's weights [n], in float32, by its name in GGUF."""
    add_tokenizer: Callable[[Any], None]
    """Adds the tokenizer to a writer of the package ``gguf``."""


def random_source(size: Size) -> Source:
    """Random matrices, norms of ones, and a tokenizer made up for the vocabulary."""
    norms = set(size.norms())

    def tensor(name: str) -> np.ndarray[Any, Any]:
        return np.ones(size.hidden, np.float32) if name in norms else matrix(size, name)

    return Source(tensor, lambda writer: _add_tokenizer(writer, size.vocabulary))


def write(size: Size, precision: str, path: Path, source: Source | None = None) -> None:
    """Write the file, one matrix at a time; the default of `source` is `random_source`."""
    import gguf

    source = source or random_source(size)

    format = FORMATS[precision]
    form = gguf.GGMLQuantizationType[format.name]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_file_type(gguf.LlamaFileType[format.file])
    writer.add_block_count(size.layers)
    writer.add_context_length(max(2048, size.held))
    writer.add_embedding_length(size.hidden)
    writer.add_feed_forward_length(size.ffn)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.kv_heads)
    writer.add_key_length(size.head_dim)
    writer.add_value_length(size.head_dim)
    writer.add_layer_norm_rms_eps(size.epsilon)
    writer.add_rope_freq_base(size.theta)
    writer.add_rope_dimension_count(size.head_dim)
    writer.add_vocab_size(size.vocabulary)
    source.add_tokenizer(writer)
    for name in size.norms():
        writer.add_tensor_info(f"{name}.weight", (size.hidden,), np.dtype(np.float32), 4 * size.hidden)
    for name, (rows, columns) in size.matrices().items():
        shape = gguf.quant_shape_to_byte_shape((rows, columns), form)
        writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.uint8), int(np.prod(shape)), form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name in size.norms():
        writer.write_tensor_data(source.tensor(name))
    for name in size.matrices():
        values = source.tensor(name)
        writer.write_tensor_data(format.encode(values) if format.encode else gguf.quantize(values, form))
    writer.close()


def _add_tokenizer(writer: Any, vocabulary: int) -> None:
    """A tokenizer like GPT-2's: two special tokens, the bytes, and pairs of bytes up to the size of the
    vocabulary.
    """
    from gguf import TokenType

    bytes_ = list(_byte_characters())
    pairs = [(a, b) for a in bytes_ for b in bytes_][: vocabulary - 258]
    tokens = ["<s>", "</s>", *bytes_, *(a + b for a, b in pairs)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges([f"{a} {b}" for a, b in pairs])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)


def _byte_characters() -> Iterator[str]:
    """The printable characters that stand for bytes in tokenizers of this kind."""
    others = 256
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        yield chr(byte if printable else others)
        others += not printable
