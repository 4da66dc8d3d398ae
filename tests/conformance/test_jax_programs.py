"""Runs all JAX programs and half of their gradients on the interpreter, and compiles a few. `python -m
tests.conformance.jax_programs` compiles all.
"""

from __future__ import annotations

import json

import pytest

pytest.importorskip("jax")

from . import jax_library
from .jax_programs import DATA, PROGRAMS, gradient, outcome


@pytest.mark.parametrize("name", PROGRAMS)
def test_interpreted(name: str) -> None:
    function, args = PROGRAMS[name]
    assert outcome(function, args, native=False) == "pass"
    backward = gradient(name) if function.__module__ != jax_library.__name__ else None
    assert backward is None or outcome(backward, args, native=False) == "pass"


@pytest.mark.parametrize("name", ["scan_rnn", "scatter", "fourier", "complex_numbers", "solve"])
def test_compiled(name: str) -> None:
    function, args = PROGRAMS[name]
    assert outcome(function, args, native=True) == "pass"


def test_all_passed() -> None:
    assert json.loads(DATA.read_text())["not_passed"] == {}
