"""The mutation test of the product itself, on one file."""

from __future__ import annotations

import ast
import itertools
import pickle
from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import onnxgen.passes
from benchmarks.mutation.graphs import passes_alone, simplified
from benchmarks.mutation.mutants import by_statement, drawn
from onnxgen.graph.annotations import SCOPE
from onnxgen.options import Options
from tests.conftest import ROOT
from tests.support import forked
from tests.support.idioms import spelled

FILE = "structure/naming.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of one file."""
    made = tmp_path_factory.mktemp("corpus")
    place = made / "pool" / "one"
    place.mkdir(parents=True)
    onnx.save(
        spelled("s = Exp(x)  t = Exp(s)  u = Sub(t, s)  v = Sub(s, t)  w = Mul(u, v)  y = Sub(w, x)"),
        place / "net.onnx",
    )
    (place / "options.pickle").write_bytes(pickle.dumps(("one", Options())))
    return made


def tried(folder: Path, file: str, text: str) -> str:
    """What the command prints of all mutants of the first line that has the text."""
    lines = (ROOT / "onnxgen" / file).read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, 1) if text in line)
    command = ["-m", "benchmarks.mutation", "--folder", str(folder), "--at", f"{file}:{number}"]
    ran = forked.run(command, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_mistakes_in_a_condition(folder: Path) -> None:
    """Of all that can be wrong in one condition some make a wrong module, some other names, some nothing."""
    text = tried(folder, FILE, "if name not in self.busy and name not in gone")
    found = Counter(line.partition(" ")[0] for line in text.splitlines() if f" {FILE}:" in line)
    assert found["stopped"] == 3 and found["equal"] == 1 and found["cosmetic"] == 4, text


def test_the_graph_tells_what_a_pass_did(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it only notes something. Other stages run lines of some passes, too."""

    def noting(model: ir.Model, options: Options) -> None:
        SCOPE.set(next(iter(model.graph)), ("another",))

    before, again = (simplified(folder / "pool" / "one", 60) for _ in range(2))
    monkeypatch.setattr(onnxgen.passes, "PASSES", [*onnxgen.passes.PASSES, noting])
    assert before == again != simplified(folder / "pool" / "one", 60)
    alone = passes_alone(ROOT / "onnxgen")
    assert "passes/norms.py" in alone and "passes/trainable.py" not in alone and "passes/regular.py" not in alone


def test_every_mistake_is_python() -> None:
    """A mutant of a file compiles, and is another tree; the same ones are drawn for a seed."""
    text, lines = (ROOT / "onnxgen" / FILE).read_text(encoding="utf-8"), set(range(1, 1000))
    before, found = ast.dump(ast.parse(text)), [m for _, group in by_statement(FILE, text) for m in group]
    for mutant in {*found[::100], *{m.kind: m for m in found}.values()}:  # all kinds of mistakes
        tree = mutant.tree(text)
        compile(tree, FILE, "exec")
        assert ast.dump(tree) != before, mutant
    again = [list(itertools.islice(drawn(ROOT / "onnxgen", {FILE: lines}, 3), 20)) for _ in range(2)]
    assert again[0] == again[1] and {m for m, _ in again[0]} <= set(found)
