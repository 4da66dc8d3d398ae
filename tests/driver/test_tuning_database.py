"""The database of trials: contents, damage, several writers, merging, the choice of the best entry."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.driver.tuning_database import Database, KernelKey, Trial
from tilewright.errors import TilewrightError

KEY = KernelKey.of(
    "kernel(a[n, 64])",
    triple="x86_64-unknown-linux-gnu",
    features=["fma", "avx2"],
    caches=[48 << 10, 1 << 20],
    threads=2,
    without_sizes="kernel(a[?, ?])",
)
DATE = "2026-01-02T03:04:05.000000+00:00"


def trial(rows: int = 96, key: KernelKey = KEY, **fields: Any) -> Trial:
    """A trial with a speedup, unless `fields` say otherwise."""
    if "failure" not in fields:
        fields = {
            "speedup": 1.2,
            "lower": 1.15,
            "upper": 1.25,
            "seconds": 1e-4,
            "samples": (0.18, 0.19),
            **fields,
        }
    return Trial(key, {"rows": rows}, **{"digest": f"code {rows}", "date": DATE, **fields})


def test_a_trial_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = [trial(64), trial(32, failure="crash", message="signal SIGSEGV"), trial(96, stage="final")]
    assert Database(tmp_path / "a.jsonl").add(*written) == 3
    database = Database(tmp_path / "a.jsonl")
    assert list(database) == written and not database.damages and database.torn is None
    assert [t.id for t in database] == [t.id for t in written]
    assert database.of(KEY) == written


def test_lines_are_json_that_other_tools_read(tmp_path: Path) -> None:
    Database(tmp_path / "a.jsonl").add(trial(64))
    fields = json.loads((tmp_path / "a.jsonl").read_text())
    assert fields["choices"] == {"rows": 64} and fields["speedup"] == 1.2 and fields["format"] == 1


def test_equal_trials_are_one(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.jsonl")
    assert database.add(trial(64), trial(64)) == 1
    assert database.add(trial(64)) == 0
    assert Database(tmp_path / "a.jsonl").add(trial(64)) == 0
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 1


def test_merging_is_the_union_in_any_order(tmp_path: Path) -> None:
    one, two = Database(tmp_path / "one.jsonl"), Database(tmp_path / "two.jsonl")
    one.add(trial(32), trial(64))
    two.add(trial(64), trial(96))
    both, other = Database(tmp_path / "both.jsonl"), Database()
    assert both.merge(one, tmp_path / "two.jsonl") == 3
    other.merge(two, one)
    assert {t.id for t in both} == {t.id for t in other} and both.merge(one, two) == 0
    assert both.best(KEY) == other.best(KEY)


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_torn_last_line_is_reported_and_the_next_line_is_whole(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.jsonl"
    Database(path).add(trial(32))
    start = path.stat().st_size
    Database(path).add(trial(64))
    os.truncate(path, start + kept if kept > 0 else path.stat().st_size - 1)
    database = Database(path)
    assert [t.choices["rows"] for t in database] == [32]
    assert database.torn is not None and str(database.torn).startswith(f"{path}, line 2")
    database.add(trial(96))
    again = Database(path)
    assert {t.choices["rows"] for t in again} >= {32, 96}
    assert again.torn is None
    if kept > 0:
        assert [d.line for d in again.damages] == [2]


def test_a_changed_line_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    Database(path).add(trial(32), trial(64))
    path.write_text(path.read_text().replace('"speedup":1.2', '"speedup":9.2', 1) + "[]\n\nno json\n")
    database = Database(path)
    assert len(database) == 1
    assert [d.line for d in database.damages] == [1, 3, 5]
    assert "do not have its hash" in str(database.damages[0])


def test_a_newer_format_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    Database(path).add(trial(32))
    path.write_text(path.read_text().replace('"format":1', '"format":2'))
    assert "format 2" in str(Database(path).damages[0])


def test_lines_of_other_processes_are_seen(tmp_path: Path) -> None:
    one, two = Database(tmp_path / "a.jsonl"), Database(tmp_path / "a.jsonl")
    one.add(trial(32))
    assert two.refresh() == 1 and two.refresh() == 0
    two.add(trial(64))
    assert one.refresh() == 1 and len(one) == len(two) == 2


WRITER = """
import sys
from tilewright.driver.tuning_database import Database, KernelKey, Trial
path, number = sys.argv[1], int(sys.argv[2])
database = Database(path)
print("ready", flush=True)
for i in range(int(sys.argv[3])):
    key = KernelKey(f"kernel {number}", "x86_64-unknown-linux-gnu")
    database.add(Trial(key, {"rows": i, "text": "x" * 3000}, digest=str(i), speedup=1.5, lower=1.4))
    print(i, flush=True)
