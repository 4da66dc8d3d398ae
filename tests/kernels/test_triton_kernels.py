"""Triton kernels as operators: compiled to machine code without a GPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArtifactError, KernelError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
toolchain = pytest.importorskip("tilewright.targets.cuda.toolchain")
pytestmark = pytest.mark.skipif(toolchain.missing() is not None, reason="NVRTC is not installed")


@triton.jit  # type: ignore[untyped-decorator]
def softmax(x, y, d, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    v = tl.load(x + row * d + j, mask=j < d, other=-float("inf")) * scale
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * d + j, v / tl.sum(v, 0), mask=j < d)


def reference(x: np.ndarray, scale: float) -> np.ndarray:
    e = np.exp(x * scale - (x * scale).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def kernel(**changed: Any) -> tw.Kernel:
    options: dict[str, Any] = {"grid": "n", "constants": {"BLOCK": 128}, **changed}
    return tw.gpu_kernel(
        "softmax",
        sources=[tw.triton_source(softmax, **options)],
        inputs={"x": tw.f32["*n", "d"]},
        outputs={"y": tw.f32["*n", "d"]},
        scalars={"scale": 1.0},
        reference=reference,
    )


def test_an_artifact_has_the_kernel_for_each_architecture() -> None:
    x = np.ones((4, 10, 70), np.float32)
    library = tw.compile(lambda x: kernel()(x + 1, scale=0.5) * 2, (x,), target="cuda", dims={"x": {0: "b"}})
    own = {(i.kind, i.arch): i.data for i in library.images if i.module == 1}
    assert set(own) == {("cubin", "sm_80"), ("ptx", "compute_80"), ("cubin", "sm_90a")}
    assert own["cubin", "sm_80"].startswith(b"\x7fELF")
    entry = re.search(rb"\.entry softmax\((.*?)\)", own["ptx", "compute_80"], re.S)
    assert entry is not None
    # x, y, d and scale, then two pointers that Triton adds.
    assert re.findall(rb"\.param \.(\w+)", entry[1]) == [b"u64", b"u64", b"u32", b"b32", b"u64", b"u64"] or (
        re.findall(rb"\.param \.(\w+)", entry[1]) == [b"u64", b"u64", b"u32", b"f32", b"u64", b"u64"]
    )
    launch = next(k["device"] for k in library.metadata["kernels"] if k["kind"] == "call")
    assert launch["blocks"] == "10*b" and launch["threads"] == 128 and launch["dynamic_shared_bytes"] > 0


def test_simulated_devices_refuse_it() -> None:
    library = tw.compile(kernel(), (np.ones((3, 5), np.float32),), target="cuda:sm_80")
    with pytest.raises(ArtifactError, match="kernel 'softmax' has machine code only"):
        library.simulated()
    with pytest.raises(KernelError, match="Triton's interpreter"):
        kernel().check()


def test_parameters_without_a_meaning_are_told() -> None:
    with pytest.raises(KernelError, match="'BLOCK' of 'softmax' is nothing of the description"):
        kernel(constants={})
    with pytest.raises(KernelError, match="has no parameter 'OTHER'"):
        kernel(constants={"BLOCK": 128, "OTHER": 1})
    with pytest.raises(KernelError, match="no function of triton.jit"):
        tw.triton_source(reference, grid=1)
