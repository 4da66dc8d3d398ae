"""A driver of contractions calls tile functions of the heights that its number of rows allows, and no
others.
"""

from __future__ import annotations

import pytest

from tilewright.ir.symbolic import smin, symbol
from tilewright.targets.llvm.brgemm.driver import _blocks, _heights


def heights_of(values: list[int], limit: int) -> list[int]:
    """The heights of the blocks of each number of rows, by division as the driver does it."""
    found = set()
    for rows in values:
        blocks = -(-rows // limit)
        found |= {rows // blocks + (block < rows % blocks) for block in range(blocks)}
    return sorted(found)


@pytest.mark.parametrize("limit", [1, 4, 6, 14])
@pytest.mark.parametrize("block,total", [(12, 196), (66, 3136), (25, 196), (30, 12544), (7, 50), (8, 9)])
def test_a_tile_of_rows_and_its_tail(block: int, total: int, limit: int) -> None:
    last = -(-total // block) - 1
    rows = smin(block, total - block * symbol("i", 0, last))
    assert _heights(rows, limit) == heights_of(
        [min(block, total - block * i) for i in range(last + 1)], limit
    )


def test_any_number_of_rows() -> None:
    assert _heights(symbol("n", 1, None), 6) == [1, 2, 3, 4, 5, 6]
    assert _heights(symbol("n", 1, 1 << 20), 6) == [1, 2, 3, 4, 5, 6]
    assert _heights(symbol("n", 20, 100), 6) == [5, 6]
    n = symbol("n", 1, 40)
    assert _heights(smin(8, n), 6) == heights_of(list(range(1, 9)), 6)
    i = symbol("i", 0, 4)
    assert _heights(smin(8, n - 8 * i), 6) == heights_of(list(range(1, 9)), 6)


@pytest.mark.parametrize("rows", [1, 2, 5, 9, 66])
def test_blocks_of_pairs_of_rows(rows: int) -> None:
    """Only the last block ends in half a pair."""
    blocks = _blocks(rows, 4, unit=2)
    assert sum(blocks) == rows and max(blocks) <= 4 and len(blocks) == -(-rows // 4)
    assert all(height % 2 == 0 for height in blocks[:-1])
    assert _heights(smin(rows, symbol("n", rows, rows)), 4, 2) == sorted(set(blocks))
