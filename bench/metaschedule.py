"""TVM's MetaSchedule with a limit of time: `tune` runs the search in a child process, `compiled` applies what
it found.

The search of a short budget differs from TVM's defaults (64 trials an iteration, a population of 512) in its
sizes. With the defaults ten minutes do not reach every kernel of a convolutional network once, and a kernel
without a trial runs as plain loops on one thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRIALS = 16  # of a kernel, before the scheduler chooses the next kernel
POPULATION, GENERATIONS = 128, 3  # of the evolutionary search, per iteration
RECORDS = "database_tuning_record.json"


def target(threads: int) -> Any:
    """LLVM for this processor, with `threads` cores."""
    import llvmlite.binding as llvm
    from tvm.target import Target

    return Target({"kind": "llvm", "mcpu": llvm.get_host_cpu_name(), "num-cores": threads})


def imported(onnx_file: Path, threads: int) -> Any:
    """The model in Relax, fused, with constants whose layout a schedule may change: the first half of TVM's
    pipeline `static_shape_tuning`.
    """
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax import transform
    from tvm.relax.frontend.onnx import from_onnx

    passes = [
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        relax.get_pipeline("zero"),
        transform.AttachAttrLayoutFreeBuffers(),
    ]
    with target(threads):
        return tvm.transform.Sequential(passes)(from_onnx(onnx.load(onnx_file), keep_params_in_input=False))


def tune(onnx_file: Path, folder: Path, threads: int, seconds: float) -> int:
    """Search for `seconds`, not counting imports; returns the number of trials in the database in `folder`.

    Raises:
        RuntimeError: the search ended with an error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as hidden, (folder / "log").open("w") as log:
        # TVM imports torch if it is there, in every process that builds or measures, for half of its start.
        (Path(hidden) / "torch.py").write_text('raise ImportError("not needed here")\n')
        search = subprocess.Popen(
            [sys.executable, "-m", "bench.metaschedule", str(onnx_file), str(folder), str(threads)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": hidden, "TVM_NUM_THREADS": str(threads)},
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        assert search.stdout is not None
        try:
            search.stdout.readline()  # it has imported what it needs
            status = search.wait(seconds)
        except subprocess.TimeoutExpired:
            status = 0
        finally:
            if search.poll() is None:
                os.killpg(search.pid, signal.SIGKILL)
                search.wait()
    if status:
        raise RuntimeError(f"the search ended with status {status}: {(folder / 'log').read_text()[-300:]}")
    return len((folder / RECORDS).read_bytes().splitlines())


def compiled(onnx_file: Path, folder: Path, threads: int) -> Any:
    """The executable with the best schedules of the database in `folder`; its weights are packed."""
    import tvm
    from tvm.relax import transform

    module = imported(onnx_file, threads)
    with target(threads):
        passes = [
            transform.MetaScheduleApplyDatabase(str(folder)),
            transform.SplitLayoutRewritePreproc(),
            transform.LiftTransformParams(),
            transform.FoldConstant(),
        ]
        return tvm.compile(tvm.transform.Sequential(passes)(module), target(threads))


def _search(onnx_file: Path, folder: Path, threads: int) -> None:
    import tvm.s_tir.tensor_intrin  # noqa: F401  # now, since it takes half a minute
    from tvm.s_tir import meta_schedule
    from tvm.s_tir.meta_schedule.relax_integration import tune_relax

    def build(module: Any, target: Any, _: Any) -> Any:
        """TVM's default, without its import of tensor intrinsics: that takes longer than a build may take."""
        from tvm.driver import build
        from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

        return build(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target=target)

    module = imported(onnx_file, threads)
    print("ready", flush=True)
    os.dup2(2, 1)  # TVM's log goes to the file, since nobody reads the pipe from here on
    tune_relax(
        module,
        {},
        target(threads),
        str(folder),
        max_trials_global=1_000_000,
        num_trials_per_iter=TRIALS,
        builder=meta_schedule.builder.LocalBuilder(max_workers=os.cpu_count(), f_build=build),
        strategy=meta_schedule.search_strategy.EvolutionarySearch(
            population_size=POPULATION, genetic_num_iters=GENERATIONS
        ),
        seed=0,
    )


if __name__ == "__main__":
    _search(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
