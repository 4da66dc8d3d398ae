"""Peak memory of training steps: Tilewright's saved step and PyTorch eager, each in a fresh process.

    python -m bench.training_memory                          # all models of bench.training in float32
    python -m bench.training_memory -m gpt,bert

Tilewright's step is compiled and saved by one process; another, which has imported NumPy and Tilewright only,
loads the artifact and makes steps. PyTorch's process makes the same steps by AdamW (fused). Both do so
without and with ``torch.utils.checkpoint`` around every block of the model. Two figures in MiB for each:

- ``resident``: the peak resident memory (VmHWM) above that after the imports. It contains pages of files,
  such as the artifact's initial weights and code that PyTorch loads at its first operators.
- ``tensors``: the bytes that the engine allocated for tensors when most were alive, parameters, optimizer's
  state, gradients and batch included. PyTorch's are those of its allocator, by its profiler, in a process of
  their own; Tilewright's are states and arena, from the library's metadata, and the batch, without constants
  and the scratch memory of threads.

Results are written to bench/results/training_memory-CLASS.json and .md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .machines import features, machine, results_file
from .report import table
from .training import compiled_step, models

ENGINES = ("tilewright", "tilewright checkpoint", "torch", "torch checkpoint")
RATIOS = (("tilewright", "torch"), ("tilewright checkpoint", "torch"))
"""Pairs whose ratio the table shows."""
STEPS = 5
MIB = 2**20


def resident(kind: str = "VmHWM") -> int:
    """The largest (VmHWM) or present (VmRSS) resident memory of this process in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(kind))
    return int(line.split()[1]) * 1024


def blocks_of(model: Any) -> list[Any]:
    """The modules that are checkpointed: members of the outermost lists of modules with parameters."""
    from torch import nn

    lists = (nn.ModuleList, nn.Sequential)
    found: list[Any] = []
    pending = [model]
    while pending:
        module = pending.pop()
        if isinstance(module, lists) and len(module) > 1:
            found += [m for m in module if any(True for _ in m.parameters())]
        else:
            pending += module.children()
    return found


def checkpoint_blocks(model: Any) -> None:
    """Let the blocks of a module compute their values again in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    def again(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)

    for block in blocks_of(model):
        block.forward = again(block.forward)


def compile_step(name: str, checkpointed: bool, folder: str, threads: int) -> None:
    """Save the step of a model, and its batch."""
    import numpy as np
    import torch

    torch.manual_seed(0)
    model, (x, labels) = models()[name]()
    model.train()
    if checkpointed:
        checkpoint_blocks(model)
    step = compiled_step(model, (x, labels), "float32", threads)
    step.save(Path(folder, "step.so"))
    np.savez(Path(folder, "batch.npz"), x=x.numpy(), labels=labels.numpy())


def run_tilewright(name: str, folder: str, threads: int) -> dict[str, Any]:
    import numpy as np

    import tilewright as tw

    tw.TrainStep  # noqa: B018 - an import when it is first used
    with np.load(Path(folder, "batch.npz")) as file:
        batch = [file["x"], file["labels"]]
    before = resident("VmRSS")
    step = tw.TrainStep(tw.load(Path(folder, "step.so"), threads=threads))
    losses = [float(step(*batch)) for _ in range(STEPS)]
    peak = resident() - before
    metadata = step.library.metadata
    states = sum(v.nbytes for v in step.state_dict().values())
    tensors = states + metadata["memory"]["arena_bytes"] + sum(x.nbytes for x in batch)
    return {"losses": losses, "resident": peak, "tensors": tensors}


def run_torch(name: str, checkpointed: bool, profiled: bool, threads: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(threads)
    models()  # imports
    before = resident("VmRSS")

    def run() -> list[float]:
        torch.manual_seed(0)
        model, (x, labels) = models()[name]()
        model.train()
        if checkpointed:
            checkpoint_blocks(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    if not profiled:
        return {"losses": run(), "resident": resident() - before}
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return {"tensors": peak}


def _child(pipe: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        pipe.send(function(*args))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}"[:300])


def fresh(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function in a new process, or a message why it has none."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_child, args=(there, function, args), daemon=True)
    child.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        return "the process ended"
    finally:
        child.join(10)
        child.kill()


def measure(name: str, threads: int) -> dict[str, Any]:
    """The figures of a model by engine."""
    found: dict[str, Any] = {}
    for engine, checkpointed in (("tilewright", False), ("tilewright checkpoint", True)):
        with tempfile.TemporaryDirectory() as folder:
            failed = fresh(compile_step, name, checkpointed, folder, threads)
            found[engine] = {"failed": failed} if failed else fresh(run_tilewright, name, folder, threads)
    for engine, checkpointed in (("torch", False), ("torch checkpoint", True)):
        found[engine] = fresh(run_torch, name, checkpointed, False, threads)
        found[engine] |= fresh(run_torch, name, checkpointed, True, threads)
    return {"model": name, "threads": threads, "engines": found}


def markdown(result: dict[str, Any]) -> str:
    """The table of a file of results."""
    info = result["machine"]
    date = max(r["date"] for r in result["rows"])
    body = []
    for row in result["rows"]:
        figures = row["engines"]
        line = [row["model"]]
        for kind in ("resident", "tensors"):
            sizes = {e: figures[e][kind] for e in ENGINES if e in figures}
            line += [f"{sizes[e] / MIB:.0f}" if e in sizes else "" for e in ENGINES]
            line += [f"{sizes[a] / sizes[b]:.2f}" if {a, b} <= {*sizes} else "" for a, b in RATIOS]
        body.append(line)
    head = ["model"]
    for kind in ("resident", "tensors"):
        head += [f"{e}, {kind}" for e in ENGINES] + [f"{ours} ÷ {theirs}" for ours, theirs in RATIOS]
    return (
        f"{date}, {info['processor']} ({features(info['flags'])}), {info['cores']} cores; "
        "`python -m bench.training_memory`. Peak memory of training steps by AdamW in float32, in MiB, each "
        "in a process of its own. Resident: the peak of the process above that after its imports. Tensors: "
        "the most bytes of tensors alive at one time. Tilewright loads a saved step, compiled with "
        '`nonfinite="ignore"`; PyTorch runs eagerly; checkpoint: with `torch.utils.checkpoint` around every '
        "block.\n\n" + table(head, body) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--models", type=lambda s: s.split(","), default=list(models()))
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=None)
    options = parser.parse_args()
    path = options.results or results_file("training_memory")
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    for name in options.models:
        row = measure(name, options.threads) | {"date": datetime.date.today().isoformat()}
        shown = {e: {k: v // MIB for k, v in f.items() if k != "losses"} for e, f in row["engines"].items()}
        print(name, shown, flush=True)
        kept = [r for r in kept if r["model"] != name] + [row]
        result = {"machine": machine(), "rows": kept}
        path.write_text(json.dumps(result, indent=1) + "\n")
        path.with_suffix(".md").write_text(markdown(result))


if __name__ == "__main__":
    main()
