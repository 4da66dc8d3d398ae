"""Storage of responses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import ArtifactError
from tilewright.llm.server.errors import ApiError
from tilewright.llm.server.responses import ResponseStore


def response(number: int) -> dict[str, object]:
    return {"id": f"resp_{number}", "output": "x" * 1000}


def test_the_oldest_are_forgotten() -> None:
    store = ResponseStore(5000)
    for number in range(10):
        store.put(response(number), [], "me")
    kept = []
    for number in range(10):
        try:
            kept.append(store.get(f"resp_{number}", "me").response["id"])
        except ApiError as error:
            assert error.status == 404
    assert kept == [f"resp_{number}" for number in range(6, 10)]
    for id in kept:
        store.remove(id, "me")
    huge = {"id": "huge", "output": "x" * 4500}
    store.put(huge, [], "me")
    assert store.get("huge", "me").response == huge, "the space of removed responses is free again"


def test_in_a_file(tmp_path: Path) -> None:
    """A server's responses are available to the next server; the oldest ones are removed."""
    path = tmp_path / "responses"
    first = ResponseStore(3300, path)
    messages = [{"role": "user", "content": "Hällo"}]
    for number in range(2):
        first.put(response(number), messages, "me")
    second = ResponseStore(3300, path)
    assert second.get("resp_0", "me").messages == messages and second.get(
        "resp_1", "me"
    ).response == response(1)
    for number in (2, 3):
        second.put(response(number), messages, "me")
    for gone in ("resp_0", "resp_9"):
        with pytest.raises(ApiError):
            second.get(gone, "me")
    with pytest.raises(ApiError):
        second.get("resp_3", "somebody else")
    second.remove("resp_3", "me")
    with pytest.raises(ApiError):
        second.get("resp_3", "me")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "responses"
    path.write_bytes(b"no data base, but quite long enough to look like one" * 100)
    with pytest.raises(ArtifactError, match="responses"):
        ResponseStore(1 << 20, path)
    with pytest.raises(ArtifactError, match="missing"):
        ResponseStore(1 << 20, tmp_path / "missing" / "responses")
