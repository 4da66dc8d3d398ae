"""Descriptions of dynamic dimensions, written as text."""

from __future__ import annotations

import pytest

from tilewright.errors import CompileError
from tilewright.frontends.dims import DimTable, check_dims_argument, parse_dim
from tilewright.ir.symbolic import bounds


def resolve(*texts: str | int):
    table = DimTable()
    dims = [parse_dim(t, "here") for t in texts]
    for d in dims:
        table.add(d, "here")
    return [table.resolve(d) for d in dims]


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("seq", (1, None)),
        ("seq<=512", (1, 512)),
        ("16<=seq<=512", (16, 512)),
        ("16 <= seq", (16, None)),
        ("0<=seq<=8", (0, 8)),
        ("4*n<=64", (4, 64)),
        ("2*n+1", (3, None)),
        (8, (8, 8)),
        ("8", (8, 8)),
    ],
)
def test_text_gives_bounds(text, limits):
    (dim,) = resolve(text)
    assert bounds(dim) == limits


def test_bounds_of_one_name_are_intersected():
    a, b = resolve("seq<=512", "4<=seq<=1024")
    assert a is b
    assert bounds(a) == (4, 512)


def test_bounds_of_an_expression_bound_its_symbol():
    (dim,) = resolve("10<=4*n<=70")
    assert bounds(dim) == (12, 68)


@pytest.mark.parametrize(
    "text", ["", "seq<512", "1<=2", "seq<=x", "9<=seq<=3", "a b", "f(x)", 1.5, None, True]
)
def test_unreadable_texts_are_refused(text):
    with pytest.raises(CompileError, match="here"):
        resolve(text)


def test_contradicting_bounds_are_refused():
    with pytest.raises(CompileError, match="no size satisfies"):
        resolve("seq<=4", "8<=seq")


def test_argument_accepts_negative_axes_and_sequences():
    inputs = [("ids", ["b", "s"]), ("mask", ["b", "s"])]
    assert check_dims_argument({"ids": {-1: "seq"}, "mask": ["batch", None]}, inputs) == {
        "ids": {1: "seq"},
        "mask": {0: "batch"},
    }


@pytest.mark.parametrize("dims", [{"id": {0: "b"}}, {"ids": {2: "b"}}, {"ids": "b"}, ["b"]])
def test_unknown_places_are_refused_with_a_list_of_inputs(dims):
    with pytest.raises(CompileError, match=r"inputs: ids \(b, s\)"):
        check_dims_argument(dims, [("ids", ["b", "s"])])
