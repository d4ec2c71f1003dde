"""Processes that write to one place while this one loads what is there, and generations into one folder."""

from __future__ import annotations

import time
from pathlib import Path

from tests.conftest import ROOT
from tests.integrity.pairs import ONE, SHARDS, built, temporaries, which
from tests.support import forked

WRITER = """
import sys, time
from pathlib import Path
from tests.integrity.pairs import ONE, SHARDS, built, write
folder, seed, layout = Path(sys.argv[1]), int(sys.argv[2]), {"one": ONE, "shards": SHARDS}[sys.argv[3]]
out = folder / "out" / "model.py"
generated = built(folder, out, seed, layout)
end = time.monotonic() + float(sys.argv[4])
while time.monotonic() < end:
    write(generated, out, layout)
"""


def two_writers_and_a_reader(folder: Path, first: str, second: str) -> None:
    """What loads is always one of both pairs, whose layouts are "one" or "shards"."""
    out = folder / "out" / "model.py"
    out.parent.mkdir()
    layouts = {"one": ONE, "shards": SHARDS}
    pairs = {str(seed): built(folder, out, seed, layouts[name]) for seed, name in ((1, first), (2, second))}
    said = folder / "said"
    writers = [
        forked.start(["-c", WRITER, folder, str(seed), name, "0.5"], said, said, cwd=ROOT, ours=True)
        for seed, name in ((1, first), (2, second))
    ]
    seen = []
    while any(writer.is_alive() for writer in writers):
        seen.append(which(out, pairs))
        time.sleep(0.005)
    assert [writer.exitcode for writer in writers] == [0, 0], said.read_text()
    assert {"1", "2"} & set(seen) and which(out, pairs) in pairs and not temporaries(out.parent)


def generations_side_by_side(count: int) -> None:
    done = forked.run(["-m", "tests.integrity.many", str(count)], cwd=ROOT, ours=True)
    assert done.returncode == 0, done.stderr
    assert f"{count // 2} pairs, each of them one that was written" in done.stdout
