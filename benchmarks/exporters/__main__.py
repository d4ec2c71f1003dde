"""ONNX files as other tools write them, and what onnxgen makes of each.

    python -m benchmarks.exporters tools
    python -m benchmarks.exporters make --tool NAME --python ENV/bin/python --out DIR [--only PART] [--again]
    python -m benchmarks.exporters judge DIR [--tool NAME] [--again] [--timeout 240] [--write]

`tools` lists the tools and what each needs installed. `make` writes DIR/NAME/*.onnx in an environment with the tool;
what the tool itself refuses is noted in DIR/NAME/made.json. Tools that change files (onnxsim, onnxslim, ...) take those
of torch_script and torch_dynamo in DIR, so make these first. `judge` generates, verifies, and loads each file in
onnxruntime, and remembers what it found in DIR/judged.json; `--write` renews exporters.csv and EXPORTERS.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.exporters import making
from benchmarks.exporters.judging import judge
from benchmarks.exporters.page import as_csv, as_page, overview

PAGE = Path(__file__).parents[1] / "EXPORTERS.md"
ROWS = Path(__file__).with_name("exporters.csv")


def main() -> int:
    given = _parser().parse_args()
    if given.what == "tools":
        print("\n".join(f"{name}: {', '.join(making.requirements(name))}" for name in making.tools()))
        return 0
    if given.what == "make":
        return making.make(given.tool, given.python, given.out.resolve(), only=given.only, again=given.again)
    rows = list(judge(given.folder.resolve(), given.tool, again=given.again, timeout=given.timeout))
    print(overview(rows))
    if given.write and not given.tool:
        refusals = making.refusals(given.folder)
        PAGE.write_text(as_page(rows, refusals), encoding="utf-8")
        ROWS.write_text(as_csv(rows), encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("tools", help="list the tools")
    make = commands.add_parser("make", help="make a tool's files")
    make.add_argument("--tool", required=True, choices=making.tools())
    make.add_argument("--python", type=Path, default=Path(sys.executable), help="of an environment that has the tool")
    make.add_argument("--out", type=Path, required=True)
    make.add_argument("--only", default="", help="only files with this in their name")
    make.add_argument("--again", action="store_true", help="make what is there already, too")
    judging = commands.add_parser("judge", help="generate and verify")
    judging.add_argument("folder", type=Path)
    judging.add_argument("--tool", default="", help="only this tool's files")
    judging.add_argument("--again", action="store_true", help="forget what was found before")
    judging.add_argument("--timeout", type=float, default=240, help="seconds a file and step (default: 240)")
    judging.add_argument("--write", action="store_true", help=f"renew {PAGE.name} and {ROWS.name}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
