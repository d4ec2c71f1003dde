"""Many processes generate into one folder at the same moment, each two of them the same module from other weights.

    python -m tests.integrity.many [COUNT]

Prints how many pairs there are afterwards, and fails where one is not exactly that of one of its two.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from onnxgen.cli import run
from onnxgen.pipeline import check
from tests.integrity.pairs import built, network, temporaries, which


def generate(folder: Path, count: int) -> list[Path]:
    """Fork `count` processes that wait for each other and generate; returns the modules. Raises where one fails."""
    (folder / "out").mkdir()
    inputs = [network(folder / str(n) / "net.onnx", n) for n in range(count)]
    outputs = [folder / "out" / f"model_{n // 2}.py" for n in range(count)]
    run([str(inputs[0]), "-o", str(folder / "first.py"), "-q"])  # imports what is imported late
    gate, opened = os.pipe()
    children = []
    for path, out in zip(inputs, outputs, strict=True):
        child = os.fork()
        if child == 0:
            os.close(opened)
            os.read(gate, 1)  # until the other end is closed
            os._exit(run([str(path), "-o", str(out), "-q"]))
        children.append(child)
    os.close(opened)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(gate)
    assert codes == [0] * count, codes
    return sorted(set(outputs))


def compare(folder: Path, modules: list[Path], count: int) -> None:
    """Each module has its sidecar and nothing else, and loads as one of the two that wrote it, which is fresh then."""
    names = sorted(name for out in modules for name in (out.name, out.with_suffix(".safetensors").name))
    assert sorted(path.name for path in (folder / "out").iterdir()) == names and not temporaries(folder / "out")
    for number, out in enumerate(modules):
        seed = int(out.stem.rpartition("_")[2]) * 2
        pairs = {str(n): built(folder, out, n) for n in range(seed, min(seed + 2, count))}
        winner = which(out, pairs)
        assert winner in pairs, f"{out} does not load"
        if number < 10:
            assert check(folder / winner / "net.onnx", out)


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        modules = generate(Path(folder), count)
        print(f"{count} generations in {time.perf_counter() - start:.1f} s")
        compare(Path(folder), modules, count)
        print(f"{len(modules)} pairs, each of them one that was written")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
