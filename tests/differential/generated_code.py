"""Record the code that is generated for a set of models, and compare the records of two versions.

    python -m tests.differential.generated_code write FOLDER
    python -m tests.differential.generated_code compare FOLDER OTHER --rename old_name=new_name

`write` compiles each model of `sample_models.py` for each of `TARGETS` and writes
``FOLDER/MODEL/TARGET/LEVEL.txt``: the module at every level, the code of all kernels and of the host program,
the metadata, and digests of the packed weights. For a model that the target refuses, the only level is
``refusal``. ``FOLDER/seconds.json`` holds the processor seconds of every compilation, which are not compared.
Set PYTHONPATH to the ``src`` folder of another version to record that version.

`compare` exits with 1 if any text differs in a way that the renamings do not explain.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import resource
import sys
import tarfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TARGETS = (
    "cpu:x86-64-v4+avx512vnni+avx512bf16+avxvnni+amx-tile+amx-bf16+amx-int8",
    "cpu:x86-64-v3",
    "wasm32",
    "webgpu",
)
LEVELS = ("graph", "tensor", "loop", "host")
SECONDS = "seconds.json"


# -- Recording -----------------------------------------------------------------------------------------------


Seconds = dict[str, dict[str, float]]
"""Processor seconds of each compilation, by model and target."""


def write(folder: Path, models: Sequence[str] = (), targets: Sequence[str] = TARGETS) -> Seconds:
    """Record the named models (all if there are no names) in `folder`, and return the seconds of each
    compilation.

    Raises:
        SystemExit: a name is of no model; the message lists the known names.
    """
    with TemporaryDirectory() as cache:
        os.environ["TILEWRIGHT_CACHE_DIR"] = cache  # a cache would contain kernels of an older version
        os.environ.pop("TILEWRIGHT_CPU", None)  # the variable changes the features of targets
        return _write(folder, models, targets)


def _write(folder: Path, models: Sequence[str], targets: Sequence[str]) -> Seconds:
    from .sample_models import SAMPLES

    known = {sample.name: sample for sample in SAMPLES}
    if unknown := sorted(set(models) - set(known)):
        raise SystemExit(f"unknown model {unknown[0]!r}; known: {', '.join(known)}")
    for target in targets:
        _warm_up(target)
    seconds: Seconds = {}
    for name in models or known:
        compiled = known[name].build()
        seconds[name] = {}
        for target in targets:
            texts, seconds[name][target] = _texts(compiled, target)
            place = folder / name / target.replace(":", "-")
            place.mkdir(parents=True, exist_ok=True)
            for old in place.glob("*.txt"):
                old.unlink()
            for level, text in texts.items():
                (place / f"{level}.txt").write_text(normalized(level, text))
            print(f"{name} {target}: {len(texts)} texts, {seconds[name][target]:.2f} s", file=sys.stderr)
    (folder / SECONDS).write_text(json.dumps(seconds, indent=1) + "\n")
    return seconds


def _warm_up(target: str) -> None:
    """Load the target's code generator and compile its runtime, so that no model's time includes this."""
    import numpy as np

    import tilewright as tw

    tw.compile(lambda x: x + x, (np.zeros(4, np.float32),), target=target, cache=False).close()


def _processor_seconds() -> float:
    """Processor seconds of this process and of its child processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _texts(compiled: Any, target: str) -> tuple[dict[str, str], float]:
    """The text of every level, and the processor seconds of the compilation."""
    import tilewright as tw

    begin = _processor_seconds()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library = compiled(target)
    except tw.CompileError as error:
        return {"refusal": f"{type(error).__name__}\n{error}\n"}, _processor_seconds() - begin
    seconds = _processor_seconds() - begin
    code = "wgsl" if target == "webgpu" else "llvm"
    texts = {level: library.ir(level) for level in (*LEVELS, code)}
    texts["metadata"] = json.dumps(library.metadata)
    texts.update(_saved(library, target))
    library.close()
    return texts, seconds


def _saved(library: Any, target: str) -> Iterator[tuple[str, str]]:
    """Digests of the packed weights and, for WebGPU, the host program, which no level of `ir` shows."""
    with TemporaryDirectory() as folder:
        if target != "webgpu":
            library.save(Path(folder, "model.wasm" if target == "wasm32" else "model.so"), weights="beside")
            weights = Path(folder, "model.weights")
            yield "weights", _digest(weights.read_bytes()) if weights.exists() else "none\n"
            return
        with tarfile.open(library.save(Path(folder, "model.tar"))) as archive:
            files = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]
        yield "program", files["program.json"].decode()
        yield "weights", _digest(files["weights.bin"])


def _digest(data: bytes) -> str:
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}\n"


_PLACE = re.compile(r"[\w./<>-]+\.py:\d+")
_STRING_LENGTH = re.compile(r'\[\d+ x i8\] c"')


def normalized(level: str, text: str) -> str:
    """A text without positions in Python files and without other parts that change with a message.

    Positions in Python files become ``FILE:LINE``. Strings in LLVM IR lose their lengths, so that a renaming
    can explain a changed message. JSON is sorted by keys, one value in a line, without the digest of the
    imported model, which depends on its text.
    """
    text = _PLACE.sub("FILE:LINE", text)
    if level == "llvm":
        return _STRING_LENGTH.sub('[LENGTH x i8] c"', text)
    if level in ("metadata", "program"):
        return json.dumps(_plain(json.loads(text)), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return text


def _plain(value: Any) -> Any:
    """The JSON value without digests of models and without repeated positions, which appear when several
    lines become one.
    """
    if isinstance(value, dict):
        found = {key: _plain(part) for key, part in value.items() if key != "xxh3_128"}
        if isinstance(found.get("locations"), list):
            found["locations"] = list(dict.fromkeys(found["locations"]))
        return found
    return [_plain(part) for part in value] if isinstance(value, list) else value


# -- Comparing -----------------------------------------------------------------------------------------------

NONE: Mapping[str, str] = {}
EQUAL, RENAMED, REWORDED, DIFFERENT = "equal", "equal after renaming", "refused in other words", "different"


@dataclass(frozen=True)
class Result:
    """The result of comparing one text; `difference` holds lines of a unified diff."""

    model: str
    target: str
    level: str
    state: str
    difference: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.model} {self.target} {self.level}: {self.state}", *self.difference])


