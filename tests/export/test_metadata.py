"""Facts about a training in `metadata_props`: written, replaced by the next export, and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxgen
from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.export.files import relabelled
from onnxgen.training import open_model
from tests.conftest import ROOT

CLASSES = [f"digit {number} \u00e4" for number in range(200)]
FACTS = {"classes": json.dumps(CLASSES), "preprocessing": json.dumps({"mean": [0.13]}), "run": "0123abcd"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The MNIST sample with an entry of its author's, and its module."""
    model = onnx.load(ROOT / "samples" / "mnist" / "mnist.onnx")
    model.metadata_props.add(key="author", value="somebody")
    model.metadata_props.add(key="onnxgenerator", value="another")
    onnx.save(model, tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    return tmp_path


def entries(path: Path) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in onnx.load(path).metadata_props]


def test_other_entries_stay(folder: Path) -> None:
    onnxgen.export(folder / "model.py", out=folder / "out.onnx", metadata=FACTS)
    ours = [(f"onnxgen.{key}", value) for key, value in FACTS.items()]
    assert entries(folder / "out.onnx") == [("author", "somebody"), ("onnxgenerator", "another"), *ours]
    new, old = onnx.load(folder / "out.onnx"), onnx.load(folder / "m.onnx")
    del new.metadata_props[:], old.metadata_props[:]
    assert new.SerializeToString() == old.SerializeToString()


def test_the_next_export_replaces_ours(folder: Path) -> None:
    """What it is not given again is not in the file, and the report says so."""
    onnxgen.export(folder / "model.py", out=folder / "first.onnx", metadata=FACTS)
    onnxgen.generate(folder / "first.onnx", folder / "second.py")
    report = onnxgen.export(folder / "second.py", out=folder / "out.onnx", metadata={"run": "4567"})
    assert entries(folder / "out.onnx") == [
        ("author", "somebody"), ("onnxgenerator", "another"), ("onnxgen.run", "4567"),
    ]  # fmt: skip
    note = "left out what the original says of its own training: onnxgen.classes, onnxgen.preprocessing"
    assert report.notes == [note]
    report = onnxgen.export(folder / "second.py", out=folder / "none.onnx", verify=False)
    assert entries(folder / "none.onnx") == [("author", "somebody"), ("onnxgenerator", "another")]
    assert report.notes == [f"{note}, onnxgen.run"]


def test_a_network_that_is_exported_anew_has_them(folder: Path) -> None:
    text = (folder / "model.py").read_text()
    assert "relu(" in text
    (folder / "model.py").write_text(text.replace("relu(", "silu("))
    report = onnxgen.export(folder / "model.py", out=folder / "out.onnx", metadata=FACTS)
    assert report.method == "exported anew"
    assert dict(entries(folder / "out.onnx"))["onnxgen.run"] == "0123abcd"


@pytest.mark.parametrize("wrong", [{"classes": ["a"]}, {1: "a"}, {"": "a"}])
def test_what_is_not_text_is_refused(folder: Path, wrong: Any) -> None:
    with pytest.raises(OnnxgenError, match="metadata .* can't be written: keys and values are strings"):
        onnxgen.export(folder / "model.py", out=folder / "out.onnx", metadata=wrong)
    assert not (folder / "out.onnx").exists()


def test_inspect_shows_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A long value is shortened for people, and whole as JSON."""
    onnxgen.export(folder / "model.py", out=folder / "out.onnx", metadata=FACTS)
    capsys.readouterr()
    assert run(["inspect", str(folder / "out.onnx")]) == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if "onnxgen.classes" in line)
    assert '"digit 0' in line and "[...]" in line and len(line) < 140 and "onnxgen.run            0123abcd" in shown
    assert "author" not in shown
    assert run(["inspect", str(folder / "out.onnx"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["metadata"]
    assert found == {f"onnxgen.{key}": value for key, value in FACTS.items()}
    assert run(["inspect", str(folder / "m.onnx")]) == 0
    assert "Metadata" not in capsys.readouterr().out


def test_the_module_computes_what_it_did(folder: Path) -> None:
    """Our entries are nothing to a generation."""
    onnxgen.export(folder / "model.py", out=folder / "out.onnx", metadata=FACTS)
    onnxgen.generate(folder / "out.onnx", folder / "again.py")
    first, second = (open_model(folder / name).state_dict() for name in ("model.py", "again.py"))
    assert all(value.equal(second[key]) for key, value in first.items()) and first.keys() == second.keys()


OLD, NEW = ["person", "bi,cycle", "it's"], ["cat", "d\u00f6g"]


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("names", "{0: 'person', 1: 'bi,cycle', 2: \"it's\"}", "{0: 'cat', 1: 'd\u00f6g'}"),
        ("id2label", json.dumps(dict(enumerate(OLD))), '{"0": "cat", "1": "d\u00f6g"}'),
        ("classes", json.dumps(OLD), '["cat", "d\u00f6g"]'),
        ("Class_Names", str(OLD), "['cat', 'd\u00f6g']"),
        ("character", "a\nb\nc\n", "cat\nd\u00f6g\n"),
        ("labels", "person,bicycle", "cat,d\u00f6g"),
        ("names", "80", None),
        ("author", "['person']", "['person']"),
    ],
)
def test_the_author_s_list_of_classes_has_the_new_ones(folder: Path, key: str, old: str, new: str | None) -> None:
    """In its own form; what can't be read is left out, and the report says both."""
    model = onnx.load(folder / "m.onnx")
    del model.metadata_props[:]
    model.metadata_props.add(key=key, value=old)
    onnx.save(model, folder / "m.onnx")
    onnxgen.generate(folder / "m.onnx", folder / "model.py", force=True)
    report = onnxgen.export(folder / "model.py", out=folder / "out.onnx", metadata={"classes": json.dumps(NEW)})
    assert dict(entries(folder / "out.onnx")).get(key) == new
    assert any(key in note for note in report.notes) == (old != new)
    again = onnxgen.export(folder / "model.py", out=folder / "same.onnx")  # whose classes nobody told
    assert dict(entries(folder / "same.onnx"))[key] == old and not again.notes


def test_a_list_of_the_same_classes_stays(folder: Path) -> None:
    model = onnx.load(folder / "m.onnx")
    model.metadata_props.add(key="names", value='{"0":"cat","1":"d\u00f6g"}')
    onnx.save(model, folder / "m.onnx")
    onnxgen.generate(folder / "m.onnx", folder / "model.py", force=True)
    report = onnxgen.export(folder / "model.py", out=folder / "out.onnx", metadata={"classes": json.dumps(NEW)})
    assert dict(entries(folder / "out.onnx"))["names"] == '{"0":"cat","1":"d\u00f6g"}' and not report.notes


def test_what_follows_the_last_comma_is_no_class() -> None:
    """With a third class, which has no name, the list is another one."""
    assert relabelled({"labels": "a,b,"}, ["a", "b", ""]) == ({"labels": "a,b,,"}, [])
