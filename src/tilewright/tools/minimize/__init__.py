"""`tilewright.minimize`: the smallest model that fails in the same way as a given one."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...artifact.disk_cache import digest
from ...errors import CompileError, TilewrightError

if TYPE_CHECKING:
    from ...frontends.dims import DimsArgument


@dataclass(frozen=True)
class MinimizedModel:
    """A minimized model.

    `path` is its file, `inputs` the file of its inputs (None: it fails when it is compiled), `failure` how it
    fails, `operations` the number of its operations, `attempts` the number of attempts, `command` the command
    that shows the failure.
    """

    path: Path
    inputs: Path | None
    failure: str
    operations: int
    attempts: int
    command: str

    def __str__(self) -> str:
        noun = "operation" if self.operations == 1 else "operations"
        return (
            f"{self.path}: {self.operations} {noun}, after {self.attempts} attempts\n"
            f"{self.failure}\nto reproduce: {self.command}"
        )


def minimize(
    model: object,
    args: Sequence[Any] | None = None,
    *,
    output: str | Path = "minimized",
    target: str = "cpu",
    precision: str | None = None,
    dims: DimsArgument | None = None,
    kwargs: Mapping[str, Any] | None = None,
    threads: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    imports: Sequence[str] = (),
    check: bool = False,
    progress: Callable[[str], None] | None = None,
) -> MinimizedModel | None:
    """Make a failing model as small as possible. A model fails if it is refused, crashes or does not end, or
    if its results differ from the interpreter's.

    Each attempt runs in a process of its own.

    Args:
        model: As for `tilewright.compile`.
        args: As for `tilewright.compile`.
        output: The beginning of the files' names. ``output.tw`` is the module as text, which
            `tilewright.compile` reads; ``output.npz`` has its inputs; a model that cannot be imported becomes
            ``output.onnx``.
        target: As for `tilewright.compile`.
        precision: As for `tilewright.compile`.
        dims: As for `tilewright.compile`.
        kwargs: As for `tilewright.compile`.
        threads: As for `tilewright.compile`.
        inputs: Arrays by name to run the model on; random ones by default.
        timeout: The most seconds of an attempt.
        imports: Modules, or files of Python, that each process imports first, such as one with operators of
            your own.
        check: Only try the model, and write nothing.
        progress: Called with a line of text for each step.

    Returns:
        The minimized model; None if the model does not fail.

    Raises:
        CompileError: The model cannot be imported and is not an ONNX model; the message says why.
        TilewrightError: The process that reduces the model ended without an answer.
    """
    from ...driver.frontend_registry import import_model

    for name in imports:
        import_module(name)
    job: dict[str, Any] = {
        "target": target,
        "precision": precision,
        "threads": threads,
        "timeout": timeout,
        "imports": tuple(imports),
        "inputs": None if inputs is None else dict(inputs),
        "output": str(output),
        "check": check,
    }
    try:
        module = import_model(model, args, dict(kwargs or {}), dims)
    except Exception as error:
        onnx = _onnx_model(model)
        if onnx is None:
            if isinstance(error, TilewrightError):
                raise
            raise CompileError(
                f"the model cannot be imported, and only ONNX models are reduced by nodes: {error}"
            ) from error
        job |= {"onnx": onnx, "dims": dims}
    else:
        from ...ir.printer import print_op, resources_of

        job |= {
            "text": print_op(module, locations=True),
            "constants": {key: (c.array, c.name) for key, c in resources_of(module).items()},
        }
    return _in_clean_process(job, progress or (lambda text: None))


def import_module(name: str) -> Any:
    """Import a module by name, or a file of Python, which is run once.

    A file is imported under a name that no other module has, so a file ``onnx.py`` does not replace the
    package ``onnx``.
    """
    import importlib.util

    if not name.endswith(".py"):
        return importlib.import_module(name)
    file = Path(name).resolve()
    own = f"_file_{re.sub(r'[^a-zA-Z0-9_]', '_', file.stem)}_{digest(str(file))[:12]}"
    for known in (sys.modules.get(file.stem), sys.modules.get(own)):
        if Path(getattr(known, "__file__", None) or "").resolve() == file:
            return known
    spec = importlib.util.spec_from_file_location(own, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise CompileError(f"{name}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[own]  # a partly run module would be returned by the next import
        raise
    return module


def _onnx_model(model: Any) -> bytes | None:
    if type(model).__module__.startswith("onnx"):
        data: bytes = model.SerializeToString()
        return data
    if not isinstance(model, (str, Path)) or Path(model).suffix != ".onnx":
        return None
    try:
        import onnx

        serialized: bytes = onnx.load(str(model)).SerializeToString()
        return serialized
    except Exception:  # not a complete file
        return None


def _in_clean_process(job: dict[str, Any], say: Callable[[str], None]) -> MinimizedModel | None:
    """Run a task in a new process, since forking needs a process in which no framework has started
    threads.
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-minimize-") as folder:
        task, result = Path(folder) / "task", Path(folder) / "result"
        task.write_bytes(pickle.dumps(job))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-m", "tilewright.tools.minimize", str(task), str(result)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                say(line.rstrip())
            process.wait()
        finally:
            process.kill()
        if not result.exists():
            raise TilewrightError(
                f"the process that reduces the model ended with exit code {process.returncode}"
            )
        outcome = pickle.loads(result.read_bytes())
    if isinstance(outcome, Exception):
        raise outcome
    minimized: MinimizedModel | None = outcome
    return minimized


__all__ = ["MinimizedModel", "import_module", "minimize"]