"""


def test_several_processes_append_to_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.jsonl")
    command = [sys.executable, "-c", WRITER, path]
    writers = [
        subprocess.Popen([*command, str(n), "40"], stdout=subprocess.PIPE, text=True) for n in range(3)
    ]
    assert all(w.communicate()[1] is None and w.returncode == 0 for w in writers)
    database = Database(path)
    assert len(database) == 120 and not database.damages and database.torn is None


def test_a_killed_writer_loses_nothing_that_it_has_added(tmp_path: Path) -> None:
    path = str(tmp_path / "a.jsonl")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, path, "0", "100000"], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    seen = [writer.stdout.readline() for _ in range(20)]
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    database = Database(path)
    database.add(trial(1))
    assert {t.choices["rows"] for t in Database(path)} >= {int(line) for line in seen[1:]}
    assert len(Database(path)) == len(database)


def test_a_database_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TilewrightError, match="cannot be"):
        Database(tmp_path / "file" / "a.jsonl").add(trial())
    with pytest.raises(TilewrightError, match="cannot be read"):
        Database(tmp_path)


def test_the_best_entry_is_better_with_confidence() -> None:
    database = Database()
    database.add(trial(32, lower=1.005), trial(64, failure="wrong"))
    assert database.best(KEY) is None
    database.add(trial(96, lower=1.05), trial(128, lower=1.1))
    best = database.best(KEY)
    assert best is not None and best.choices == {"rows": 128}


def test_a_final_counts_more_than_races_of_the_same_candidate() -> None:
    database = Database()
    database.add(trial(32, lower=1.4), trial(32, lower=1.0, stage="final"), trial(64, lower=1.2))
    best = database.best(KEY)
    assert best is not None and best.choices == {"rows": 64}
    database.add(trial(96, lower=1.02, stage="final"))
    best = database.best(KEY)
    assert best is not None and best.choices == {"rows": 96}


def test_a_candidate_that_failed_once_is_never_best() -> None:
    database = Database()
    database.add(trial(32, lower=1.4, stage="final"), trial(32, failure="wrong", date="2020"))
    assert database.best(KEY) is None


def test_a_verdict_with_variants_is_identified_by_all_its_codes() -> None:
    """A measurement within the model, or a failure, counts for a verdict of the same variants only."""

    def verdict(*small: int, **fields: Any) -> Trial:
        variants = tuple(
            {"when": f"size_0 <= {rows}", "choices": {"rows": rows}, "digest": f"code {rows}"}
            for rows in small
        )
        return trial(96, **{"stage": "chosen", "variants": variants or None, **fields})

    def slower(*small: int) -> Trial:
        return verdict(*small, stage="model", speedup=0.9, lower=0.85, upper=0.95)

    database = Database()
    database.add(verdict(16, 32), slower(), slower(16), slower(16, 64))
    assert database.chosen(KEY) == verdict(16, 32)
    database.add(slower(16, 32))
    assert database.chosen(KEY) is None
    database.add(verdict(16, 32, stage="model", date="2026-02-02"))
    assert database.chosen(KEY) == verdict(16, 32)
    database.add(trial(32, failure="crash"))
    assert database.chosen(KEY) is None


def test_a_failure_is_found_by_its_code() -> None:
    database = Database()
    database.add(trial(32, failure="hang"), trial(64, failure="compile error", digest=""))
    assert database.failure_of(KEY, {"rows": 1}, "code 32") is not None
    assert database.failure_of(KEY, {"rows": 32}, "other code") is None
    assert database.failure_of(KEY, {"rows": 64}) is not None
    assert database.failure_of(KEY, {"rows": 1}) is None


def test_an_entry_of_other_code_is_a_seed_only() -> None:
    database = Database()
    database.add(trial(32))
    found = database.replayed(KEY, lambda choices: f"code {choices['rows']}")
    assert found is not None and found[1]
    found = database.replayed(KEY, lambda choices: "code of a newer compiler")
    assert found is not None and not found[1]
    assert database.seeds(KEY) == [{"rows": 32}]


def key(**fields: Any) -> KernelKey:
    return KernelKey(**{**KEY.__dict__, **fields})


def test_seeds_come_from_the_nearest_kernels_first() -> None:
    database = Database()
    database.add(
        trial(1, key(kernel="other sizes")),
        trial(2, key(kernel="another kernel", family="another")),
        trial(3, key(threads=16)),
        trial(4, key(triple="aarch64-unknown-linux-gnu")),
        trial(5),
        trial(6, speedup=0.9),
    )
    assert [seed["rows"] for seed in database.seeds(KEY)] == [5, 3, 4, 1]


def test_the_key_depends_on_the_target() -> None:
    assert key(threads=1) != KEY and key(features=("avx2",)) != KEY and key(caches=()) != KEY
    assert KernelKey.of("a", triple="t", features=["b", "a"]) == KernelKey.of(
        "a", triple="t", features=["a", "b"]
    )


def test_a_trial_needs_an_outcome() -> None:
    with pytest.raises(ValueError, match="speedup or a failure"):
        trial(speedup=None)
    with pytest.raises(ValueError, match="failure 'tired'"):
        trial(failure="tired")
