"""Tuning on the workers of a Dask scheduler: workers and the coordinator are killed, stopped, or of other
machines; the choice is that of a serial search.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tilewright.driver.tuning_database import Database, KernelKey
from tilewright.errors import TilewrightError
from tilewright.tuning import worker
from tilewright.tuning.distributed import DaskExecutor
from tilewright.tuning.execution import LocalExecutor, Task
from tilewright.tuning.harness import KernelDescription, harness_library
from tilewright.tuning.measure import Built, Measurement
from tilewright.tuning.runner import Runner
from tilewright.tuning.search import Outcome, Search, Settings
from tilewright.tuning.space import Point

from .tables import tables
from .test_measure import ARGUMENTS
from .test_measure import library as library  # the fixture
from .test_search import Noise

pytest.importorskip("sklearn")
distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers are killed by signals")

ROOT = Path(__file__).parents[2]
TABLE = tables()[8]
SETTINGS = Settings(trials=40, trees=10)
MACHINE = worker.describe()
KEY = KernelKey("layer norm", MACHINE["triple"], tuple(MACHINE["features"]), tuple(MACHINE["caches"]))


class Simulated:
    """Builds points of a table as files that state the speedup; 10 % of the candidates crash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, points: Sequence[Point]) -> list[Built | TilewrightError]:
        return [self.build_one(point) for point in points]

    def build_one(self, point: Point) -> Built:
        digest = hashlib.blake2b(repr(point.key).encode(), digest_size=8).hexdigest()
        path = self.folder / f"{digest}.so"
        crashes = digest.endswith("7") and point != TABLE.space().default
        speedup = None if crashes else TABLE.default / TABLE.time(point.values)
        path.write_text(json.dumps({"speedup": speedup, "seed": int(digest[:6], 16)}))
        return Built(path, KernelDescription("f", (), 1), digest)

    def measure(self, default: Built, candidate: Built, blocks: int) -> Measurement:
        fields = simulated({"candidate": {"library": candidate.library.read_bytes()}, "blocks": blocks}, 0.0)
        return worker.measurement_of(fields)


def simulated(payload: Mapping[str, Any], seconds: float = 0.03) -> dict[str, Any]:
    """The work of a worker in place of measuring."""
    time.sleep(seconds)
    told = json.loads(payload["candidate"]["library"])
    if told["speedup"] is None:
        return {"failure": "crash", "message": "planted"}
    samples = Noise(told["seed"]).samples(told["speedup"], payload["blocks"])
    return {"samples": samples, "seconds": 1e-4, "default_seconds": 1e-4}


def described() -> dict[str, Any]:
    """This machine, without asking LLVM in each worker."""
    return MACHINE


def search(executor: Any, database: Database, folder: Path) -> tuple[Outcome, Runner]:
    folder.mkdir(exist_ok=True)
    found = Search(TABLE.space(), seed=3, settings=SETTINGS, prior=TABLE.prior)
    runner = Runner(found, KEY, Simulated(folder).build, database)
    return runner.run(executor), runner


@contextmanager
def cluster(workers: int, **options: Any) -> Iterator[Any]:
    """A scheduler and so many workers, processes of their own."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        dashboard_address=None,
        silence_logs=50,
        **{"processes": True, **options},
    ) as found:
        yield found


@contextmanager
def trouble(found: Any, every: float, seed: int = 0) -> Iterator[list[str]]:
    """Kill or stop random workers meanwhile; Dask starts killed ones again."""
    rng, over, done = random.Random(seed), threading.Event(), list[str]()

    def run() -> None:
        while not over.wait(every * rng.uniform(0.5, 1.5)):
            pid = rng.choice(list(found.workers.values())).pid
            with suppress(ProcessLookupError, TypeError):
                if rng.random() < 0.6:
                    os.kill(pid, signal.SIGKILL)
                    done.append("killed")
                else:
                    os.kill(pid, signal.SIGSTOP)
                    done.append("stopped")
                    over.wait(1.0)
                    os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def check_recorded_once(database: Database) -> None:
    counts = Counter(trial.task for trial in database if trial.task)
    assert counts and set(counts.values()) == {1}


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Any]:
    with cluster(2) as found:
        yield found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The choice of a search that nothing disturbs."""
    folder = tmp_path_factory.mktemp("serial")
    return dict(search(LocalExecutor(Simulated(folder)), Database(), folder)[0].point.overrides)


