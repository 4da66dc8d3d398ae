"""The programs of docs/llm/engine.md run."""

from __future__ import annotations

import json

import pytest
from tests.docs.pages import run_page
from tests.llm.fake_runner import FakeRunner
from tests.llm.small_tokenizer import tokenizer


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    runner = FakeRunner(vocabulary=tokenizer().vocabulary)
    runner.bias[tokenizer().encode("}")] = 12  # Makes the model finish its output.
    names = run_page("llm/engine.md", runner=runner, tokenizer=tokenizer())
    assert capsys.readouterr().out
    assert isinstance(json.loads(names["answer"].text)["age"], int)
    assert "</think>" in names["thought"].text
