"""Training steps: Tilewright against PyTorch eager, Inductor and JAX, on the same models and batches.

    python -m bench.training                        # all models in float32
    python -m bench.training -m gpt,lstm -p bf16 --threads 1
    python -m bench.training -m bert -p bf16 --prepare   # compiles for the caches, measures nothing
    python -m bench.training -m gpt -e torch_compile,inductor --results turns.json

A step is forward pass, backward pass and update by AdamW. Tilewright runs it as one library; PyTorch runs
``loss.backward()`` and ``torch.optim.AdamW(fused=True)``, Inductor the same with the module compiled by
``torch.compile``; JAX compiles the step by ``jax.jit`` (`bench.training_jax`). The engine ``torch_compile``,
which is not run by default, is PyTorch with ``torch.compile(model, backend="tilewright")``. With bf16 PyTorch
uses ``torch.autocast``, Tilewright ``precision="bf16"``, JAX factors of that type; parameters stay float32.
Each engine has a process of its own; the processes take turns, one step at a time. Medians of step times, and
the peak memory of each process above that after its imports, are written to bench/results/training-CLASS.json
and .md. JAX keeps compiled steps in ``JAX_COMPILATION_CACHE_DIR``, by default in Tilewright's folder for
caches, so a run after ``--prepare`` only measures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .machines import features, machine, results_file
from .report import table

ENGINES = ("tilewright", "torch", "inductor", "jax")
BACKEND = "torch_compile"


def models() -> dict[str, Callable[[], tuple[Any, tuple[Any, Any]]]]:
    """Name -> maker of a module of PyTorch that returns scores, and of its inputs and labels."""
    import torch
    from torch import nn

    def mlp() -> Any:
        layers = nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        return nn.Sequential(*layers), (torch.randn(64, 784), torch.randint(10, (64,)))

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
            self.projections, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            parts = self.projections(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
            return x + self.network(self.second(x))

    class Gpt(nn.Module):
        def __init__(self, width: int = 256, layers: int = 4, words: int = 1024, length: int = 128) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block(width, 8) for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

        def forward(self, tokens: Any) -> Any:
            x = self.blocks(self.words(tokens) + self.places.weight)
            return self.head(self.norm(x)).flatten(0, 1)

    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(128, 256, batch_first=True), nn.Linear(256, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    class Logits(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x).logits

    def bert() -> Any:
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model = Logits(BertForSequenceClassification(config))
        return model, (torch.randint(30000, (4, 128)), torch.randint(4, (4,)))

    def resnet50() -> Any:
        from transformers import ResNetConfig, ResNetForImageClassification

        model = Logits(ResNetForImageClassification(ResNetConfig(num_labels=10)))
        return model, (torch.randn(4, 3, 224, 224), torch.randint(10, (4,)))

    def mobilenet_v2() -> Any:
        from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

        config = MobileNetV2Config(num_labels=10, tf_padding=False, classifier_dropout_prob=0.0)
        model = Logits(MobileNetV2ForImageClassification(config))
        return model, (torch.randn(4, 3, 224, 224), torch.randint(10, (4,)))

    return {
        "mlp": mlp,
        "gpt": lambda: (Gpt(), (torch.randint(1024, (8, 128)), torch.randint(1024, (8 * 128,)))),
        "lstm": lambda: (Lstm(), (torch.randn(16, 64, 128), torch.randint(10, (16,)))),
        "bert": bert,
        "resnet50": resnet50,
        "mobilenet_v2": mobilenet_v2,
    }


def compiled_step(
    model: Any, batch: Any, precision: str, threads: int, group: Any = None, sharded: bool = False
) -> Any:
    """Tilewright's step of a model of PyTorch."""
    import torch

    import tilewright as tw

    return tw.train_step(
        model,
        torch.nn.CrossEntropyLoss(),
        tw.optim.AdamW(lr=1e-4),
        batch,
        threads=threads,
        precision=None if precision == "float32" else precision,
        nonfinite="ignore",
        group=group,
        sharded=sharded,
    )


