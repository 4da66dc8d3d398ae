"""Damaged and hostile model files: each must either compile or be refused with a clear error.

`python -m tests.conformance.mutated_files` makes 700 mutations of small ONNX, ``.pt2`` and StableHLO files;
mutation `n` depends only on its number. Each file is imported, and compiled if the import succeeds, in a
process of its own with limits on memory and time. Bad outcomes are a crash, a hang, too much memory, an
internal error of the compiler, reading a file outside of the model's folder, and running code from the file.
The outcomes are kept in ``mutated_files.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from tilewright.errors import InternalError, TilewrightError

from .mutations import Mutation, make

DATA = Path(__file__).with_suffix(".json")
COUNT = 700
MEMORY = 2 << 30
"""Bytes of address space that a child process may use beyond those it starts with."""
SECONDS = 60


def outcome(mutation: Mutation, native: bool = True) -> str:
    """``compiled``, ``refused: ...``, or ``BAD: ...`` with a description. The file is read in a forked child
    process, so that the frameworks are loaded only once.
    """
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "model"
        folder.mkdir()
        outside = Path(root) / "outside"
        outside.mkdir()
        (outside / "secret.bin").write_bytes(bytes(1 << 16))
        path = make(mutation, folder, outside)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            _in_child(path, outside, write, native)
        os.close(write)
        found = _wait(child, read)
        if (outside / "canary").exists():
            found = "BAD: the file ran code"
        return found.replace(str(Path(root).resolve()), "").replace(root, "")


def _in_child(path: Path, outside: Path, write: int, native: bool) -> None:
    """Write the outcome to the pipe and end the process; this never returns."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        found = _attempt(path, outside, native)
    except BaseException as error:  # every exception is recorded as the outcome
        found = f"BAD: {type(error).__name__}: {error}"
    os.write(write, found.encode()[:4000])
    os._exit(0)


def _attempt(path: Path, outside: Path, native: bool) -> str:
    seen: list[str] = []
    home = str(outside.resolve())

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if (
            event == "open"
            and isinstance(args[0], str)
            and os.path.realpath(args[0]).startswith((home, "/etc/"))
        ):
            if not args[0].startswith("/etc/"):
                seen.append(args[0])

    sys.addaudithook(hook)
    import tilewright as tw
    from tilewright.driver.frontend_registry import import_model

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if native:
                tw.compile(path, cache=False).close()
            else:
                import_model(path, None, {}, None)
        result = "compiled"
    except InternalError as error:
        where = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
        result = f"BAD: {error} [{Path(where.filename).name}:{where.lineno}]"
    except TilewrightError as error:
        result = f"refused: {error}"
    return f"BAD: read {seen[0]}" if seen else result


def _wait(child: int, read: int) -> str:
    """The child's message, or the way the process ended if there is none."""
    ready, _, _ = select.select([read], [], [], SECONDS)
    if not ready:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        return f"BAD: it hangs ({SECONDS} s)"
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if not text:
        return f"BAD: the process died (status {status})"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument(
        "--only", type=int, nargs="*", help="run these mutations; the results file is not written"
    )
    parser.add_argument(
        "--import-only", action="store_true", help="import without compiling; the results file is not written"
    )
    parser.add_argument("--fresh", action="store_true", help="also run mutations that have results")
    options = parser.parse_args()
    load_frameworks()
    numbers = options.only if options.only else range(options.count)
    kept = not options.only and not options.import_only
    rows: list[dict[str, Any]] = _earlier() if kept and not options.fresh else []
    known = {row["number"] for row in rows}
    for number in numbers:
        if number in known:
            continue
        mutation = Mutation.numbered(number)
        start = time.monotonic()
        result = outcome(mutation, native=not options.import_only)
        rows.append({"number": number, "base": mutation.base, "kind": mutation.kind, "outcome": result})
        slow = time.monotonic() - start > 20
        if result.startswith("BAD") or options.only or slow:
            print(number, mutation.base, mutation.kind, result, "SLOW" if slow else "", flush=True)
        if kept:  # written after each mutation, so that an interrupted run loses nothing
            DATA.write_text(json.dumps(_document(rows), indent=1) + "\n")
    print(", ".join(f"{n} {what}" for what, n in _counts(rows).most_common()))


def _counts(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(r["outcome"].split(":")[0] for r in rows)


def _earlier() -> list[dict[str, Any]]:
    """The rows of the data with good outcomes."""
    rows = json.loads(DATA.read_text())["mutations"] if DATA.exists() else []
    return [row for row in rows if not row["outcome"].startswith("BAD")]


def _document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The contents of the data file: counts and outcomes."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {platform.system()}",
        "counts": _counts(rows),
        "mutations": [
            {**r, "outcome": r["outcome"].splitlines()[0][:160]}
            for r in sorted(rows, key=lambda r: r["number"])
        ],
    }


def load_frameworks() -> None:
    import onnx  # noqa: F401
    import torch
    import torch._export.serde.serialize
    import torch.export.pt2_archive._package

    import tilewright.frontends.onnx.importer
    import tilewright.frontends.stablehlo.importer
    import tilewright.frontends.torch.importer  # noqa: F401

    random.seed(0)
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
