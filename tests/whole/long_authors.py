"""Generated source does not drift from what authors wrote: its lines, and how surely a classifier tells both apart.

The bounds are what `python -m benchmarks.authors --fresh --classifier` measured, rounded up. Lower them when it
measures less.
"""

from __future__ import annotations

import re
import subprocess
import sys

from tests.conftest import ROOT

MEDIAN, WORST = 1.15, 3.0  # lines, beside the original's
STRUCTURE = 0.89  # AUC by structure alone


def test_lines_and_structure_are_as_near_to_the_authors_as_they_were() -> None:
    words = [sys.executable, "-m", "benchmarks.authors", "--fresh", "--classifier"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    median, worst = map(float, re.findall(r"^lines: median ([\d.]+), worst ([\d.]+)$", done.stdout, re.MULTILINE)[0])
    (auc,) = re.findall(r"^originals +structure +([\d.]+)", done.stdout, re.MULTILINE)
    assert median <= MEDIAN and worst <= WORST, done.stdout
    assert float(auc) <= STRUCTURE, done.stdout
