"""Data-parallel training: two single-threaded processes against one, on this machine.

    python -m bench.training_processes                 # gpt, bert, resnet50 in float32
    python -m bench.training_processes -m gpt -p bf16

Every process makes the steps of `bench.training` on one thread, each with a batch of the same size. Three
times are measured, in turns: of a process alone, of two processes at once that have nothing to do with each
other, and of two that reduce their gradients. Scaling is the first time over the third: 1 if communication is
free and the machine serves two processes as fast as one. The second time shows the machine's share in it.
``tilewright sharded`` also divides the optimizer's state and the update. PyTorch's
``DistributedDataParallel`` in eager mode is the peer. Medians go to
bench/results/training_processes-CLASS.json and .md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import socket
import statistics
import time
from pathlib import Path
from typing import Any

from .machines import features, machine, results_file
from .report import table
from .training import models, step_of

SHARDED = "tilewright sharded"
ENGINES = ("tilewright", SHARDED, "torch")
ROUNDS = 6


def serve(pipe: Any, engine: str, name: str, precision: str, rank: int, port: int) -> None:
    """Make as many steps as asked for, and send their times. Port 0: alone."""
    try:
        group = None
        if port:
            import tilewright.distributed as td

            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
            os.environ.update(shared, RANK=str(rank), WORLD_SIZE="2")
            group = td.init()
        sharded = engine == SHARDED and group is not None
        engine = "tilewright" if engine == SHARDED else engine
        step = step_of(engine, name, precision, 1, group, sharded)
        pipe.send([step() for _ in range(2)])
        while (count := pipe.recv()) is not None:
            times = []
            for _ in range(count):
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
            pipe.send(times)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}"[:300])


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _received(pipe: Any) -> Any:
    found = pipe.recv() if pipe.poll(400) else "did not answer within 400 s"
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def measure(engine: str, name: str, precision: str, seconds: float) -> dict[str, Any]:
    """Median milliseconds of a step ``alone``, ``apart`` and ``together``, and the losses of both pairs."""
    context = multiprocessing.get_context("spawn")
    pairs: dict[str, list[tuple[Any, Any]]] = {}
    losses = {}
    for pair, port in (("apart", 0), ("together", _port())):
        pairs[pair] = []
        for rank in range(2):
            here, there = context.Pipe()
            child = context.Process(
                target=serve, args=(there, engine, name, precision, rank, port), daemon=True
            )
            child.start()
            pairs[pair].append((here, child))
        losses[pair] = [_received(here) for here, _ in pairs[pair]]
    turns = {
        "alone": [pairs["apart"][0][0]],
        **{pair: [here for here, _ in found] for pair, found in pairs.items()},
    }
    times: dict[str, list[float]] = {turn: [] for turn in turns}
    count = 3
    for number in range(ROUNDS + 1):
        for turn, pipes in turns.items():
            for pipe in pipes:
                pipe.send(count)
            found = [_received(pipe) for pipe in pipes]
            if number:  # the first round sets the number of steps
                times[turn] += [max(both) for both in zip(*found, strict=True)]
            else:
                count = max(2, round(seconds / ROUNDS / 3 / statistics.median(found[0])))
    for found in pairs.values():
        for pipe, _ in found:
            pipe.send(None)
        for _, child in found:
            child.join(10)
            child.kill()
    return {"losses": losses} | {turn: 1e3 * statistics.median(found) for turn, found in times.items()}


def markdown(result: dict[str, Any]) -> str:
    """The table of a file of results."""
    info = result["machine"]
    dates = sorted({r["date"] for r in result["rows"]})
    head = [
        "model",
        "precision",
        "engine",
        "alone",
        "two apart",
        "two together",
        "scaling",
        "apart ÷ together",
    ]
    lines = [
        [
            r["model"],
            r["precision"],
            r["engine"],
            *(f"{r[turn]:.3g}" for turn in ("alone", "apart", "together")),
            f"{r['alone'] / r['together']:.2f}",
            f"{r['apart'] / r['together']:.2f}",
        ]
        for r in result["rows"]
    ]
    return (
        f"{dates[-1]}, {info['processor']} ({features(info['flags'])}), {info['cores']} cores; "
        "`python -m bench.training_processes`. Median milliseconds of a training step in processes of one "
        "thread: one alone; two at once, each for itself; two that reduce their gradients, each "
        "with a batch of the same size. Scaling is the first over the third; the last column compares two "
        "processes with and without communication.\n\n" + table(head, lines) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--models", type=lambda s: s.split(","), default=["gpt", "bert", "resnet50"])
    parser.add_argument("-p", "--precision", type=lambda s: s.split(","), default=["float32"])
    parser.add_argument("-e", "--engines", type=lambda s: s.split(","), default=list(ENGINES))
    parser.add_argument("-s", "--seconds", type=float, default=40.0, help="for each model and engine")
    parser.add_argument("--results", type=Path, default=None)
    options = parser.parse_args()
    if unknown := set(options.models) - set(models()):
        parser.error(f"no models called {', '.join(unknown)}")
    path = options.results or results_file("training_processes")
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    for precision in options.precision:
        for name in options.models:
            for engine in options.engines:
                row = {"model": name, "precision": precision, "engine": engine}
                kept = [r for r in kept if any(r[k] != row[k] for k in row)]
                row |= measure(engine, name, precision, options.seconds)
                row["date"] = datetime.date.today().isoformat()
                print({k: v for k, v in row.items() if k != "losses"}, flush=True)
                kept.append(row)
                result = {"machine": machine(), "rows": kept}
                path.write_text(json.dumps(result, indent=1) + "\n")
                path.with_suffix(".md").write_text(markdown(result))


if __name__ == "__main__":
    main()
