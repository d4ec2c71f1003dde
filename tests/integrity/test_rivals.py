"""Several processes write to one place, or to one folder, while others load: what loads is always one of them.

`python -m tests.integrity.many 200` has two hundred generate at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from onnxgen.errors import OnnxgenError
from onnxgen.runtime.load import from_pretrained, imported
from tests.integrity.pairs import ONE, SHARDS, built, temporaries, which, write

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


def test_a_shard_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    """safetensors opens a file twice, for its header and for its elements: they may be of two writers."""
    first, second = (tmp_path / name / "model.py" for name in ("first", "second"))
    for seed, out in enumerate((first, second)):
        out.parent.mkdir()
        write(built(tmp_path, out, seed, SHARDS), out, SHARDS)
    with imported(first) as module:
        opens = module.safe_open

        @contextmanager
        def replaced(part: Path, framework: str) -> Iterator[Any]:
            with opens(part, framework) as header:
                metadata = header.metadata
                os.replace(second.parent / part.name, part)
                with opens(part, framework) as file:
                    yield SimpleNamespace(metadata=metadata, keys=file.keys, get_tensor=file.get_tensor)

        vars(module)["safe_open"] = replaced
        with pytest.raises(OnnxgenError, match="was replaced while it was read"):
            from_pretrained(module, first)


def test_generations_side_by_side(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integrity.many", "12"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "6 pairs, each of them one that was written" in done.stdout
