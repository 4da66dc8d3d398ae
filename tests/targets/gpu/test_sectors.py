"""Requests of a warp touch no more sectors of memory than their bytes fill: results of matrix instructions,
elements of several widths, images whose channels come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bench.gpu.accesses import STRIDED, WHOLE, WIDE, GlobalAccess, accesses_of_kernel
from tests.targets.gpu.simulated import SMALL, Program, count
from tests.targets.gpu.test_rule_of_chains import attention

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.dialects import simt
from tilewright.ir.matrix_atom import MMA_SYNC, WGMMA
from tilewright.ir.target_info import Gpu
from tilewright.targets.gpu.rules import atoms

BF16 = ml_dtypes.bfloat16
AMPERE = replace(SMALL, atoms=tuple(MMA_SYNC.values()))
HOPPER = replace(AMPERE, shared_bytes=200 * 1024, shared_atoms=tuple(WGMMA.values()))


def drawn(*shape: int, dtype: Any = BF16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def layer(x: Any, y: Any, bias: Any, others: Any) -> Any:
    return tnp.maximum(x @ y + bias, 0) + others


def inputs(m: int, n: int, k: int, dtype: Any = BF16) -> tuple[np.ndarray, ...]:
    shapes = ((m, k), (k, n), (n,), (m, n))
    return tuple(drawn(*s, dtype=dtype, seed=number) for number, s in enumerate(shapes))


def excess(found: Sequence[GlobalAccess]) -> float:
    """The sectors that requests touch, as a multiple of those that their bytes fill."""
    return sum(a.sectors.by_request for a in found) / sum(a.sectors.least_by_request for a in found)


@pytest.mark.parametrize(
    ("gpu", "m", "n", "k"), [(AMPERE, 64, 64, 32), (AMPERE, 70, 48, 40), (HOPPER, 128, 128, 64)]
)
def test_threads_exchange_results_of_two_bytes(gpu: Gpu, m: int, n: int, k: int) -> None:
    given = inputs(m, n, k)
    program = Program(layer, given, gpu=gpu)
    (kernel,) = program.kernels
    assert any(op.description.shared for op in kernel.walk() if isinstance(op, simt.Mma)) == (gpu is HOPPER)
    assert count(kernel, simt.Exchange) == 1
    program.check(*given, rtol=2e-2, atol=5e-2)
    assert excess(accesses_of_kernel(kernel, gpu)) == pytest.approx(1, abs=0.25 if m == 70 else 0)


@pytest.mark.parametrize(
    ("n", "out"),
    [(64, np.float32), (46, BF16)],  # sectors are whole without; no vector of four columns fits
)
def test_results_are_not_exchanged_in_vain(n: int, out: Any) -> None:
    given = inputs(64, n, 32)[:2]
    program = Program(lambda x, y: (x @ y).astype(out), given, gpu=AMPERE)
    (kernel,) = program.kernels
    assert count(kernel, simt.Mma) and not count(kernel, simt.Exchange)
    program.check(*given, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("shape", [(64, 64, 32), (100, 72, 40), (128, 128, 64)])
def test_exchanges_change_no_bit(
    shape: tuple[int, int, int], arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs(*shape)
    results = []
    for sector in (atoms.SECTOR, 0):
        monkeypatch.setattr(atoms, "SECTOR", sector)
        with tw.compile(layer, given, target=f"cuda:{arch}", cache=False) as library:
            assert ("__shfl_xor_sync" in library.ir("cuda")) == bool(sector)
            results.append(np.asarray(library.simulated(checked=True)(*given)).view(np.uint16))
    np.testing.assert_array_equal(*results)


def test_attention_stores_whole_sectors(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [drawn(1, 2, 64, 32, seed=n) for n in range(3)]
    results = []
    for sector in (atoms.SECTOR, 0):
        monkeypatch.setattr(atoms, "SECTOR", sector)
        program = Program(attention, given, gpu=AMPERE)
        (kernel,) = program.kernels
        assert count(kernel, simt.Exchange) == bool(sector)
        (store,) = [a for a in accesses_of_kernel(kernel, AMPERE) if not a.loads]
        assert (store.sectors.by_request == store.sectors.least_by_request) == bool(sector)
        results.append(program.run(*given)[0])
    np.testing.assert_array_equal(*[x.view(np.uint16) for x in results])


def test_the_widest_elements_fill_vectors() -> None:
    x, y = drawn(64, 256, dtype=np.float32), drawn(64, 256)
    program = Program(lambda x, y: (x * y).astype(y.dtype), (x, y))
    program.check(x, y, rtol=1e-2)
    (kernel,) = program.kernels
    found = accesses_of_kernel(kernel, SMALL)
    assert sorted(a.bytes_at_once for a in found) == [8, 8, 16] and excess(found) == 1
    assert {a.reason for a in found} == {WIDE, WHOLE}


def test_terms_of_a_convolution_are_in_the_order_of_memory() -> None:
    """Patches of an image whose channels come first: a row of a patch is one vector or more."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Conv2d(3, 32, 16, 16).to(torch.bfloat16).eval()
    x = torch.from_numpy(drawn(2, 3, 64, 64, dtype=np.float32)).to(torch.bfloat16)
    with tw.compile(module, (x,), target="cuda:sm_80", cache=False) as library:
        with torch.no_grad():
            wanted = module(x).float().numpy()
        found = np.asarray(library.simulated(checked=True)(x.view(torch.uint16).numpy().view(BF16)))
        np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=2e-2, atol=2e-2)
    program = Program(module, (x,), gpu=AMPERE)
    (kernel,) = [k for k in program.kernels if count(k, simt.Mma)]
    assert {a.bytes_at_once for a in accesses_of_kernel(kernel, AMPERE) if a.loads} >= {16}
    assert excess([a for a in accesses_of_kernel(kernel, AMPERE) if a.bytes_at_once == 16]) == 1


def test_sectors_are_counted() -> None:
    """A load of a column takes a sector for each element, its store one for eight."""
    x = drawn(64, 64, dtype=np.float32)
    (kernel,) = Program(lambda x: x[:, 0] * 2.0, (x,)).kernels
    load, store = accesses_of_kernel(kernel, SMALL)
    assert load.reason == STRIDED and load.sectors.by_request == 64 and load.sectors.least_by_request == 8
    assert store.sectors.by_request == store.sectors.least_by_request == 8
