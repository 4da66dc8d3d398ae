"""Keys from files and from the environment, and admission."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import TilewrightError
from tilewright.llm.server.errors import ApiError
from tilewright.llm.server.limits import Admission, Keys, read_keys


def accepts(keys: Keys, authorization: str | None) -> bool:
    try:
        keys.check({} if authorization is None else {"authorization": authorization})
    except ApiError as error:
        assert error.status == 401
        return False
    return True


def test_read_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_API_KEYS", raising=False)
    assert not read_keys(None) and accepts(read_keys(None), None)
    monkeypatch.setenv("TILEWRIGHT_API_KEYS", "a, b,")
    file = tmp_path / "keys"
    file.write_text("# people\nc  # Clara\n\nschlüssel\n")
    keys = read_keys(file)
    for key in ("a", "b", "c", "schlüssel"):
        assert accepts(keys, f"Bearer {key}") and accepts(keys, f"bearer  {key} ")
    for wrong in (
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic a",
        "a",
        "Bearer d",
        "Bearer #",
        "Bearer a,b",
        "Bearer \udcff",
    ):
        assert not accepts(keys, wrong)
    file.write_text("# none\n")
    with pytest.raises(TilewrightError, match="no API key"):
        read_keys(file)


def test_admission() -> None:
    door = Admission(concurrency=2, queue=1)
    first, second = door.enter(1), door.enter(2)
    with pytest.raises(ApiError) as busy:
        door.enter(1)
    assert busy.value.status == 429 and busy.value.headers["Retry-After"] == "1"
    second()
    with pytest.raises(ApiError) as never:
        door.enter(4)
    assert never.value.status == 400
    third = door.enter(1)
    first()
    third()
    assert door.inside == 0
