"""A sample of the damaged and hostile files; `python -m tests.conformance.mutated_files` runs all."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("limits of memory and the fork of a loaded process need Linux", allow_module_level=True)

from . import stablehlo_mutations
from .mutated_files import COUNT, load_frameworks, outcome
from .mutations import ATTACKS, BUILT, BYTES, GENERAL_ONNX, GENERAL_PT2, PROGRAMS, STABLEHLO, TEXTS, Mutation


@pytest.fixture(scope="module", autouse=True)
def frameworks() -> None:
    load_frameworks()


@pytest.mark.parametrize("kind", [k for k in BUILT if k.startswith("external")])
def test_external_data_stays_in_the_folder(kind: str) -> None:
    assert outcome(Mutation(0, "built", kind), native=False).startswith("refused: ")


@pytest.mark.parametrize("kind", ["self call", "mutual calls", "many calls", "deep calls", "deep branches"])
def test_nesting_is_bounded(kind: str) -> None:
    assert outcome(Mutation(0, "built", kind), native=False).startswith("refused: ")


@pytest.mark.parametrize("kind", ["sparse terabytes", "range", "one hot", "tile", "resize", "shape overflow"])
def test_declared_sizes_allocate_nothing(kind: str) -> None:
    assert not outcome(Mutation(0, "built", kind), native=False).startswith("BAD")


@pytest.mark.parametrize("kind", [k for k in ATTACKS if k != "guards"])
def test_programs_run_no_code(kind: str) -> None:
    assert outcome(Mutation(0, "mlp.pt2", kind), native=False).startswith("refused: ")


@pytest.mark.parametrize("base", [*TEXTS, *PROGRAMS])
def test_the_undamaged_files_compile(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The undamaged files are imported without error, so a refusal of a mutated file is due to its damage."""
    monkeypatch.setitem(GENERAL_ONNX, "none", lambda rng, model: model.SerializeToString())
    monkeypatch.setitem(GENERAL_PT2, "none", lambda rng, data: data)
    assert outcome(Mutation(0, base, "none"), native=False) == "compiled"


@pytest.mark.parametrize("base", stablehlo_mutations.PROGRAMS)
def test_the_undamaged_stablehlo_compiles(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jaxlib")
    monkeypatch.setitem(stablehlo_mutations.TEXT, "none", lambda rng, text: text)
    monkeypatch.setitem(BYTES, "none", lambda rng, data: data)
    assert outcome(Mutation(STABLEHLO, f"{base}.mlir", "none"), native=False) == "compiled"
    assert outcome(Mutation(STABLEHLO, f"{base} bytecode", "none"), native=False) == "compiled"


@pytest.mark.parametrize("kind", stablehlo_mutations.BUILT)
def test_hostile_stablehlo(kind: str) -> None:
    pytest.importorskip("jaxlib")
    assert not outcome(Mutation(STABLEHLO, "stablehlo", kind), native=False).startswith("BAD")


def test_a_sample_of_random_damage() -> None:
    for number in range(80, COUNT if stablehlo_mutations.readable() else STABLEHLO, 60):
        found = outcome(Mutation.numbered(number), native=False)
        assert not found.startswith("BAD"), (number, found)
