"""Occupancy against the vendors' tables, and lower bounds of kernels' times."""

from __future__ import annotations

import pytest

from tilewright.targets.cuda.devices import A100, H100, H200
from tilewright.targets.gpu.performance import (
    KernelResources,
    count_instructions,
    occupancy,
    predict,
)
from tilewright.targets.hip.devices import MI300X, RX7900XTX


def resources(registers: int, shared: int = 0) -> KernelResources:
    return KernelResources(registers, shared, 0, 0)


@pytest.mark.parametrize(
    ("device", "registers", "shared", "threads", "blocks", "limit"),
    [
        # The CUDA occupancy calculator gives these numbers.
        (A100, 32, 0, 256, 8, "warps"),
        (A100, 33, 0, 256, 6, "registers"),
        (A100, 64, 0, 256, 4, "registers"),
        (A100, 255, 0, 256, 1, "registers"),
        (A100, 128, 0, 1024, 0, "registers"),
        (A100, 16, 0, 32, 32, "blocks"),
        (A100, 32, 48 * 1024, 128, 3, "shared memory"),
        (A100, 32, 163 * 1024, 128, 1, "shared memory"),
        (H100, 168, 0, 384, 1, "registers"),
        (H100, 32, 113 * 1024, 128, 2, "shared memory"),
        # LLVM's comments in its AMDGPU assembly: 8 waves a SIMD up to 64 registers, 4 with 128.
        (MI300X, 64, 0, 256, 8, "warps"),
        (MI300X, 65, 0, 256, 7, "registers"),
        (MI300X, 128, 0, 256, 4, "registers"),
        (MI300X, 64, 32 * 1024, 256, 2, "shared memory"),
        # 1536 registers in units of 24: 16 waves a SIMD up to 96 registers.
        (RX7900XTX, 96, 0, 256, 4, "warps"),
        (RX7900XTX, 97, 0, 256, 3, "registers"),
    ],
)
def test_occupancy(device, registers, shared, threads, blocks, limit):
    found = occupancy(device, resources(registers, shared), threads)
    assert (found.blocks, found.limit) == (blocks, limit)
    unit = device.multiprocessor
    assert found.share == blocks * -(-threads // device.gpu.warp) / (unit.partitions * unit.warps)


def test_a_large_copy_takes_the_time_of_memory():
    moved = 2 * (1 << 30)
    found = predict(H200, blocks=1 << 20, flops=0, bytes_moved=moved)
    assert found.bound == "memory"
    assert found.memory_seconds == pytest.approx(moved / 4.8e12)
    assert found.seconds == pytest.approx(moved / 4.8e12 + H200.launch)


def test_one_block_has_one_multiprocessor():
    whole = predict(H100, blocks=132, flops=1e9, bytes_moved=0)
    one = predict(H100, blocks=1, flops=1e9, bytes_moved=0)
    assert one.arithmetic_seconds == pytest.approx(132 * whole.arithmetic_seconds)
    assert predict(H100, 1, 0, 1e8).memory_seconds > predict(H100, 132, 0, 1e8).memory_seconds


def test_a_block_more_than_multiprocessors_takes_another_round():
    full = predict(A100, blocks=108, flops=1e12, bytes_moved=0, dtype="bf16", matrix=True)
    more = predict(A100, blocks=109, flops=1e12 * 109 / 108, bytes_moved=0, dtype="bf16", matrix=True)
    assert (full.rounds, more.rounds) == (1, 2)
    assert more.arithmetic_seconds == pytest.approx(2 * full.arithmetic_seconds)
    assert full.arithmetic_seconds == pytest.approx(1e12 / 312e12)


def test_types_without_a_rate_are_computed_as_float32():
    assert A100.rate("i32") == A100.rate("f32")
    assert A100.rate("bf16", matrix=True) > A100.rate("bf16") > A100.rate("f32")
    assert MI300X.rate("i64", matrix=True) == MI300X.rate("f32")


def test_waves_count_the_blocks_that_run_at_the_same_time():
    occupied = occupancy(A100, resources(64), 256)
    assert predict(A100, 864, 1, 1, occupied=occupied).waves == pytest.approx(2.0)


def test_instructions_are_counted_by_kind():
    counts = dict(
        count_instructions(
            {"LDG.E.128": 2, "LDG.E": 3, "FADD": 5}, {"global load": "LDG", "global load 16": r"LDG\S*128"}
        )
    )
    assert counts == {"all": 10, "global load": 5, "global load 16": 2}