def step_of(
    engine: str, name: str, precision: str, threads: int, group: Any = None, sharded: bool = False
) -> Callable[[], float]:
    """A function that makes one step and returns the loss; with a group of processes as its part of them,
    which divides Tilewright's optimizer state if `sharded`.
    """
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, (x, labels) = models()[name]()
    model.train()
    if engine == "tilewright":
        step = compiled_step(model, (x, labels), precision, threads, group, sharded)
        return lambda: float(step(x, labels))
    if engine == "jax":
        from .training_jax import step_of as jax_step_of

        return jax_step_of(name, precision, threads, model, x, labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    called = model
    if engine == "inductor":
        called = torch.compile(model)
    elif engine == BACKEND:
        from tilewright.integrations.torch_compile import tilewright

        called = torch.compile(model, backend=tilewright)
    if group is not None:
        called = torch.nn.parallel.DistributedDataParallel(called)

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = torch.nn.functional.cross_entropy(called(x), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def serve(pipe: Any, engine: str, name: str, precision: str, threads: int) -> None:
    """Make steps when asked: a number of seconds gives the times of the steps made in them."""
    try:
        import torch  # noqa: F401

        before = _peak()
        step = step_of(engine, name, precision, threads)
        losses = [step() for _ in range(3)]
        pipe.send(losses)
        while (seconds := pipe.recv()) is not None:
            times: list[float] = []
            end = time.perf_counter() + seconds
            while not times or time.perf_counter() < end:
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
            pipe.send((times, _peak() - before))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}"[:300])


def _peak() -> float:
    """The largest resident memory of this process so far, in MiB."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measure(name: str, precision: str, threads: int, seconds: float, engines: list[str]) -> dict[str, Any]:
    """The figures of a model by engine. Without `seconds`, the engines make their first steps only."""
    context = multiprocessing.get_context("spawn")
    children, figures = {}, {}
    for engine in engines:
        here, there = context.Pipe()
        child = context.Process(target=serve, args=(there, engine, name, precision, threads), daemon=True)
        child.start()
        losses = here.recv() if here.poll(400) else "did not begin within 400 s"
        if isinstance(losses, str):
            figures[engine] = {"failed": losses}
            child.kill()
        else:
            children[engine] = here, child
            figures[engine] = {"losses": losses, "times": []}
    rounds = 8 if seconds else 0
    for _ in range(rounds):
        for engine, (here, _) in children.items():
            here.send(seconds / rounds)
            found = here.recv()
            if isinstance(found, str):
                raise RuntimeError(f"{engine}: {found}")
            figures[engine]["times"] += found[0]
            figures[engine]["memory"] = found[1]
    for here, child in children.values():
        here.send(None)
        child.join(10)
        child.kill()
    for figure in figures.values():
        times = figure.pop("times", None)
        if times:
            figure |= {"ms": 1e3 * statistics.median(times), "least": 1e3 * min(times)}
    return {"model": name, "precision": precision, "threads": threads, "engines": figures}


def ratio_of(row: dict[str, Any]) -> float | None:
    """The fastest peer's time over Tilewright's."""
    times = {e: f["ms"] for e, f in row["engines"].items() if "ms" in f and e != BACKEND}
    own = times.pop("tilewright", None)
    return min(times.values()) / own if own and times else None


def markdown(result: dict[str, Any]) -> str:
    """The tables of a file of results."""
    info = result["machine"]
    date = max(r["date"] for r in result["rows"])
    parts = [
        f"{date}, {info['processor']} ({features(info['flags'])}), {info['cores']} cores; "
        "`python -m bench.training`. Median milliseconds of a training step; peak memory in MiB above that "
        "after the imports; Tilewright's contains that of exporting and compiling. The ratio is the fastest "
        "peer's time over Tilewright's."
    ]
    keys = sorted(
        {(r["precision"], r["threads"]) for r in result["rows"]}, key=lambda k: (k[0] != "float32", -k[1])
    )
    for precision, threads in keys:
        rows = [r for r in result["rows"] if (r["precision"], r["threads"]) == (precision, threads)]
        engines = [e for e in (*ENGINES, BACKEND) if e in ENGINES or any(e in r["engines"] for r in rows)]
        body = []
        for row in rows:
            figures = [row["engines"].get(e, {}) for e in engines]
            times = [f"{f['ms']:.3g}" if "ms" in f else "failed" if "failed" in f else "" for f in figures]
            memory = [f"{f['memory']:.0f}" if "memory" in f else "" for f in figures]
            found = ratio_of(row)
            body.append([row["model"], *times, f"{found:.2f}" if found else "", *memory])
        ratios = [x for r in rows if (x := ratio_of(r))]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            body.append(["geometric mean", *[""] * len(engines), f"{mean:.2f}", *[""] * len(engines)])
        head = ["model", *engines, "best peer ÷ ours", *[f"{e} MiB" for e in engines]]
        parts += [f"## {precision}, {threads} threads", table(head, body)]
        failed = [
            f"- {e}: {r['model']}: {f['failed']}"
            for r in rows
            for e, f in r["engines"].items()
            if "failed" in f
        ]
        if failed:
            parts += ["Without a time:", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--models", type=lambda s: s.split(","), default=list(models()))
    parser.add_argument("-p", "--precision", type=lambda s: s.split(","), default=["float32"])
    parser.add_argument("-e", "--engines", type=lambda s: s.split(","), default=list(ENGINES))
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-s", "--seconds", type=float, default=8.0, help="of each engine, for each model")
    parser.add_argument("--prepare", action="store_true", help="compile for the caches; no results")
    parser.add_argument("--results", type=Path, default=None)
    options = parser.parse_args()
    path = options.results or results_file("training")
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    for precision in options.precision:
        for name in options.models:
            seconds = 0 if options.prepare else options.seconds
            row = measure(name, precision, options.threads, seconds, options.engines)
            row["date"] = datetime.date.today().isoformat()
            print(
                name,
                precision,
                {e: f.get("ms", f.get("failed", "ready")) for e, f in row["engines"].items()},
                flush=True,
            )
            if options.prepare:
                continue
            same = [name, precision, options.threads]
            kept = [r for r in kept if [r["model"], r["precision"], r["threads"]] != same] + [row]
            result = {"machine": machine(), "rows": kept}
            path.write_text(json.dumps(result, indent=1) + "\n")
            path.with_suffix(".md").write_text(markdown(result))


if __name__ == "__main__":
    main()
