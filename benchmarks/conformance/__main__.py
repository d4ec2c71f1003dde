"""How onnxgen does on ONNX's own tests.

    python -m benchmarks.conformance [--write | --check]

Runs every test, some minutes in all. `--write` writes docs/CONFORMANCE.md and onnx.csv beside this file; `--check`
compares with that file and ends with 1 if a verdict is another one, or if ONNX has other tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.common import ROOT, arguments
from benchmarks.conformance.page import as_csv, as_page, drift, from_csv
from benchmarks.conformance.tests import rows

PAGE = ROOT / "docs" / "CONFORMANCE.md"
ROWS = Path(__file__).with_name("onnx.csv")


def main() -> int:
    parser = arguments(__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help=f"write {PAGE.name} and {ROWS.name}")
    what.add_argument("--check", action="store_true", help=f"compare with {ROWS.name}")
    args = parser.parse_args()
    found = list(rows())
    for row in found:
        if row.verdict != "right":
            print(f"{row.verdict}: {row.name}: {row.note}")
    print(f"{sum(row.verdict == 'right' for row in found):,} of {len(found):,} tests are right")
    if args.write:
        PAGE.write_text(as_page(found), encoding="utf-8")
        ROWS.write_text(as_csv(found), encoding="utf-8")
    if not args.check:
        return 0
    verdicts, rounding = drift(from_csv(ROWS.read_text(encoding="utf-8")), found)
    print("\n".join([*rounding, *verdicts]) or "as written")
    return 1 if verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
