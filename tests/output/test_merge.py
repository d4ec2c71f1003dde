"""Edits of a module are merged into what is generated from a changed file. What can't be merged stays as it is."""

from __future__ import annotations

import base64
import functools
import json
import os
import random
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxgen.cli import run
from onnxgen.output import write
from onnxgen.output.write import merge
from onnxgen.record.base import BASE
from onnxgen.record.sidecar import read_header
from tests.conftest import ROOT
from tests.output.edits import Place, network, new_method, replaced
from tests.support.tiers import drawn

Out = pytest.CaptureFixture[str]
FAR = network(layers=4)  # changes other lines than `new_method`
METHOD = "def parts(self)"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def loads(out: Path) -> bool:
    pytest.importorskip("torch")
    from onnxgen.errors import OnnxgenError
    from onnxgen.runtime.load import from_pretrained, imported

    try:
        with imported(out) as module:
            return from_pretrained(module, out) is not None
    except OnnxgenError:
        return False


# ---- what is merged --------------------------------------------------------------------------------------------------


def test_edits_are_merged_again_and_again(place: Place, capsys: Out) -> None:
    place.edit()
    for number, changed in enumerate((FAR, network(width=9), network(first="Sigmoid"))):
        place.edit(lambda text, number=number: f"{text}\n# Edit {number}.\n")  # type: ignore[misc]
        onnx.save(changed, place.model)
        capsys.readouterr()
        assert place("--check") == 1 and place() == 0
        said = capsys.readouterr().out
        assert "merged your edits into the new module" in said and f"next: onnxgen verify {place.model}" in said
        assert "(with --partial if your edits change the layers)\n" in said and "parameters" not in said
        text = place.out.read_text()
        assert METHOD in text and all(f"# Edit {n}." in text for n in range(number + 1))
        assert place("--check") == 0 and run(["verify", str(place.model), str(place.out)]) == 0


