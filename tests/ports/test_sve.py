"""AArch64's SVE with registers of a known width: models in QEMU, and the refusal of another width."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

from ..differential.check import check
from .emulators import NoEmulator, command_of, run_for, run_model
from .models import difference

WIDTHS = [256, 512]
X = np.linspace(-4, 4, 3 * 37, dtype=np.float32).reshape(3, 37)


def needs_emulator() -> None:
    try:
        command_of("aarch64-linux")
    except NoEmulator as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "name",
    ["mlp", "int8-cnn", *(pytest.param(n, marks=pytest.mark.slow) for n in ("cnn", "lstm", "transformer"))],
)
def test_models_have_the_results_of_cpu(name: str, width: int) -> None:
    needs_emulator()
    assert difference(name, f"aarch64-linux:sve{width}+dotprod+i8mm+bf16").startswith("ok")


@pytest.mark.parametrize("width", WIDTHS)
def test_random_programs(width: int) -> None:
    needs_emulator()
    assert check(width, run_for(f"aarch64-linux:sve{width}")) is None


@pytest.mark.parametrize("width", WIDTHS)
def test_masks_of_wide_integers(width: int) -> None:
    """Comparisons of 64-bit integers choose 32-bit numbers and bytes, in vectors and in their rest."""
    needs_emulator()
    target = f"aarch64-linux:sve{width}"
    numbers = (np.arange(37, dtype=np.int64) * 7919) % 41 - 20

    def model(x: Any, k: Any) -> Any:
        chosen = tw.numpy.where(k > 3, x, -x)
        return chosen, tw.numpy.where(k < x.astype("int64"), k, 2 * k), (k >= 0).astype("int8")

    library = tw.compile(model, (X, numbers), target=target, cache=False)
    (found,) = run_model(library, target, [[X, numbers]])
    for actual, wanted in zip(found, tw.compile(model, (X, numbers), target="cpu")(X, numbers), strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("aarch64-linux:sve256", "max,sve=off", "with 'sve', but the processor does not have it"),
        (
            "aarch64-linux:sve256",
            "max,sve512=on,sve-default-vector-length=64",
            "with 'sve256', but the processor's registers of SVE have another width",
        ),
        (
            "aarch64-linux:sve512",
            "max,sve256=on,sve-default-vector-length=32",
            "with 'sve512', but the processor's registers of SVE have another width",
        ),
    ],
)
def test_other_processors_are_refused(
    target: str, options: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is not run, which would end in an illegal instruction or in wrong numbers."""
    needs_emulator()
    emulator, _, _, *rest = command_of(target)
    monkeypatch.setattr("tests.ports.emulators.command_of", lambda _: [emulator, "-cpu", options, *rest])
    library = tw.compile(lambda x: x * 2, (X,), target=target, cache=False)
    with pytest.raises(RuntimeError, match=message):
        run_model(library, target, [[X]])
