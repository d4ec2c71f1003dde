"""`python -m benchmarks.exporters.child TOOL FOLDER PART`: runs in a tool's environment, and makes its files there.

It needs nothing but the tool. `FOLDER/made.json` is written before and after each file, so that whoever started this
process knows what killed it.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import warnings
from pathlib import Path


def main(tool: str, folder: Path, only: str) -> None:
    """Make what is not made yet and has `only` in its name; what a tool raises is noted, and the next one follows."""
    warnings.simplefilter("ignore")
    log = folder / "made.json"
    made = json.loads(log.read_text(encoding="utf-8")) if log.is_file() else {}
    module = importlib.import_module(f"benchmarks.exporters.{tool}")
    for name, write in module.files(folder):
        if only not in name or name in made:
            continue
        made[name] = "started"
        log.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        random.seed(0)
        path = folder / f"{name}.onnx"
        try:
            write(path)
            there = path.is_file() or any((folder / name).glob("*.onnx"))
            made[name] = "" if there else "nothing was written"
        except Exception as error:
            made[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            path.unlink(missing_ok=True)
        log.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
