"""The register tile for instructions whose sums are blocks of results (`products`): Arm's matrix
multiplications, and long products of bytes.

A tile has ``ceil(rows / block rows)`` x ``columns / block columns`` accumulators. In a step each group of B's
rows is multiplied by a group of A's: a vector of B has the groups of `block columns` columns, which lie one
after another, and a vector of A the groups of `block rows` rows. With blocks of two rows, such vectors are
loaded if rows lie in pairs (`paired_rows`); otherwise whole vectors of two rows of A are loaded and their
halves exchanged. After the sum, vectors of results are taken out of the
blocks.
"""

from __future__ import annotations

from ..isa import Isa
from .problem import LLVM_TYPES, Problem, block_rows
from .products import Product, add_neighbours, block_product
from .vector_tile import VectorTile, VectorTileWriter

UNROLL = 2
"""Groups in an iteration of the inner loop; one with 16 registers, which do not hold the rows of two. A
larger value saves loop overhead and lengthens the code.
"""
PAIRED_UNROLL = 4
"""The same where rows of A lie in pairs, which take no registers for exchanges."""


def block_of(p: Problem, isa: Isa) -> Product | None:
    """The product by which a problem is computed in blocks; None if its rows of B are not so interleaved."""
    block = block_product(isa, p.dtype, p.b_dtype)
    return block if block and p.group == block.group and p.lanes == isa.lanes(32) else None


class BlockTileWriter(VectorTileWriter):
    """Writes the function of a `VectorTile` of a problem that has a `block_of`."""

    block: Product

    def __init__(self, tile: VectorTile, isa: Isa) -> None:
        block = block_of(tile.problem, isa)
        assert block is not None
        self.block = block
        super().__init__(tile, isa)
        p = self.problem
        bits = 64 * block.rows
        self.factor = f"<{bits // p.dtype.bits} x {LLVM_TYPES[p.dtype]}>"

    def _accumulators(self) -> int:
        return self._high * self._wide

    @property
    def _high(self) -> int:
        """Accumulators in a column of the tile."""
        return -(-self.tile.rows // self.block.rows)

    @property
    def _wide(self) -> int:
        """Accumulators in a row of the tile."""
        return self.tile.vectors * self.tile.lanes // self.block.columns

    def _capacity(self) -> int:
        columns = self.tile.vectors * self.tile.lanes
        return block_rows(self.isa, self.block, columns) // self.block.rows * self._wide

    def _plan(self) -> None:
        few = self.isa.vector_registers < 32
        self.per_vector, self.unroll, self.ahead = self.block.rows, 1 if few else UNROLL, 0
        if self.problem.paired:
            self.per_vector, self.unroll = 1, PAIRED_UNROLL

    def _rows_of(self, high: int) -> list[int]:
        """The tile's rows in a row of accumulators; the last one is taken twice where rows are odd."""
        return [min(high * self.block.rows + i, self.tile.rows - 1) for i in range(self.block.rows)]

    def _factor_vectors(self, a: str) -> list[str]:
        """For each row of accumulators, vectors of two rows' first groups and of their second ones."""
        e, vectors = self.emitter, []
        for high in range(self._high):
            both = [
                e.load("<2 x i64>", self._row(a, i), self.problem.dtype.itemsize) for i in self._rows_of(high)
            ]
            vectors += [e.shuffle("<2 x i64>", both[0], both[1], [part, 2 + part]) for part in range(2)]
        return vectors

    def _row(self, a: str, row: int) -> str:
        e = self.emitter
        return e.at(a, e.mul(str(row), self.dims(self.problem.a_m)), self.problem.dtype.itemsize)

    def _factors(self, a: str, rows: int, vectors: list[str] | None, lane: int) -> list[str]:
        """For each row of accumulators, the vector of its groups of A, of `rows` elements each."""
        e, size = self.emitter, self.problem.dtype.itemsize
        result = []
        for high in range(self._high):
            if self.problem.paired:
                where = self._row(a, high * self.block.rows)
                result.append(e.load(self.factor, where, 2 * size * self.problem.group))
                continue
            if vectors is not None:
                value, kind = vectors[2 * high + lane], "<2 x i64>"
            elif self.block.rows == 1 and rows == self.problem.group:
                result.append(e.load(self.factor, self._row(a, high), size))
                continue
            else:
                words = []
                for i in self._rows_of(high):
                    bits = 8 * size * rows
                    word = e.load(f"i{bits}", self._row(a, i), size)
                    words.append(word if bits == 64 else e.op(f"zext i{bits} {word} to i64"))
                value, kind = words[0], "i64"
                if self.block.rows == 2:
                    kind = "<2 x i64>"
                    value = e.op(f"insertelement {kind} poison, i64 {words[0]}, i64 0")
                    value = e.op(f"insertelement {kind} {value}, i64 {words[1]}, i64 1")
            result.append(e.op(f"bitcast {kind} {value} to {self.factor}"))
        return result

    def _grouped_step(
        self,
        a: str,
        b: str,
        acc: list[str],
        rows: int,
        vectors: list[str] | None = None,
        lane: int = 0,
    ) -> list[str]:
        p, e, block = self.problem, self.emitter, self.block
        factors = self._factors(a, rows, vectors, lane)
        result = list(acc)
        for wide in range(self._wide):
            where = e.at(b, str(wide * p.group * block.columns), p.dtype.itemsize)
            column = e.load(self.factor, where, p.dtype.itemsize)
            for high, factor in enumerate(factors):
                at = high * self._wide + wide
                result[at] = self._multiply(factor, column, acc[at])
        return result

    def _multiply(self, factor: str, column: str, total: str) -> str:
        e, block = self.emitter, self.block
        first, second = (column, factor) if block.swapped else (factor, column)
        operands = f"{self.factor} {first}, {self.factor} {second}"
        if not block.sums:
            return e.op(f"call {self.vector} @llvm.{block.name}({self.vector} {total}, {operands})")
        return add_neighbours(e, block, total, e.op(f"call <8 x i16> @llvm.{block.name}({operands})"))

    def _results(self, total: list[str]) -> list[str]:
        """Vectors of results, row by row, from the accumulators."""
        tile, wide = self.tile, self._wide
        per_vector = tile.lanes // self.block.columns
        result = []
        for i in range(tile.rows):
            high, part = divmod(i, self.block.rows)
            for v in range(tile.vectors):
                start = high * wide + v * per_vector
                result.append(self._taken(total[start : start + per_vector], part))
        return result

    def _taken(self, blocks: list[str], part: int) -> str:
        """The vector of row `part` of neighbouring blocks of results."""
        e, vector = self.emitter, self.vector
        if self.block.rows == 2:
            first = [0, 2, 4, 6] if self.block.swapped else [0, 1, 4, 5]
            step = 1 if self.block.swapped else 2
            return e.shuffle(vector, blocks[0], blocks[1], [lane + step * part for lane in first])
        while len(blocks) > 1:
            blocks = [self._added_pairs(x, y) for x, y in zip(blocks[::2], blocks[1::2], strict=True)]
        return blocks[0]

    def _added_pairs(self, x: str, y: str) -> str:
        """The sums of neighbouring lanes of two vectors."""
        e = self.emitter
        even, odd = (e.shuffle(self.vector, x, y, order) for order in ([0, 2, 4, 6], [1, 3, 5, 7]))
        return e.op(f"add {self.vector} {even}, {odd}")


__all__ = ["BlockTileWriter", "block_of"]