def test_json_says_merged(place: Place, capsys: Out) -> None:
    place.edit()
    onnx.save(FAR, place.model)
    capsys.readouterr()
    assert place("--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == "merged" and said["wrote"] == [str(place.weights), str(place.out)]


def test_other_weights_change_no_line(place: Place) -> None:
    text = place.edit()
    before = place.weights.read_bytes()
    onnx.save(network(seed=1), place.model)
    assert place() == 0 and place.out.read_text() == text and place.weights.read_bytes() != before
    assert loads(place.out)


def test_another_fingerprint_is_all_that_changes(place: Place) -> None:
    """The options count in the fingerprint, also one that names what is the default."""
    text = place.edit()
    assert place("--class-name", "Net") == 0
    now = place.out.read_text()
    assert now != text and re.sub("FINGERPRINT = .*", "", now) == re.sub("FINGERPRINT = .*", "", text)
    assert loads(place.out)


@pytest.mark.parametrize("formatting", ["comments", "black"])
def test_comments_alone_are_merged_too(place: Place, formatting: str) -> None:
    """They do not make a module edited, but they are a person's."""
    if formatting == "black":
        import black

        place.edit(lambda text: black.format_str(text, mode=black.Mode(line_length=50)))
    else:
        place.edit(replaced("    def forward", "    # The hot path.\n    def forward"))
    onnx.save(FAR, place.model)
    assert place() == 0
    text = place.out.read_text()
    assert "self.fc3" in text and ("# The hot path." in text) == (formatting == "comments")


def test_other_comments_alone_are_merged(place: Place, capsys: Out) -> None:
    """The code stays the same, so does the fingerprint: a conflict in comments could never be resolved."""
    mine = place.edit(lambda text: new_method(text).replace("(opset 17)", "(mine)"))
    model = onnx.load(place.model)
    model.opset_import[0].version = 18
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    onnx.save(model, place.model)
    assert place("--annotate") == 0 and "merged your edits" in capsys.readouterr().out
    text = place.out.read_text()
    assert METHOD in text and "(mine)" in text and "# onnx: " in text and place("--check", "--annotate") == 0
    assert place() == 0 and "# onnx: " not in place.out.read_text(), "the same file, and its weights are not trained"
    assert place.out.read_text() == mine and loads(place.out)


def test_words_of_the_header_are_a_persons_elsewhere(place: Place) -> None:
    """A build writes its key into the header, and each generation takes it out of there only."""
    words = "NOTE = '''\nBuild cafe\nBuild 0123456789abcdef\n'''\n"
    place.edit(lambda text: f"{text}\n\n{words}")
    onnx.save(FAR, place.model)
    assert place() == 0 and place.out.read_text().endswith(words)


LAYOUTS = {
    "embedded": (["--embed"], ["--embed"]),
    "sharded": (["--shard-size", "200B"], ["--shard-size", "200B"]),
    "into the module": ([], ["--embed"]),
    "out of the module": (["--embed"], []),
    "to other shards": (["--shard-size", "200B"], ["--shard-size", "400B"]),
    "to another file": ([], ["--weights", "sub/other.safetensors"]),
    "from another file": (["--weights", "sub/other.safetensors"], []),
}


@pytest.mark.parametrize("place_of", ["other.safetensors", "sub/other.safetensors"])
def test_a_broken_line_says_where_the_weights_are(
    place_of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    black = pytest.importorskip("black")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path, "--weights", place_of)
    place.edit(lambda text: black.format_str(new_method(text), mode=black.Mode(line_length=50)))
    assert not re.search(f"WEIGHTS = .*{place_of}", place.out.read_text())
    onnx.save(FAR, place.model)
    place.options = ()
    assert place() == 0 and METHOD in place.out.read_text() and "self.fc3" in place.out.read_text() and loads(place.out)


@pytest.mark.parametrize(("before", "after"), LAYOUTS.values(), ids=LAYOUTS)
def test_wherever_the_weights_are(
    before: list[str], after: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path, *before)
    place.edit()
    onnx.save(FAR, place.model)
    place.options = tuple(after)
    assert place() == 0 and place("--check") == 0
    assert METHOD in place.out.read_text() and "self.fc3" in place.out.read_text() and loads(place.out)


def test_a_network_without_weights(tmp_path: Path) -> None:
    def relu(name: str) -> onnx.ModelProto:
        ports = [onnx.helper.make_tensor_value_info(port, 1, ["n"]) for port in "xy"]
        nodes = [onnx.helper.make_node(name, ["x"], ["y"])]
        return onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:]), ir_version=8)

    place = Place(tmp_path)
    onnx.save(relu("Relu"), place.model)
    assert place("--force") == 0
    place.edit()
    onnx.save(relu("Tanh"), place.model)
    assert place() == 0 and METHOD in place.out.read_text() and "tanh" in place.out.read_text() and loads(place.out)


def test_another_zlib(place: Place) -> None:
    """The base may be compressed to other bytes on another system: it is the same."""
    text = unpacked(place)
    rewritten(place, base64.b85encode(zlib.compress(text.encode(), 1)).decode())
    assert place("--check") == 0
    place.edit()
    onnx.save(FAR, place.model)
    assert place() == 0 and METHOD in place.out.read_text()


# ---- what is not merged ----------------------------------------------------------------------------------------------


def unpacked(place: Place) -> str:
    return zlib.decompress(base64.b85decode(read_header(place.weights)[0][BASE])).decode()


def rewritten(place: Place, base: str | None) -> None:
    """Put another base into the sidecar, or none."""

    def change(header: dict[str, Any]) -> None:
        del header["__metadata__"][BASE]
        header["__metadata__"] |= {} if base is None else {BASE: base}
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))

    content = place.weights.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    place.weights.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


def packed(text: str) -> str:
    return base64.b85encode(zlib.compress(text.encode())).decode()


