"""Models on Hexagon, in QEMU: programs with musl that the static libraries are linked into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw

from .emulators import NoEmulator, command_of, run_model
from .models import difference

TARGET = "hexagon-linux"


def needs_emulator() -> None:
    try:
        command_of(TARGET)
    except NoEmulator as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "name",
    ["mlp", "int8-cnn", *(pytest.param(n, marks=pytest.mark.slow) for n in ("cnn", "lstm", "transformer"))],
)
def test_models_have_the_results_of_cpu(name: str) -> None:
    needs_emulator()
    assert difference(name, TARGET).startswith("ok")


@pytest.mark.parametrize("name", ["int8-cnn", pytest.param("int8-mlp", marks=pytest.mark.slow)])
def test_models_in_vectors_have_the_results_of_cpu(name: str) -> None:
    needs_emulator()
    assert difference(name, f"{TARGET}:hvx").startswith("ok")


def test_errors_have_the_text_of_the_runtime() -> None:
    """The text is in memory of the thread that has no thread-local variable."""
    needs_emulator()
    x = np.ones((2, 8), np.float32)
    library = tw.compile(lambda x: x * 2, (x,), target=TARGET, cache=False)
    with pytest.raises(RuntimeError, match="input 'x' has size 3 in dimension 0, expected 2"):
        run_model(library, TARGET, [[np.ones((3, 8), np.float32)]])


def test_shared_libraries_have_no_thread_local_variables(tmp_path: Path) -> None:
    """Accesses to them call a function through an entry of the table of procedures that the linker leaves
    empty.
    """
    lief = pytest.importorskip("lief")
    x = np.ones((2, 8), np.float32)
    with tw.compile(lambda x: x * 2, (x,), target=TARGET, cache=False) as library:
        binary = lief.ELF.parse(str(library.save(tmp_path / "model.so")))
    assert binary.libraries == ["libc.so"]
    assert "__tls_get_addr" not in {symbol.name for symbol in binary.imported_symbols}
    assert "TLS" not in {segment.type.name for segment in binary.segments}
