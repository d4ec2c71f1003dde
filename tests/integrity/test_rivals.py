"""Several processes write to one place, or to one folder, while others load: what loads is always one of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from onnxgen.pipeline import check, generate
from tests.integrity.pairs import ONE, SHARDS, built, network, temporaries, which

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize(("first", "second"), [("one", "one"), ("shards", "shards"), ("one", "shards")])
def test_two_writers_and_a_reader(tmp_path: Path, first: str, second: str) -> None:
    out = tmp_path / "out" / "model.py"
    out.parent.mkdir()
    layouts = {"one": ONE, "shards": SHARDS}
    pairs = {str(seed): built(tmp_path, out, seed, layouts[name]) for seed, name in ((1, first), (2, second))}
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [
        subprocess.Popen([*command, str(seed), name, "2"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for seed, name in ((1, first), (2, second))
    ]
    seen = []
    while any(writer.poll() is None for writer in writers):
        seen.append(which(out, pairs))
        time.sleep(0.005)
    for writer in writers:
        assert writer.wait() == 0, writer.communicate()[1]
    assert {"1", "2"} & set(seen) and which(out, pairs) in pairs and not temporaries(out.parent)


COUNT = int(os.environ.get("ONNXGEN_PARALLEL", "6"))


def test_generations_side_by_side(tmp_path: Path) -> None:
    """Each writes its own module into one folder; ONNXGEN_PARALLEL=200 for as many at once."""
    modules = {tmp_path / "out" / f"model_{n}.py": network(tmp_path / str(n) / "net.onnx", n) for n in range(COUNT)}
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "onnxgen", "-q"]
    running = [
        subprocess.Popen([*command, str(path), "-o", str(out)], stderr=subprocess.PIPE, text=True)
        for out, path in modules.items()
    ]
    for process in running:
        _, said = process.communicate()
        assert process.returncode == 0, said
    expected = sorted(name for out in modules for name in (out.name, out.with_suffix(".safetensors").name))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == expected
    for n, (out, path) in enumerate(modules.items()):
        assert check(path, out)
        pair = built(tmp_path, out, n)
        assert which(out, {"its own": pair}) == "its own"
    alone = tmp_path / "alone" / "model_0.py"
    alone.parent.mkdir()
    generate(next(iter(modules.values())), alone)
    assert alone.read_bytes() == (tmp_path / "out" / "model_0.py").read_bytes()