BASES: dict[str, Callable[[str], str | None]] = {
    "none": lambda text: None,
    "of another module": lambda text: packed(text.replace("F.relu", "F.gelu")),
    "no base85": lambda text: '"',
    "no zlib": lambda text: "0" * 20,
    "cut short": lambda text: packed(text)[:-10],
    "not UTF-8": lambda text: base64.b85encode(zlib.compress(b"\xff")).decode(),
    "no Python": lambda text: packed("("),
    "too deep": lambda text: packed("-" * 100_000 + "1"),
    "a bomb": lambda text: base64.b85encode(zlib.compress(bytes((1 << 28) + 1))).decode(),
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_without_its_base_a_module_is_kept(base: Callable[[str], str | None], place: Place, capsys: Out) -> None:
    """As one that an older onnxgen wrote."""
    rewritten(place, base(unpacked(place)))
    place.edit()
    before = place.files()
    onnx.save(FAR, place.model)
    capsys.readouterr()
    assert place() == 3
    said = capsys.readouterr().err
    assert "its weights lack the text that it was generated as" in said
    assert "model.py.new is what would be written now" in said
    assert METHOD not in place.new.read_text() and "self.fc3" in place.new.read_text()
    assert all(place.files()[name] == before[name] for name in ("model.py", "model.safetensors"))


def test_a_missing_base_is_added(place: Place) -> None:
    """A file of the same version that was written before there was a base."""
    rewritten(place, None)
    place.edit()
    text = place.out.read_text()
    assert place() == 0 and BASE in read_header(place.weights)[0] and place.out.read_text() == text


def test_trained_weights_in_the_sidecar_are_kept(place: Place, capsys: Out) -> None:
    place.edit()
    content = bytearray(place.weights.read_bytes())
    content[-1] ^= 1
    place.weights.write_bytes(content)
    before = place.files()
    capsys.readouterr()
    assert place() == 3
    assert "edited by hand, and the weights changed too" in capsys.readouterr().err
    assert all(place.files()[name] == before[name] for name in before)


def test_conflicts_are_named(place: Place, capsys: Out) -> None:
    place.edit(replaced("x = F.relu(self.fc0(x))", "x = F.silu(self.fc0(x))"))
    onnx.save(network(first="Tanh"), place.model)
    before = place.files()
    capsys.readouterr()
    assert place("--check") == 1 and place() == 3
    said = capsys.readouterr().err
    lines = place.new.read_text().split("\n")
    at = lines.index("<<<<<<< model.py, edited") + 1
    assert f"model.py.new is the merge of both, with a conflict at line {at} -> complete it and move it" in said
    assert [line.strip() for line in lines[at - 1 : at + 6]] == [
        "<<<<<<< model.py, edited",
        "x = F.silu(self.fc0(x))",
        "||||||| generated before",
        "x = F.relu(self.fc0(x))",
        "=======",
        "x = torch.tanh(self.fc0(x))",
        ">>>>>>> generated now",
    ]
    assert all(place.files()[name] == before[name] for name in before)
    text = place.new.read_text()
    resolved = (
        text[: text.index("<<<<<<<")]
        + "        x = F.silu(self.fc0(x))"
        + text[text.index(">>>>>>> generated now") + 21 :]
    )
    place.new.write_text(resolved)
    onnx.save(network(first="Sigmoid"), place.model)
    assert place() == 3 and place.new.read_text() == resolved, "it may have edits"
    assert "model.py.new of an earlier run may have edits of yours, too" in capsys.readouterr().err
    onnx.save(network(first="Tanh"), place.model)
    place.new.replace(place.out)
    assert place() == 0 and place.out.read_text() == resolved and loads(place.out)


def test_weights_alone_are_written_and_no_merge_is_told(place: Place, capsys: Out) -> None:
    """The fingerprint says nothing of the weights, so the module stays as it is."""
    text = place.edit()
    onnx.save(network(seed=7), place.model)
    weights = place.weights.read_bytes()
    capsys.readouterr()
    assert place("--check") == 1 and place() == 0
    said = capsys.readouterr().out
    assert f"wrote {place.weights}: your edits fit, and {place.out} needed no change" in said and "merged" not in said
    assert place.out.read_text() == text and place.weights.read_bytes() != weights
    assert place("--check") == 0 and run(["verify", str(place.model), str(place.out)]) == 0


def test_a_merge_that_nobody_changed_is_written_again(place: Place) -> None:
    """A changed one may have edits, so it stays; what is taken over from it has no trace of this."""
    edit = "x = F.silu(self.fc0(x))"
    place.edit(replaced("x = F.relu(self.fc0(x))", edit))
    for first in ("Sigmoid", "Tanh"):
        onnx.save(network(first=first), place.model)
        assert place() == 3 and f"torch.{first.lower()}(self.fc0(x))" in place.new.read_text()
    place.new.write_text(changed := place.new.read_text().replace("edited", "edited by me", 1))
    onnx.save(network(first="Sigmoid"), place.model)
    assert place() == 3 and place.new.read_text() == changed
    text = place.new.read_text()
    before, after = text[: text.index("<<<<<<<")], text[text.index(">>>>>>> generated now") + 21 :]
    place.new.write_text(f"{before}        {edit}{after}")
    place.new.replace(place.out)
    onnx.save(network(first="Tanh"), place.model)
    assert place() == 0 and "as onnxgen wrote it" in place.out.read_text()
    onnx.save(network(first="Tanh", layers=4), place.model)
    assert place() == 0 and edit in place.out.read_text() and "as onnxgen wrote it" not in place.out.read_text()


def test_a_merge_is_removed_once_the_module_is_newer(place: Place) -> None:
    place.edit(replaced("x = F.relu(self.fc0(x))", "x = F.silu(self.fc0(x))"))
    onnx.save(network(first="Sigmoid"), place.model)
    assert place() == 3 and place.new.is_file()
    place.out.write_text(place.out.read_text().replace("F.silu(", "F.relu("))
    assert place() == 0 and not place.new.exists()


def test_a_module_that_is_not_utf8_is_kept(place: Place, capsys: Out) -> None:
    place.edit()
    content = b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + place.out.read_bytes()
    place.out.write_bytes(content)
    onnx.save(FAR, place.model)
    assert place() == 3 and "it is not UTF-8" in capsys.readouterr().err
    assert place.out.read_bytes() == content


def test_an_edit_while_it_merges(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    place.edit()
    onnx.save(FAR, place.model)
    weights = place.weights.read_bytes()

    def slow(*arguments: Any) -> Any:
        made = merge(*arguments)
        place.edit(lambda text: text + "\n# Just now.\n")
        return made

    monkeypatch.setattr(write, "merge", slow)
    assert place() == 2 and "it was changed meanwhile: try again" in capsys.readouterr().err
    assert place.out.read_text().endswith("# Just now.\n") and place.weights.read_bytes() == weights
    monkeypatch.undo()
    assert place() == 0 and place.out.read_text().endswith("# Just now.\n") and METHOD in place.out.read_text()


HEAD = 'FINGERPRINT = "00"\n\n\nclass Model:\n    def __init__(self):\n'
BODY = "        self.a = 1\n        self.b = 2\n        self.c = 3\n\n"
FORWARD = "    def forward(self, x):\n        y = x\n        z = y + 1\n        w = z + 1\n        return w\n"
TEXT = HEAD + BODY + FORWARD


@pytest.mark.parametrize("deep", ["1" + " + 1" * 3000, "-" * 9_000 + "1", "a" + ".b" * 3000])
def test_a_module_that_python_finds_too_deep_is_kept(deep: str, place: Place, capsys: Out) -> None:
    """Its syntax tree can't be walked or written."""
    place.edit(lambda text: f"{text}\n\nDEEP = {deep}\n")
    before = place.out.read_bytes()
    assert place() == 0
    onnx.save(FAR, place.model)
    assert place("--check") == 1 and place() in (0, 3)
    said, text = capsys.readouterr().err, place.out.read_text()
    assert f"DEEP = {deep}\n" in text
    if place.new.is_file():
        assert place.out.read_bytes() == before and "which is not Python" in said
    else:
        assert "self.fc3" in text


FAULTS = {
    "in which nothing sets y": (("y = x\n        z = y + 1", "t = x\n        z = t + 1"), ("return w", "return w + y")),
    "in which nothing sets self.a": (("        self.a = 1\n", ""), ("return w", "return w + self.a")),
    "which has no class Model": (("class Model", "class Net"), ("return w", "return x")),
    "which has not one FINGERPRINT": (
        ("return w\n", 'return w\n\n\nFINGERPRINT = "00"\n'),
        ("self.a = 1", "self.a = 5"),
    ),
    "which is not Python (line 14)": (("return w", "return w +"), ("self.a = 1", "self.a = 5")),
}


@pytest.mark.parametrize("doubt", FAULTS)
def test_a_merge_that_would_not_run_is_not_taken(doubt: str) -> None:
    """Without a conflict: one side removes or adds what the other side relies on."""
    mine, new = (TEXT.replace(*change) for change in FAULTS[doubt])
    text, found = merge(TEXT, mine, new, "model.py")
    assert found == doubt and "<<<<<<<" not in text


@pytest.mark.parametrize("root", ["Net = Model = Tower", "Model: type = Tower", "from tower import Tower as Model"])
def test_model_may_be_set_in_any_way(root: str) -> None:
    mine = TEXT.replace("class Model", "class Tower") + f"\n\n{root}\n"
    text, doubt = merge(TEXT, mine, TEXT.replace("return w", "return w + 1"), "model.py")
    assert doubt == "" and root in text and "return w + 1" in text


def test_faults_of_one_side_are_its_own() -> None:
    mine = TEXT.replace("self.a = 1", "self.a = unknown")
    text, doubt = merge(TEXT, mine, TEXT.replace("return w", "return w + 1"), "model.py")
    assert doubt == "" and "unknown" in text and "return w + 1" in text


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_merge_is_that_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn changes of real modules: where git has no conflict either, the text is the same."""
    texts = [path.read_text() for path in sorted((ROOT / "tests/golden").glob("*.py"))]
    monkeypatch.setattr(write, "formatted", functools.cache(write.formatted))  # the bases are ten texts
    rng = random.Random(0)
    outcomes, count = [], max(drawn(200), 60)  # fewer draws say little of the share of conflicts
    for _ in range(count):
        base = re.sub('FINGERPRINT = ".*"', 'FINGERPRINT = ""', rng.choice(texts))
        sides = [base, *(edited(base, rng) for _ in range(2))]
        for name, text in zip("bmn", sides):
            (tmp_path / name).write_text(text)
        command = ["git", "merge-file", "-p", "--diff3", *(str(tmp_path / name) for name in "mbn")]
        git = subprocess.run(command, capture_output=True, text=True)
        text, _ = merge(*sides, "model.py")
        conflicts = "<<<<<<<" in text
        assert conflicts or git.returncode or text == git.stdout
        outcomes.append((conflicts, bool(git.returncode)))
    differ = sum(ours != gits for ours, gits in outcomes)
    assert differ <= 4, "only where two ways to pair equal lines are as good"
    assert count / 10 < sum(ours for ours, _ in outcomes) < count * 9 / 10


def edited(text: str, rng: random.Random) -> str:
    """Change a few lines, each so that it is still Python or at least a line."""
    lines = text.split("\n")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines) - 5)
        what = rng.choice(["insert", "remove", "comment", "method", "replace"])
        if what == "insert":
            lines.insert(at, f"# {rng.random()}")
        elif what == "remove":
            del lines[at : at + rng.randint(1, 3)]
        elif what == "comment":
            lines[at] += f"  # {rng.randrange(3)}"
        elif what == "method":
            lines[at:at] = ["", f"    def f{rng.randrange(9)}(self):", "        return 1"]
        else:
            lines[at : at + 2] = [f"# changed {rng.randrange(3)}"]
    return "\n".join(lines)


# ---- a kill ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks")
@pytest.mark.parametrize("how", ["layer:1:2", "layer:2:2"])
@pytest.mark.parametrize("options", [[], ["--shard-size", "96B"], ["--embed"]], ids=["one", "shards", "embedded"])
def test_killed_while_it_merges(options: list[str], how: str, tmp_path: Path) -> None:
    """What is left has the edits, and is the old pair, the new pair, or one that refuses; the next run merges."""
    pytest.importorskip("torch")
    from tests.integrity.killing import kills
    from tests.ops.harness import unformatted

    with unformatted():  # black takes most of the time
        (tmp_path / "work").mkdir()
        place = Place(tmp_path / "work", *options, of=network(width=3, layers=2))
        place.edit()
        old = place.files()
        onnx.save(network(width=3, layers=3), place.model)
        changed = place.model.read_bytes()
        assert place("-q") == 0
        new = place.files()

        def restore() -> None:
            for path in place.folder.iterdir():
                path.unlink()
            for name, content in {**old, "net.onnx": changed}.items():
                (place.folder / name).write_bytes(content)

        seen = set()
        for step in kills(lambda: place("-q") and None, how, tmp_path / "log", restore):
            text = place.out.read_bytes()
            assert text in (old["model.py"], new["model.py"]), step
            seen.add(text == new["model.py"])
            assert place("-q") == 0 and place.files() == new, f"{step}: the next run repairs"
        assert seen == {False, True}
