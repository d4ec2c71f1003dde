"""How onnxgen does on ONNX's own tests, and on onnxruntime's operators.

    python -m benchmarks.conformance [--contrib] [--write | --check]

Runs every test, some minutes in all; with `--contrib` those of `tests/ops` in which onnxruntime's operators are held to
onnxruntime. `--write` writes the page and the table: docs/CONFORMANCE.md and onnx.csv, or docs/CONTRIB.md and
contrib.csv. `--check` compares with the table and ends with 1 if a verdict is another one, or if there are other tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.common import ROOT, arguments
from benchmarks.conformance import contrib, page, tests

HERE = Path(__file__).parent


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--contrib", action="store_true", help="onnxruntime's operators instead of ONNX's tests")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the page and the table")
    what.add_argument("--check", action="store_true", help="compare with the table")
    args = parser.parse_args()
    table = HERE / ("contrib.csv" if args.contrib else "onnx.csv")
    shown = ROOT / "docs" / ("CONTRIB.md" if args.contrib else "CONFORMANCE.md")
    known = page.from_csv(table.read_text(encoding="utf-8"))
    found = list(contrib.rows(known) if args.contrib else tests.rows())
    for row in found:
        if row.verdict != "right":
            print(f"{row.verdict}: {row.name}: {row.note}")
    print(f"{sum(row.verdict == 'right' for row in found):,} of {len(found):,} tests are right")
    if args.write:
        shown.write_text(page.as_page(found, is_contrib=args.contrib), encoding="utf-8")
        table.write_text(page.as_csv(found), encoding="utf-8")
    if not args.check:
        return 0
    verdicts, rounding = page.drift(known, found)
    print("\n".join([*rounding, *verdicts]) or "as written")
    return 1 if verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
