"""The process in which a model is minimized: ``python -m tilewright.tools.minimize TASK RESULT``, with files
that `minimize` writes and reads.
"""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dialects.func import Func
from ...driver.random_inputs import write_npz
from ...errors import CompileError, ShapeError, TilewrightError
from ...ir.constant import Constant
from ...ir.parser import parse
from ...ir.printer import print_op
from . import MinimizedModel, import_module
from .delta_debugging import Reducer
from .failure import Failure, Options, attempt
from .graphs import Case
from .onnx_nodes import reduce_nodes

if TYPE_CHECKING:
    from ...ir.core import Module


def main(task: str, result: str) -> None:
    job = pickle.loads(Path(task).read_bytes())
    try:
        for name in job["imports"]:
            import_module(name)
        outcome: Any = _of_nodes(job) if "onnx" in job else _of_graph(job)
    except TilewrightError as error:
        outcome = error
    Path(result).write_bytes(pickle.dumps(outcome))


def _say(text: str) -> None:
    print(text, flush=True)


def _of_graph(job: dict[str, Any]) -> MinimizedModel | None:

    _load_compiler(job["target"])
    module = parse(
        job["text"], {key: Constant(array, name) for key, (array, name) in job["constants"].items()}
    )
    options = Options(job["target"], job["precision"], job["threads"], job["timeout"])
    main = module.symbol("main")
    assert isinstance(main, Func)
    first = {name: value.array for name, value in main.states}
    main.expose_updates()  # a state becomes an input
    given = job["inputs"] and _typed(module, {**first, **job["inputs"]})
    _say("trying the whole model")
    failure, inputs = attempt(module, given, options, search=given is None)
    if failure is None:
        return None
    if failure.stage == "random inputs":
        raise CompileError(f"inputs must be given, since random ones cannot be generated: {failure.message}")
    case = Case(module, None if failure.stage == "compile" else given if given is not None else inputs)
    attempts = 1
    if not job["check"]:
        _say(f"the model {failure}")
        reducer = Reducer(case, failure, options, _say)
        case, failure, attempts = reducer.run(), reducer.failure, reducer.attempts
    return _written(job, case, failure, attempts)


def _load_compiler(target: str) -> None:
    """Import the compiler's modules, so that each fork has them."""
    from ...targets.registry import resolve

    target_package = type(resolve(target)).__module__.rpartition(".")[0]
    for name in (
        "analysis",
        "passes",
        "lowering",
        "schedule",
        "artifact",
        "runtime",
        "targets.llvm",
        target_package,
    ):
        package = importlib.import_module(name if name == target_package else f"tilewright.{name}")
        for module_info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module_info.name)


def _typed(module: Module, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays in the order of the inputs, with the inputs' types. A .npz file stores types that NumPy lacks as
    bytes, and strings with a fixed length.
    """
    main = module.symbol("main")
    assert isinstance(main, Func)
    if set(arrays) != set(main.arg_names):
        raise ShapeError(f"inputs {', '.join(arrays)} are given, the model has {', '.join(main.arg_names)}")
    types = {n: a.type.dtype.numpy for n, a in zip(main.arg_names, main.body.args, strict=True)}
    inputs = {n: arrays[n].view(t) if arrays[n].dtype.kind == "V" else arrays[n] for n, t in types.items()}
    return {n: x.astype(types[n]) if x.dtype.kind == "U" else x for n, x in inputs.items()}


def _of_nodes(job: dict[str, Any]) -> MinimizedModel | None:
    import onnx

    from ...frontends.onnx import import_onnx  # noqa: F401 (forks have it then)

    model, failure, attempts = reduce_nodes(
        onnx.load_from_string(job["onnx"]), job["dims"], job["timeout"], _say
    )
    if failure is None:
        return None
    path = Path(job["output"]).with_suffix(".onnx")
    if not job["check"]:
        onnx.save(model, path)
    return MinimizedModel(
        path, None, f"the model {failure}", len(model.graph.node), attempts, _command(job, path, None)
    )


def _written(job: dict[str, Any], case: Case, failure: Failure, attempts: int) -> MinimizedModel:
    path = Path(job["output"]).with_suffix(".tw")
    data = None if case.inputs is None else path.with_suffix(".npz")
    command = _command(job, path, data)
    minimized = MinimizedModel(path, data, f"the model {failure}", len(case.operations), attempts, command)
    if not job["check"]:
        note = "".join(f"// {line}\n" for line in f"{minimized.failure}\n{command}".splitlines())
        path.write_text(note + print_op(case.module, locations=True, resources=True) + "\n")
        if data is not None and case.inputs is not None:
            arrays = {n: x.astype(str) if x.dtype.kind == "O" else x for n, x in case.inputs.items()}
            write_npz(data, arrays)
    return minimized


def _command(job: dict[str, Any], path: Path, inputs: Path | None) -> str:
    options = [
        ("--target", job["target"] if job["target"] != "cpu" else None),
        ("--precision", job["precision"]),
    ]
    options += [
        ("--threads", job["threads"]),
        ("--inputs", inputs),
        *(("--import", name) for name in job["imports"]),
    ]
    parts = ["tilewright", "minimize", "--check", str(path)]
    return shlex.join(parts + [str(p) for name, value in options if value is not None for p in (name, value)])


if __name__ == "__main__":
    main(*sys.argv[1:])
