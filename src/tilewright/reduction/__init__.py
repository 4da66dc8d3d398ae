"""`tilewright.reduce`: a model that fails, made as small as it can be while it fails in the same way."""

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

from ..disk_cache import digest
from ..errors import CompileError, TilewrightError

if TYPE_CHECKING:
    from ..compiler import Dims


@dataclass(frozen=True)
class Reduction:
    """A reduced model: its file and that of its inputs (None: it fails when it is compiled), how it fails, and the command that shows it."""

    path: Path
    inputs: Path | None
    failure: str
    operations: int
    attempts: int
    command: str

    def __str__(self) -> str:
        noun = "operation" if self.operations == 1 else "operations"
        return f"{self.path}: {self.operations} {noun}, after {self.attempts} attempts\n{self.failure}\nshow it again: {self.command}"


def reduce(
    model: Any,
    args: Sequence[Any] | None = None,
    *,
    output: str | Path = "reduced",
    target: str = "cpu",
    precision: str | None = None,
    dims: Dims | None = None,
    kwargs: Mapping[str, Any] | None = None,
    threads: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    imports: Sequence[str] = (),
    check: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Reduction | None:
    """Reduce a model that fails: it is refused, it crashes or does not end, or its results are not the interpreter's.

    Model and options are those of `tilewright.compile`. It is run on `inputs` (arrays by name), or on random ones. Everything is tried in
    processes of their own, of at most `timeout` seconds. `imports` are modules, or files of Python, to be imported first there, such as one
    with operators of your own. Written are ``output.tw``, which `tilewright.compile` reads, and with the inputs ``output.npz``; for a model
    that is not even imported, ``output.onnx``. None if the model does not fail. With `check` it is only tried, and nothing is written.

    Raises:
        CompileError: the model cannot be imported and is no ONNX model; the message says why.
    """
    from .. import compiler

    for name in imports:
        import_module(name)
    job: dict[str, Any] = {
        "target": target, "precision": precision, "threads": threads, "timeout": timeout, "imports": tuple(imports),
        "inputs": None if inputs is None else dict(inputs), "output": str(output), "check": check,
    }  # fmt: skip
    try:
        module = compiler.import_model(model, args, dict(kwargs or {}), dims)
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
        from ..ir.printer import print_op, resources_of

        job |= {
            "text": print_op(module, locations=True),
            "constants": {key: (c.array, c.name) for key, c in resources_of(module).items()},
        }
    return _in_clean_process(job, progress or (lambda text: None))


def import_module(name: str) -> Any:
    """The module of a name, or of a file of Python; a file is run once.

    A file is imported under a name that no other module has: one called ``onnx.py`` leaves the package ``onnx`` where it is.
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
        del sys.modules[own]  # half of it would be found when it is asked for again
        raise
    return module


def _onnx_model(model: Any) -> bytes | None:
    if type(model).__module__.startswith("onnx"):
        return model.SerializeToString()  # type: ignore[no-any-return]
    if not isinstance(model, (str, Path)) or Path(model).suffix != ".onnx":
        return None
    try:
        import onnx

        return onnx.load(str(model)).SerializeToString()  # type: ignore[no-any-return]
    except Exception:  # not a whole file
        return None


def _in_clean_process(job: dict[str, Any], say: Callable[[str], None]) -> Reduction | None:
    """Forking needs a process in which no framework has started threads."""
    with tempfile.TemporaryDirectory(prefix="tilewright-reduce-") as folder:
        task, result = Path(folder) / "task", Path(folder) / "result"
        task.write_bytes(pickle.dumps(job))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-m", "tilewright.reduction", str(task), str(result)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                say(line.rstrip())
            process.wait()
        finally:
            process.kill()
        if not result.exists():
            raise TilewrightError(f"reducing ended with exit code {process.returncode}")
        found = pickle.loads(result.read_bytes())
    if isinstance(found, Exception):
        raise found
    return found  # type: ignore[no-any-return]


__all__ = ["Reduction", "import_module", "reduce"]
