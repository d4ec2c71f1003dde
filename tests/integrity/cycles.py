"""`onnxgen.load()` and letting go of it, over and over: what the process still has.

python -m tests.integrity.cycles [COUNT]
"""

from __future__ import annotations

import gc
import linecache
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import onnxgen
from benchmarks.memory import resident
from tests.conftest import ROOT
from tests.integrity.pairs import network
from tests.support import forked


class Held(NamedTuple):
    """What a process has: anonymous memory in KiB, open files, objects, modules, sources, temporary folders."""

    cycles: int
    anonymous: int
    files: int
    objects: int
    modules: int
    sources: int
    temporaries: int


def held(cycles: int) -> Held:
    gc.collect()
    return Held(
        cycles,
        resident(os.getpid(), ("RssAnon",)) >> 10,
        len(os.listdir("/proc/self/fd")),
        len(gc.get_objects()),
        sum(name.startswith("onnxgen_loaded") for name in sys.modules),
        sum(name.startswith("<onnxgen") for name in linecache.cache),
        len(list(Path(tempfile.gettempdir()).glob("onnxgen-*/"))),
    )


def cycles(folder: Path, count: int, every: int) -> Iterator[Held]:
    """Load a small model `count` times, compute with it, and drop it; what is held after each `every` cycles."""
    tempfile.tempdir = str(folder)
    path = network(folder / "net.onnx", 1)
    x = torch.ones(2, 8)
    expected = None
    for number in range(1, count + 1):
        y = onnxgen.load(path)(x)
        assert expected is None or torch.equal(y, expected)
        expected = y.detach().clone()
        del y
        if number == 1:  # only what comes later is counted, and looked through
            gc.collect()
            gc.freeze()
        if number % every == 0:
            yield held(number)


reads_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def hold_nothing(count: int, objects: int) -> None:
    """So many cycles in a process of their own: what other tests have open, and close at some time, is not counted.

    The last two thirds may add so many `objects`, and no file, module, source or temporary folder.
    """
    done = forked.run(["-m", "tests.integrity.cycles", str(count)], cwd=ROOT, ours=True)
    assert done.returncode == 0, done.stderr
    names, *rows = (line.split() for line in done.stdout.splitlines())
    held = [Held(*map(int, row)) for row in rows]
    first, last = held[len(held) // 3], held[-1]
    assert tuple(names) == Held._fields and last.cycles == count
    assert last.files == first.files and last.objects <= first.objects + objects
    assert last.modules == first.modules and last.sources == first.sources
    assert last.temporaries == 0


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(*Held._fields)
        for row in cycles(Path(folder), count, max(1, count // 20)):
            print(*row, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
