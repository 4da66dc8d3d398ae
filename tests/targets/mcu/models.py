"""`python -m tests.targets.mcu.models` runs the models of `tests.ports` on QEMU's boards and on `cpu`.

Each model is compiled for a processor with the memories of its board. Float results agree to 1e-5 of the
largest, others exactly. The message of a refusal is an outcome, too: it says how many bytes are missing, or
which size has no bound. Outcomes are in ``models.json``, written after each model.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.ports.models import MODELS, compared, expected
from tests.targets.mcu.boards import MACHINES
from tests.targets.mcu.run_library import run_library

import tilewright as tw

DATA = Path(__file__).with_name("models.json")
NAMES = [name for name in MODELS if not name.startswith("generated")]


def outcome(name: str, processor: str) -> str:
    """``ok`` with the largest difference from `cpu`, ``refused`` with the reason, or what is wrong."""
    model, wanted = expected(name)
    board = MACHINES[processor]
    try:
        library = model.compile(f"{processor}:flash={board.flash_size}+ram={board.ram_size}")
    except tw.CompileError as error:
        return f"refused: {error}"
    if library.metadata["static"]["refused"]:
        return f"refused: {library.metadata['static']['refused']}"
    return compared(run_library(library, processor, model.inputs), wanted, model.exact)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processors", nargs="+", choices=[*MACHINES], default=[*MACHINES])
    parser.add_argument("--models", nargs="+", choices=NAMES, default=NAMES)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    document: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}
    sound = True
    for name in given.models:
        for processor in given.processors:
            found = outcome(name, processor)
            sound = sound and found.startswith(("ok", "refused"))
            print(f"{processor} {name}: {found}", flush=True)
            document["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
            document.setdefault(processor, {"machine": f"QEMU's {MACHINES[processor].machine}"})[name] = found
            DATA.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
