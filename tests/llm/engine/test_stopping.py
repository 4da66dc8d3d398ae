"""Stop strings: the output is the same however the text is divided into pieces, and never contains a part of
a stop string.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.llm.engine.stopping import StopStrings

LETTERS = st.text("ab", max_size=12)


def fed(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher, found = StopStrings(stops), ""
    for piece in pieces:
        text, ended = matcher.add(piece)
        found += text
        assert not any(stop in found for stop in stops)
        if ended:
            return found, True
    text, ended = matcher.finish("")
    return found + text, ended


@given(st.lists(LETTERS, max_size=6), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_pieces_make_no_difference(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    first = min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
    assert fed(pieces, stops) == (text[:first], first is not None)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    matcher = StopStrings(["</s>", "END"])
    assert matcher.add("a < b <") == ("a < b ", False)
    assert matcher.add("/") == ("", False)
    assert matcher.add("p> E") == ("</p> ", False)
    assert matcher.add("N") == ("", False)
    assert matcher.add("D and more") == ("", True)