def compare(old: Path, new: Path, renamings: Mapping[str, str] = NONE, lines: int = 20) -> list[Result]:
    """The results for every text that is in either folder.

    `renamings` are applied to the old texts that differ. At most `lines` lines of each difference are kept.
    """
    paths = sorted({path.relative_to(folder) for folder in (old, new) for path in folder.glob("*/*/*.txt")})
    return [_compared(old, new, path, renamings, lines) for path in paths]


def _compared(old: Path, new: Path, path: Path, renamings: Mapping[str, str], lines: int) -> Result:
    model, target, level = path.with_suffix("").parts
    if absent := [folder for folder in (old, new) if not (folder / path).exists()]:
        return Result(model, target, level, DIFFERENT, tuple(f"  absent from {folder}" for folder in absent))
    before, after = ((folder / path).read_text() for folder in (old, new))
    if before == after:
        return Result(model, target, level, EQUAL)
    if renamings:
        before = normalized(level, renamed(before, renamings))
        if before == after:
            return Result(model, target, level, RENAMED)
    same_refusal = level == "refusal" and before.partition("\n")[0] == after.partition("\n")[0]
    # Without this limit, a difference of two long texts would take minutes.
    begin = max(0, _first_difference(before, after) - 3)
    first, second = (text.splitlines()[begin : begin + 50 * lines] for text in (before, after))
    diff = difflib.unified_diff(first, second, "old", f"new (from line {begin + 1})", lineterm="")
    state = REWORDED if same_refusal else DIFFERENT
    return Result(model, target, level, state, tuple(f"  {line[:300]}" for line in islice(diff, lines)))


def _first_difference(before: str, after: str) -> int:
    """The number of the first line, from 0, in which the texts differ."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    different = (k for k, (a, b) in enumerate(pairs) if a != b)
    return next(different, min(before.count("\n"), after.count("\n")))


def renamed(text: str, renamings: Mapping[str, str]) -> str:
    """`text` with all renamings applied at once.

    A name is replaced where it is not part of a longer word of letters, digits and underscores.
    """
    if not renamings:
        return text
    pattern = "|".join(map(_whole, sorted(renamings, key=len, reverse=True)))
    return re.sub(pattern, lambda match: renamings[match[0]], text)


def _whole(name: str) -> str:
    """A regular expression for `name` that does not match part of a longer word."""
    before = r"(?<!\w)" if re.match(r"\w", name) else ""
    after = r"(?!\w)" if re.search(r"\w$", name) else ""
    return before + re.escape(name) + after


# -- The command line ----------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="generated_code", description="Compare generated code.")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="record the code that this version generates")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--model", action="append", default=[], help="only this model; may be repeated")
    writing.add_argument("--target", action="append", help="only this target; may be repeated")
    comparing = commands.add_parser("compare", help="compare two recorded folders")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help="a changed name")
    comparing.add_argument(
        "--renames", type=Path, help="a JSON file with an object of old names and their new names"
    )
    comparing.add_argument(
        "--lines", type=int, default=20, help="lines to show of a difference, at most (default: 20)"
    )
    options = parser.parse_args(arguments)
    if options.command == "write":
        write(options.folder, options.model, options.target or TARGETS)
        return 0
    return _report(options.old, options.new, _renamings(options.rename, options.renames), options.lines)


def _renamings(pairs: Sequence[str], file: Path | None) -> dict[str, str]:
    found = json.loads(file.read_text()) if file else {}
    for pair in pairs:
        old, separator, new = pair.partition("=")
        if not (old and separator):
            raise SystemExit(f"--rename {pair!r}: expected OLD=NEW")
        found[old] = new
    return found


def _report(old: Path, new: Path, renamings: Mapping[str, str], lines: int) -> int:
    results = compare(old, new, renamings, lines)
    if not results:
        raise SystemExit(f"neither {old} nor {new} holds recorded texts")
    for result in results:
        print(result)
    counts = Counter(result.state for result in results)
    summary = ", ".join(f"{counts[state]} {state}" for state in (EQUAL, RENAMED, REWORDED, DIFFERENT))
    print(f"{len(results)} texts: {summary}")
    _show_seconds(old, new)
    return 1 if counts[DIFFERENT] else 0


def _show_seconds(old: Path, new: Path) -> None:
    """Print the sums of processor seconds by target."""
    if not all((folder / SECONDS).exists() for folder in (old, new)):
        return
    before, after = (json.loads((folder / SECONDS).read_text()) for folder in (old, new))
    sums = Counter[str](), Counter[str]()
    for model in before.keys() & after.keys():
        for target in before[model].keys() & after[model].keys():
            sums[0][target] += before[model][target]
            sums[1][target] += after[model][target]
    for target in sorted(sums[0]):
        print(f"processor seconds, {target}: {sums[0][target]:.2f} old, {sums[1][target]:.2f} new")


if __name__ == "__main__":
    raise SystemExit(main())
