"""Feature sets by name: they may be forced for the target ``cpu``, and are emulated where this machine lacks
their instructions.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import llvmlite.binding as llvm
import pytest

from tilewright.errors import CompileError
from tilewright.targets.cpu.isa import FORCED, X86_64_V4, isa_named

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="feature sets of x86-64"
)

EVERYTHING = "x86-64-v4+avx512vnni+avx512bf16+avxvnni+amx-tile+amx-bf16+amx-int8"

PRODUCT = """
import numpy as np
import tilewright as tw
from tilewright.targets.cpu.isa import host_isa

def model(x):
    return tw.numpy.maximum(x @ weights, 0)

rng = np.random.default_rng(0)
weights = tw.Tensor(rng.standard_normal((64, 48)).astype(np.float32))
x = rng.standard_normal((40, 64)).astype(np.float32)
library = tw.compile(model, (x,), precision="bf16", cache=False)
y = np.maximum(x @ np.asarray(weights), 0)
assert np.abs(library(x) - y).max() < 0.02 * np.abs(y).max()
print("tdpbf16ps" in library.ir("llvm"), *host_isa().emulated)
"""


def test_features_beside_a_level() -> None:
    isa = isa_named("cpu:x86-64-v4+avx512vnni+avx512bf16")
    assert set(isa.features) - set(X86_64_V4.features) == {"+avx512vnni", "+avx512bf16"}
    assert isa.bf16
    assert not isa.tiles
    assert isa_named(f"cpu:{EVERYTHING}").tiles


@pytest.mark.parametrize(
    ("name", "message"),
    (
        ("cpu:x86-64-v5", "unknown instruction set 'x86-64-v5'"),
        ("cpu:x86-64-v4+avx1024", "unknown feature 'avx1024' of x86-64-v4; known: avx512bf16"),
        ("cpu:x86-64-v3+avx512vnni", "avx512vnni needs x86-64-v4"),
        ("aarch64-linux:gfni", "unknown feature 'gfni' of aarch64-linux; known: dotprod, i8mm, bf16"),
        ("x86_64-windows:x86-64-v9", "unknown feature 'x86-64-v9' of x86_64-windows; known: x86-64-v2"),
    ),
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(CompileError, match=message.replace("+", r"\+")):
        isa_named(name)


def run(forced: str, program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, FORCED: forced}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("forced", ("x86-64-v3", "x86-64-v4", EVERYTHING))
def test_a_forced_feature_set(forced: str) -> None:
    """A kernel for a forced feature set is compiled, linked and run, whatever features this machine has."""
    done = run(forced, PRODUCT)
    assert done.returncode == 0, done.stderr
    by_tiles, *emulated = done.stdout.split()
    assert by_tiles == str("amx" in forced)
    # Does not depend on the set forced for this process.
    has_tiles = llvm.get_host_cpu_features().get("amx-tile", False)
    assert ("amx-tile" in emulated) == ("amx" in forced and not has_tiles)


def test_a_forced_feature_set_that_is_unknown() -> None:
    done = run("x86-64-v9", "import tilewright.targets.cpu.isa as isa; isa.host_isa()")
    assert f"the environment variable {FORCED}: unknown instruction set 'x86-64-v9'" in done.stderr