def test_workers_give_the_serial_choice(two_workers: Any, expected: dict[str, Any], tmp_path: Path) -> None:
    with distributed.Client(two_workers) as client:
        executor = DaskExecutor(client, measure=simulated, describe=described)
        database = Database(tmp_path / "a.jsonl")
        outcome, runner = search(executor, database, tmp_path / "a")
        executor.close()
    assert dict(outcome.point.overrides) == expected
    assert runner.measured == sum(bool(t.task) for t in database)
    assert any(t.failure == "crash" and t.message == "planted" for t in database)
    check_recorded_once(database)


def test_a_killed_worker_a_killed_coordinator_and_a_stopped_worker(
    two_workers: Any, expected: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    first = Coordinator(two_workers, path)
    first.wait_for(10)
    os.kill(two_workers.workers[0].pid, signal.SIGKILL)
    first.wait_for(20)
    first.process.kill()
    first.process.wait()
    recorded = len(Database(path))
    second = Coordinator(two_workers, path)
    second.wait_for(recorded + 10)
    stopped = two_workers.workers[1].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert second.choice() == expected
    finally:
        os.kill(stopped, signal.SIGCONT)
    check_recorded_once(Database(path))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_eight_workers_and_the_coordinator_killed_at_random(
    expected: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "a.jsonl"
    with cluster(8) as found, trouble(found, 1.5, seed) as done:
        for number in range(4):
            coordinator = Coordinator(found, path)
            coordinator.wait_for(20 * (number + 1))
            coordinator.process.kill()
            coordinator.process.wait()
        assert Coordinator(found, path).choice() == expected
    assert {"killed", "stopped"} <= set(done)
    database = Database(path)
    check_recorded_once(database)
    assert not [t for t in database if t.failure == "crash" and t.message != "planted"]


class Coordinator:
    """A process that searches on the workers of a cluster."""

    def __init__(self, found: Any, path: Path) -> None:
        command = f"from {__name__} import coordinate; coordinate({found.scheduler_address!r}, {str(path)!r})"
        self.path = path
        self.process = subprocess.Popen([sys.executable, "-c", command], cwd=ROOT, stdout=subprocess.PIPE)

    def wait_for(self, lines: int) -> None:
        """Wait until so many trials are recorded."""
        while not (self.path.exists() and self.path.read_bytes().count(b"\n") >= lines):
            assert self.process.poll() is None
            time.sleep(0.02)

    def choice(self) -> dict[str, Any]:
        """The choice, at the end."""
        told, _ = self.process.communicate()
        assert self.process.returncode == 0
        return dict(json.loads(told))


def coordinate(address: str, path: str) -> None:
    """A coordinator in a process of its own: search, and print the choice."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    executor = DaskExecutor(address, measure=simulated, describe=described, patience=1.0, losses=8)
    outcome, _ = search(executor, Database(path), Path(path).with_suffix(".libraries"))
    executor.close()
    print(json.dumps(dict(outcome.point.overrides)))


def test_a_real_kernel_is_measured_by_a_worker(library: Path) -> None:
    """Real libraries go to a worker as bytes; what crashes there is an answer."""
    harness_library()

    def task(name: str) -> Task:
        kernel = KernelDescription("sum", ARGUMENTS, extent=64, terms=256)
        other = KernelDescription(name, ARGUMENTS, extent=64, reorders_sums=True, terms=256)
        return Task(name, KEY, Built(library, kernel, "sum"), Built(library, other, name), 3)

    with cluster(1, processes=False) as found, distributed.Client(found) as client:
        executor = DaskExecutor(client)
        names = ("four_sums", "crashes", "forgets_one")
        for name in names:
            executor.submit(task(name))
        answers = {}
        while len(answers) < len(names):
            answers.update({a.id: a for a in executor.completed()})
        assert executor.completed() == [] and executor.width == 1
    assert {n: a.measurement.failure for n, a in answers.items()} == {
        "four_sums": None,
        "crashes": "crash",
        "forgets_one": "wrong",
    }
    assert len(answers["four_sums"].measurement.samples) == 3


def test_workers_of_other_machines_are_not_asked(tmp_path: Path) -> None:
    """Two workers say that they are other machines; the third, which comes later, measures."""
    others = {0: {"triple": "aarch64-unknown-linux-gnu"}, 1: {"features": []}}

    def describe() -> dict[str, Any]:
        return {**MACHINE, **others.get(distributed.get_worker().name, {})}

    built = Simulated(tmp_path).build_one(TABLE.space().default)
    with cluster(2, processes=False) as found, distributed.Client(found) as client:
        executor = DaskExecutor(client, measure=simulated, describe=describe, wait=1.0)
        executor.submit(Task("a", KEY, built, built, 3))
        with pytest.raises(TilewrightError) as raised:
            executor.completed()
        assert "it is aarch64-unknown-linux-gnu" in str(raised.value) and "it lacks" in str(raised.value)
        found.scale(3)
        assert [a.id for a in executor.completed()] == ["a"]


def test_reasons_why_a_machine_cannot_measure() -> None:
    key = KernelKey("k", "x86_64-unknown-linux-gnu", ("avx2",), (32768, 1 << 20), 4)
    good = {"triple": key.triple, "features": ["avx2", "fma"], "caches": [32768, 1 << 20], "cores": 4}
    good["version"] = MACHINE["version"]
    assert worker.why_not(good, key) == ""
    wrong = {
        "version": ("0.0.1", "it has Tilewright 0.0.1"),
        "triple": ("aarch64-apple-darwin", "it is aarch64-apple-darwin, not x86_64-unknown-linux-gnu"),
        "features": (["sse2"], "it lacks avx2"),
        "caches": ([32768, 1 << 19], "its caches have 32768/524288 bytes, not 32768/1048576"),
        "cores": (2, "it has 2 cores, not 4"),
    }
    for name, (value, message) in wrong.items():
        assert worker.why_not({**good, name: value}, key).startswith(message)


def test_a_candidate_that_loses_workers_is_a_crash(two_workers: Any, tmp_path: Path) -> None:
    def kills(payload: Mapping[str, Any]) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    built = Simulated(tmp_path).build_one(TABLE.space().default)
    with distributed.Client(two_workers) as client:
        executor = DaskExecutor(client, measure=kills, describe=described, losses=2)
        executor.submit(Task("a", KEY, built, built, 3))
        (answer,) = executor.completed(240)
    assert answer.measurement.failure == "crash" and "2 workers were lost" in answer.measurement.message


def test_the_command_measures_on_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tilewright tune --scheduler` gives all tasks to the workers; real kernels, whatever is faster."""
    from click.testing import CliRunner

    from tilewright.cli.tune import command
    from tilewright.tuning import tune

    (tmp_path / "model.py").write_text(
        "import numpy as np\n"
        "W = np.ones((64, 96), np.float32)\n"
        "def make(): return lambda x: x @ W, (np.ones((48, 64), np.float32),)\n"
    )
    monkeypatch.setattr(tune, "SETTINGS", Settings(trials=4, trees=5, finalists=1, final_blocks=5))
    monkeypatch.setattr(tune, "LocalExecutor", None)
    with cluster(1, processes=False) as found, distributed.Client(found) as client:
        monkeypatch.setattr(tune, "DaskExecutor", lambda address: DaskExecutor(client))
        arguments = [f"{tmp_path}/model.py:make", "--budget", "4s", "--database", f"{tmp_path}/a.jsonl"]
        result = CliRunner().invoke(command, [*arguments, "--scheduler", "tcp://x:1", "--threads", "1"])
    assert result.exit_code == 0, result.output
    assert [t for t in Database(tmp_path / "a.jsonl") if t.task]


def test_an_address_without_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TilewrightError, match=r"there is no Dask scheduler at tcp://127.0.0.1:9"):
        DaskExecutor("tcp://127.0.0.1:9", connect_timeout=1.0)
