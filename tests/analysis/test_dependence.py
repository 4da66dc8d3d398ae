"""Distances between conflicting accesses, against all pairs of iterations of small nests."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tilewright.analysis.dependence import _composed, conflicting_pairs, distance
from tilewright.analysis.witness import find_witness
from tilewright.dialects import loop, scalar
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import Dim, Expr, smin, symbol
from tilewright.ir.types import BufferType, f32

N = symbol("n", 1, 9)
M = symbol("m", 2, 6)


def nest(indices: Sequence[Sequence[Dim]], ivs: Sequence[Expr]) -> tuple[list[loop.For], list[loop.Store]]:
    """A nest of loops with these variables around stores to one buffer at the given indices."""
    kernel = loop.Kernel(sym_name="k", num_outputs=1)
    buffer = kernel.body.add_arg(BufferType(f32, (1000,) * len(indices[0]), "global"), "y")
    body = kernel.body
    loops = []
    for iv in ivs:
        f = loop.For(iv=iv)
        body.append(f)
        loops.append(f)
        body = f.body
    at = Builder(body)
    value = at(scalar.Constant(value=1.0, dtype=f32))
    stores = [loop.Store(value, buffer, (), indices=tuple(i)) for i in indices]
    for op in stores:
        at.insert(op)
    return loops, stores


def points(extents: Sequence[Dim], ivs: Sequence[Expr], sizes: dict[str, int]) -> list[dict[str, int]]:
    """All iterations of a nest."""
    result: list[dict[str, int]] = [{}]
    for iv, n in zip(ivs, extents, strict=True):
        result = [{**p, iv.name: k} for p in result for k in range(int(evaluate(n, {**sizes, **p})))]
    return result


def random_nest(r: random.Random) -> tuple[list[Dim], list[Expr], list[Dim]]:
    """Extents, variables and indices to build accesses from, as `split` and `fuse` make them."""
    extents: list[Dim] = []
    ivs: list[Expr] = []
    terms: list[Dim] = []
    for name in "ijk"[: r.randrange(1, 4)]:
        n: Dim = r.choice([1, 2, 3, 5, 6, N, M])
        form = r.choice(["plain", "split", "fused"])
        if form == "plain":
            iv = symbol(name, 0, n - 1)
            extents, ivs, terms = [*extents, n], [*ivs, iv], [*terms, iv]
        elif form == "split":
            factor = r.choice([2, 3, 4])
            outer = symbol(f"{name}o", 0, (n + factor - 1) // factor - 1)
            size = smin(factor, n - factor * outer)
            inner = symbol(f"{name}i", 0, size - 1)
            extents, ivs, terms = (
                [*extents, outer.upper + 1, size],
                [*ivs, outer, inner],
                [*terms, factor * outer + inner],
            )
        else:
            m: Dim = r.choice([2, 3, 4, M])
            iv = symbol(name, 0, n * m - 1)
            extents, ivs, terms = [*extents, n * m], [*ivs, iv], [*terms, iv // m, iv % m]
    return extents, ivs, terms


def random_index(r: random.Random, terms: Sequence[Dim]) -> Dim:
    """A combination of a few terms with small coefficients."""
    e: Dim = r.choice([0, 0, 0, 1, 2, 5])
    for t in r.sample(list(terms), r.randrange(0, min(3, len(terms)) + 1)):
        e = e + r.choice([1, 1, 1, 2, 3, 4, 6, 8, 12, -1, M]) * t
    return e


@pytest.mark.parametrize("seed", range(300))
def test_distances_hold_for_all_pairs_of_iterations(seed: int) -> None:
    r = random.Random(seed)
    extents, ivs, terms = random_nest(r)
    rank = r.randrange(1, 3)
    indices = [[random_index(r, terms) for _ in range(rank)] for _ in range(2)]
    if r.random() < 0.6:
        indices[1] = [e + r.choice([0, 0, 1, -1, 2]) for e in indices[0]]
    loops, (a, b) = nest(indices, ivs)
    outer = r.randrange(0, len(loops))
    fixed, compared = loops[:outer], loops[outer:]
    claim = distance(a, b, [(f, f) for f in compared], fixed)
    for n, m in ((1, 2), (4, 3), (9, 6), (7, 5)):
        sizes = {"n": n, "m": m}
        every = points(extents, ivs, sizes)
        if len(every) > 500:
            every = r.sample(every, 500)

        def place(op: loop.Store, p: dict[str, int], sizes: dict[str, int] = sizes) -> tuple[int, ...]:
            values = {**sizes, **p}
            return (*(p[f.iv.name] for f in fixed), *(int(evaluate(e, values)) for e in op.indices))

        where = defaultdict(list)
        for p in every:
            where[place(a, p)].append(p)
        for q in every:
            for p in where[place(b, q)]:
                assert claim is not None, (indices, p, q, sizes)
                for f, d in zip(compared, claim, strict=True):
                    assert d is None or d == q[f.iv.name] - p[f.iv.name], (indices, claim, p, q, sizes)


I, J = symbol("i", 0, N - 1), symbol("j", 0, M - 1)
OUTER = symbol("o", 0, (N + 3) // 4 - 1)
INNER = symbol("p", 0, smin(4, N - 4 * OUTER) - 1)
FUSED = symbol("f", 0, N * M - 1)
K = symbol("k", 0, 2)


@pytest.mark.parametrize(
    ("ivs", "first", "second", "expected"),
    [
        ((I, J), (I, J), (I, J), (0, 0)),
        ((I, J), (J, I), (J, I), (0, 0)),
        ((I, J), (I,), (I,), (0, None)),
        ((I, J), (I, J), (I - 1, J), (1, 0)),
        ((I, J), (I, J), (I + 1, J - 2), (-1, 2)),
        ((OUTER, INNER), (4 * OUTER + INNER,), (4 * OUTER + INNER,), (0, 0)),
        ((FUSED,), (FUSED // M, FUSED % M), (FUSED // M, FUSED % M), (0,)),
        ((FUSED,), (FUSED // M,), (FUSED // M,), (None,)),
        ((I, J), (M * I + J,), (M * I + J,), (0, 0)),
        ((I, K), (3 * I + K,), (3 * I + K,), (0, 0)),
        ((I, K), (2 * I + K,), (2 * I + K,), (None, None)),
        ((I, K), (I + 100, K), (I, K), None),
        ((I,), (2 * I,), (2 * I + 1,), None),
        ((I,), (I,), (N - 1 - I,), (None,)),
        ((I, J), (I + J,), (I + J,), (None, None)),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_determined(
    ivs: tuple[Expr, ...],
    first: tuple[Dim, ...],
    second: tuple[Dim, ...],
    expected: tuple[int | None, ...] | None,
) -> None:
    loops, (a, b) = nest([first, second], ivs)
    assert distance(a, b, [(f, f) for f in loops]) == expected


@pytest.mark.parametrize(("offset", "expected"), [(0, 0), (64, 0), (-64, 0), (4, None)])
def test_terms_of_different_sizes_are_told_apart(offset: int, expected: int | None) -> None:
    """The distance of one loop follows, though others between the accesses may differ: their terms together
    are less than the number that divides the rest.
    """
    ivs = symbol("v", 0, 3), symbol("t", 0, 15), symbol("q", 0, 9)
    v, t, q = ivs
    loops, (a, b) = nest(
        [(v + 4 * t + 64 * q + max(offset, 0),), (v + 4 * t + 64 * q + max(-offset, 0),)], ivs
    )
    assert distance(a, b, [(loops[1], loops[1])]) == (expected,)


@pytest.mark.parametrize("row, expected", [(72, (0, 0, 0)), (71, None)])
def test_tiles_of_rows_in_one_flat_buffer(row: int, expected: tuple[int, int, int] | None) -> None:
    """The last tile of a row ends with it: rows of 72 elements that lie 72 apart do not overlap, those that
    lie 71 apart do.
    """
    o = symbol("o", 0, 1)
    i = symbol("i", 0, 39)
    j = symbol("j", 0, smin(64, 72 - 64 * o) - 1)
    loops, (store,) = nest([[row * i + 64 * o + j]], [o, i, j])
    found = distance(store, store, [(f, f) for f in loops])
    assert found == expected if expected else found is not None and None in found


@pytest.mark.parametrize("row, expected", [(273, (0, 0, 0)), (272, None)])
def test_fused_loops_over_tiles_in_one_flat_buffer(row: int, expected: tuple[int, int, int] | None) -> None:
    """Tiles of 18 rows by 192 columns, where the last of a row ends with it, as one fused loop."""
    f = symbol("f", 0, 39)
    i = symbol("i", 0, 17)
    j = symbol("j", 0, smin(192, 273 - 192 * (f % 2)) - 1)
    loops, (store,) = nest([[row * (i + 18 * (f // 2)) + 192 * (f % 2) + j + 1000]], [f, i, j])
    found = distance(store, store, [(x, x) for x in loops])
    assert found == expected if expected else found is not None and None in found


def test_a_loop_of_one_iteration_is_any_distance_from_a_longer_one() -> None:
    """As the first thread of a block, which writes what all threads read."""
    kernel = loop.Kernel(sym_name="k", num_outputs=1)
    buffer = kernel.body.add_arg(BufferType(f32, (1,), "global"), "y")
    loops, stores = [], []
    for name, extent in (("one", 1), ("other", 1), ("many", 32)):
        f = loop.For(iv=symbol(name, 0, extent - 1))
        kernel.body.append(f)
        at = Builder(f.body)
        value = at(scalar.Constant(value=1.0, dtype=f32))
        stores.append(at.insert(loop.Store(value, buffer, (), indices=(0,))))
        loops.append(f)
    for first, second, expected in ((0, 1, 0), (0, 2, None), (2, 0, None)):
        pair = [(loops[first], loops[second])]
        assert distance(stores[first], stores[second], pair) == (expected,)


def test_a_witness_is_a_pair_of_iterations_that_touch_one_element() -> None:
    loops, (a, b) = nest([(2 * I + K,), (2 * I + K,)], (I, K))
    found = find_witness(a, b, [(f, f) for f in loops], [], lambda apart: apart[0] > 0)
    assert found is not None
    for point in (found.first, found.second):
        assert found.element == (2 * point["i"] + point["k"],)
    assert found.second["i"] > found.first["i"]
    assert str(found).startswith("in the iterations (i=0, k=2) and (i=1, k=0): element [2], n = 3")


def test_a_witness_far_inside_of_long_loops() -> None:
    far = symbol("far", 0, 9999)
    loops, (a, b) = nest([(far,), (far - 9998,)], (far,))
    found = find_witness(a, b, [(loops[0], loops[0])], [], lambda apart: apart[0] != 0)
    assert found is not None and found.second["far"] - found.first["far"] == 9998


def test_no_witness_where_there_is_none() -> None:
    loops, (a, b) = nest([(I,), (I,)], (I,))
    assert find_witness(a, b, [(loops[0], loops[0])], [], lambda apart: apart[0] != 0) is None


def sharing_kernel(pairs: tuple[tuple[int, int], ...]) -> loop.Kernel:
    """Two nests over two inputs and two outputs that may be their memory: the first one reads both inputs and
    writes the first output, the second one reads that output and writes the other.
    """
    kernel = loop.Kernel(sym_name="k", num_outputs=2)
    x, y, a, b = (kernel.body.add_arg(BufferType(f32, (8,), "global"), name) for name in "xyab")
    notes.BUFFER_ALIASES.set(kernel, pairs)
    for reads, write, mirrored in (((x, y), a, 7), ((a,), b, 0)):
        iv = symbol(f"i{mirrored}", 0, 7)
        f = loop.For(iv=iv)
        kernel.body.append(f)
        at = Builder(f.body)
        values = [at(loop.Load(source, (), None, indices=(iv,), guard=())) for source in reads]
        at.insert(loop.Store(values[0], write, (), indices=(mirrored - iv if mirrored else iv,)))
    return kernel


@pytest.mark.parametrize(
    ("pairs", "wanted"),
    [
        ((), {"aa"}),
        (((0, 0),), {"aa", "xa"}),
        (((0, 1),), {"aa", "ya"}),
        (((0, 0), (0, 1)), {"aa", "xa", "ya"}),
        (((0, 0), (1, 0)), {"aa", "xa", "xb"}),
        (((0, 0), (1, 1)), {"aa", "xa", "yb"}),
    ],
)
def test_outputs_share_memory_with_any_of_their_inputs_and_not_with_each_other(
    pairs: tuple[tuple[int, int], ...], wanted: set[str]
) -> None:
    kernel = sharing_kernel(pairs)
    found = {(x.buffer.hint, y.buffer.hint) for x, y in conflicting_pairs(kernel) if x is not y}
    assert {"".join(sorted(pair, key="xyab".index)) for pair in found} == wanted


I = symbol("i", 0, N - 1)
LATE = symbol("i", 2, M + 1)


@pytest.mark.parametrize(
    ("index", "variable", "apart"),
    [
        (I * I, I, True),
        (100 - I * I * I, I, True),
        (I * I - I, I, False),  # 0 and 1 meet
        (I * I + I, I, True),
        ((I * I + I) // 2, I, True),
        (I * I // 2, I, False),
        ((I - 2) * (I - 2), I, False),
        ((LATE - 2) * (LATE - 2), LATE, True),
        (M * I * I, I, True),
        ((M - 2) * I * I, I, False),
    ],
)
def test_an_index_that_strictly_grows_determines_its_variable(
    index: Dim, variable: Expr, apart: bool
) -> None:
    loops, (store,) = nest([(index,)], [variable])
    assert (distance(store, store, [(loops[0], loops[0])]) == (0,)) == apart
    meet = set()
    for n in range(1, 10):
        for m in range(2, 7):
            sizes = {"n": n, "m": m}
            assert variable.lower is not None and variable.upper is not None
            values = range(int(evaluate(variable.lower, sizes)), int(evaluate(variable.upper, sizes)) + 1)
            found = [int(evaluate(index, {**sizes, variable.name: k})) for k in values]
            meet.add(len(set(found)) < len(found))
    assert (True in meet) != apart


def test_a_number_of_which_some_digits_are_written_in_another_form() -> None:
    """``(16 * i + 2 * j + k) // 20`` is ``(8 * i + j) // 10``, since k is less than 2."""

    def indices(name: str) -> list[Dim]:
        i, j, k = symbol(f"{name}i", 0, 2), symbol(f"{name}j", 0, 7), symbol(f"{name}k", 0, 1)
        e = 16 * i + 2 * j + k
        return [e // 20, e // 5 % 4, e % 5]

    pairs = list(zip(indices("a"), indices("b"), strict=True))
    assert str(pairs[0][0]) == "(8*ai + aj) // 10"
    ((first, second),) = _composed(pairs)
    assert {str(first), str(second)} == {"16*ai + 2*aj + ak", "16*bi + 2*bj + bk"}
    assert not list(_composed(pairs[1:]))


Y, X = symbol("y", 0, 3), symbol("x", 0, 2)


@pytest.mark.parametrize(
    ("indices", "by_indices", "by_address"),
    [
        ((4 * Y + 4 * X, 4 * Y + 2 * X), (None, None), (0, 0)),
        ((Y + 3 * (X // 2), 2 * Y + X), (None, None), (0, 0)),
        ((2 * Y + 4 * X, 4 * X + 2 * Y), (None, None), (None, None)),  # equal where 2 * X + Y is
    ],
)
def test_the_flat_address_determines_what_the_indices_leave_open(
    indices: tuple[Dim, ...],
    by_indices: tuple[int | None, ...],
    by_address: tuple[int | None, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loops, (store,) = nest([indices], [Y, X])
    pairs = [(f, f) for f in loops]
    assert distance(store, store, pairs) == by_address
    every = [{"y": y, "x": x} for y in range(4) for x in range(3)]
    places = {tuple(int(evaluate(e, p)) for e in indices) for p in every}
    assert (len(places) == len(every)) == (by_address == (0, 0))
    monkeypatch.setattr("tilewright.analysis.dependence._flat_places", lambda a, b: None)
    assert distance(store, store, pairs) == by_indices
