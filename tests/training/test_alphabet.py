"""The alphabet that a file lists is that of its training; a new head keeps characters; every character is itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from onnxgen import generate, verify
from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.export.files import relabelled
from onnxgen.record.labels import Alphabet, alphabet_in, alphabet_of, read_names
from onnxgen.training import Settings, evaluate, fit, load
from onnxgen.training.evaluate import measure
from onnxgen.training.goals.ctc import Reading
from onnxgen.training.prepare import Plan, prepare

QUIET: dict[str, Any] = {"device": "cpu", "workers": 0, "val": 0.0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 6, 4)).astype(np.float32)
LISTED = "z\nb\na\n-"  # as PaddleOCR lists them: a space is behind them, and the blank before them
READ = "zba- "
WEIGHT = RNG.normal(size=(4, 6)).astype(np.float32)


def reader(folder: Path, **metadata: str) -> Path:
    """Return the module of a reader of 6 classes over 6 steps, which ends as PaddleOCR's do."""
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["product"]),
        helper.make_node("Add", ["product", "fc.bias"], ["sum"]),
        helper.make_node("Softmax", ["sum"], ["y"], axis=2),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6, 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6, 6]),
    ]
    stored = [("fc.weight", WEIGHT), ("fc.bias", np.zeros(6, np.float32))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(x, n) for n, x in stored])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for key, text in metadata.items():
        model.metadata_props.add(key=key, value=text)
    onnx.save(model, folder / "net.onnx")
    generate(folder / "net.onnx", folder / "net.py", force=True)
    return folder / "net.py"


def texts(*words: str) -> dict[str, Any]:
    return {"x": X[: len(words)], "text": np.array(words, dtype=object)}


def planned(model: Path | nn.Module, *words: str, **settings: Any) -> Plan:
    return prepare(model, texts(*words), Settings(**{**QUIET, "task": "ctc", **settings}))


def by_hand(words: tuple[str, ...], alphabet: str) -> Tensor:
    """The loss of the file's own classes, by torch."""
    logs = torch.from_numpy(X[: len(words)] @ WEIGHT).log_softmax(2)
    lengths = torch.tensor([len(word) for word in words])
    flat = torch.tensor([alphabet.index(c) + 1 for word in words for c in word])
    each = F.ctc_loss(logs.transpose(0, 1), flat, torch.full((len(words),), 6), lengths, 0, "none")
    return (each / lengths).mean()


# ---- the list of the file --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listed", [LISTED, LISTED + "\n ", json.dumps(["blank", *READ]), json.dumps([*READ])])
def test_the_file_s_list_is_the_alphabet(listed: str, tmp_path: Path) -> None:
    words = ("ab", "z", "a b", "-")
    path = reader(tmp_path, character=listed)
    found = evaluate(path, texts(*words), task="ctc", device="cpu", workers=0)
    assert found["loss"] == pytest.approx(by_hand(words, READ).item(), rel=1e-5)
    plan = planned(path, *words)
    assert "".join(plan.settings.classes) == READ and plan.settings.blank == 0
    assert "the 5 characters are the model's own, as character of the file lists them" in "\n".join(plan.notes)


def test_inspect_shows_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader(tmp_path, character="ß\nĄ\na\n-")
    assert cli(["inspect", str(tmp_path / "net.onnx")]) == 0
    assert "\nalphabet: 4 characters, listed as character: ßĄa-\n" in capsys.readouterr().out
    assert cli(["inspect", str(tmp_path / "net.onnx"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["alphabet"]
    assert shown == {"source": "character", "characters": ["ß", "Ą", "a", "-"]}
    reader(tmp_path, title="abc")
    assert cli(["inspect", str(tmp_path / "net.onnx")]) == 0 and "alphabet" not in capsys.readouterr().out


def test_a_module_of_an_older_version_is_told_by_verify(tmp_path: Path) -> None:
    """Its weights have no alphabet, so `train` would number the characters of its data."""
    path = reader(tmp_path, character=LISTED)
    assert not any("characters" in note for note in verify(tmp_path / "net.onnx", path).notes)
    weights = path.with_suffix(".safetensors")
    with safe_open(weights, "np") as file:
        metadata = file.metadata()
    save_file(load_file(weights), weights, {key: text for key, text in metadata.items() if key != "alphabet"})
    report = verify(tmp_path / "net.onnx", path)
    (note,) = (note for note in report.notes if "characters" in note)
    assert report.agrees and note.endswith("train would number those of its data; generate it again")
    assert f"net.py lack the 4 characters that {tmp_path / 'net.onnx'} lists (character)" in note


def test_without_a_list_that_fits_the_data_s_characters_are_sorted(tmp_path: Path) -> None:
    for metadata in ({}, {"character": "a\nb\nc"}, {"names": "{0: 'cat', 1: 'dog', 2: 'a', 3: 'b', 4: 'emu'}"}):
        assert planned(reader(tmp_path, **metadata), "ba", "z").settings.classes == ("a", "b", "z")


def test_classes_of_unknown_characters_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The way out is a new head, in the first lines and after a training that brought nothing."""
    said = "nothing says which characters the model's classes were trained for"
    way = "--replace-head 4 begins a new head (--keep --own-classes FILE: with what the old one knows), --classes names"
    way += " the model's own"
    path = reader(tmp_path)
    (note,) = (note for note in planned(path, "ba", "z").notes if said in note)
    assert note == f"{said}: those of the data take their places -> {way}"
    for given in ({"replace_head": 4}, {"classes": tuple("abz")}, {"from_scratch": True}):
        assert said not in "\n".join(planned(path, "ba", "z", **given).notes)
    assert said not in "\n".join(planned(path, "bacde").notes), "a class for each"
    assert said not in "\n".join(planned(reader(tmp_path, character=LISTED), "ba").notes)
    reader(tmp_path)
    given = {**QUIET, "val": 0.5, "max_steps": 1, "lr": 1e-12, "out": tmp_path / "run"}
    fit(path, texts(*["ba", "z"] * 4), task="ctc", **given)
    assert f"-> replace_head=4: {said}\n" in capsys.readouterr().out


def test_classes_that_are_named_come_before_the_list(tmp_path: Path) -> None:
    plan = planned(reader(tmp_path, character=LISTED), "ba", classes=("a", "b"))
    assert plan.settings.classes == ("a", "b")


def test_characters_that_the_list_lacks_are_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError) as caught:
        planned(reader(tmp_path, character=LISTED), "ab", "q\u3000")
    said = "the texts have q, U+3000, which the model's alphabet of 5 lacks -> --replace-head 8 --keep adds them"
    assert str(caught.value.problems[0]).startswith(said)


def test_characters_of_the_held_back_part_are_looked_at_too(tmp_path: Path) -> None:
    """Their texts would drop out of the loss, and none of them could ever be read rightly."""
    path = reader(tmp_path, character=LISTED)
    for seed in range(8):  # with some seed it is held back
        given = {"val": 0.25, "seed": seed}
        with pytest.raises(OnnxgenError, match="the texts have q, which the model's alphabet of 5 lacks"):
            planned(path, *["ab"] * 7, "q", **given)
        with pytest.raises(OnnxgenError, match="the texts have q, which are not among the 2 classes"):
            planned(path, *["ab"] * 7, "q", **given, classes=("a", "b"))


def edits(a: str, b: str) -> int:
    """Levenshtein's distance, by its definition."""
    if not a or not b:
        return len(a) + len(b)
    return min(edits(a[1:], b[1:]) + (a[0] != b[0]), edits(a[1:], b) + 1, edits(a, b[1:]) + 1)


def test_in_an_evaluation_unknown_characters_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They can't be read, and one of them does not end the evaluation of all other texts. In a training it does."""
    monkeypatch.chdir(tmp_path)
    words, known = ("ab", "zÄ", "a b", "qqab"), ("ab", "a b")
    fit(reader(tmp_path, character=LISTED), texts(*words[:1], "z"), out="run", task="ctc", lr=1e-9, epochs=1, **QUIET)
    np.savez("new.npz", x=X[:4], text=np.array(words))
    capsys.readouterr()
    assert cli(["evaluate", "run", "--data", "new.npz", "--device", "cpu", "--json"]) == 0
    told = capsys.readouterr()
    says = "2 of 4 texts have q, Ä, not among the 5 characters that the network knows: each counts as an error, and "
    assert f"note: {says}the loss is of the other 2\n" in told.err
    found = json.loads(told.out)
    learner = load("run", device="cpu")
    read = [str(one.label) for one in learner.predict({"x": X[:4]})]
    wanted = sum(map(edits, read, words)) / sum(map(len, words))
    assert found["character_error"] == pytest.approx(wanted) and found["samples"] == 4
    alone = {"x": X[[0, 2]], "text": np.array(known, dtype=object)}
    assert found["loss"] == pytest.approx(learner.evaluate(alone)["loss"], rel=1e-5)
    assert cli(["train", "run", "--data", "new.npz", "--task", "ctc", "--quiet"]) == 2
    way = "--replace-head 8 --keep adds them, and --classes names another alphabet"
    assert f"the texts have q, Ä, which the model's alphabet of 5 lacks -> {way}" in capsys.readouterr().err
    grown = ["--replace-head", "8", "--keep", "--out", "grown", "--epochs", "1", "--device", "cpu", "--quiet"]
    assert cli(["train", "run", "--data", "new.npz", "--task", "ctc", *grown]) == 0
    assert load("grown").settings.classes == (*READ, "q", "Ä")


def test_targets_without_enough_steps_are_told_of_an_evaluation(tmp_path: Path) -> None:
    given = Settings(**{**QUIET, "task": "ctc"})
    found = measure(reader(tmp_path, character=LISTED), texts("ab", "aaaa"), part=None, settings=given)
    said = "1 of 2 targets need more than the output's 6 steps (the first is sample 1): the loss is without them"
    assert found.notes == (said,)
    assert found.metrics["loss"] == pytest.approx(by_hand(("ab",), READ).item(), rel=1e-5)


def test_a_run_is_asked_exported_and_trained_again_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, words = reader(tmp_path, character=LISTED), ("ab", "z", "a b", "-")
    fit(path, texts(*words), out=tmp_path / "run", task="ctc", epochs=1, show="nothing", lr=1e-6, **QUIET)
    best = (X @ WEIGHT).argmax(2)
    read = ["".join(READ[i - 1] for i in torch.unique_consecutive(torch.tensor(row)).tolist() if i) for row in best]
    assert [one.label for one in load(tmp_path / "run", device="cpu").predict({"x": X})] == read
    assert cli(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out.onnx")]) == 0
    assert "character" not in capsys.readouterr().out  # the list is the same
    assert {e.key: e.value for e in onnx.load(tmp_path / "out.onnx").metadata_props}["character"] == LISTED
    again = planned(tmp_path / "run", "ba")
    assert "".join(again.settings.classes) == READ
    generate(tmp_path / "out.onnx", tmp_path / "out.py")
    assert "".join(planned(tmp_path / "out.py", "ba").settings.classes) == READ


def test_the_blank_of_a_run_comes_along(tmp_path: Path) -> None:
    """Its exported file says that it is the last class."""
    path = reader(tmp_path)
    fit(path, texts("ab", "z"), out=tmp_path / "run", task="ctc", blank=5, epochs=1, show="nothing", **QUIET)
    assert cli(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out.onnx"), "--quiet"]) == 0
    generate(tmp_path / "out.onnx", tmp_path / "out.py")
    settings = planned(tmp_path / "out.py", "za").settings
    assert (settings.blank, settings.classes) == (5, ("a", "b", "z"))


def test_forms_of_lists() -> None:
    assert alphabet_of(["a", "b", "<blank>"]) == Alphabet("", ("a", "b"), 2)
    assert alphabet_of(["", "a", "b"]) == Alphabet("", ("a", "b"), 0)
    assert alphabet_of(["", "a", "''", "b"]) == Alphabet("", ("a", "''", "b"), 0)
    assert alphabet_of(["a", "", "b"]) is None and alphabet_of(["", "cat", "dog"]) is None and alphabet_of([""]) is None
    assert alphabet_of(["cat", "dog"]) is None and alphabet_of([]) is None
    assert alphabet_in({"author": "a\nb", "labels": "cat,dog", "alphabet": "a,b"}) == Alphabet("alphabet", ("a", "b"))
    twice = alphabet_of(["a", " ", "b"])  # PaddleOCR's list of English ends in a space, and gets another one
    found = None if twice is None else twice.of(5)
    assert found is not None and found.characters == ("a", "<2>", "b", " ") and twice.of(4) == twice


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("\ufeffz\nb\na\n-\n \n", [*"zba- "]),
        ('["", "z", "b"]', ["<blank>", "z", "b"]),
        ('{"a": 3, "b": 4, "<pad>": 0, "<s>": 1, "[UNK]": 2, "|": 5}', ["<pad>", "<s>", "[UNK]", "a", "b", "|"]),
    ],
    ids=["a line each", "ddddocr", "Hugging Face"],
)
def test_a_file_lists_the_classes(
    text: str, names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list").write_text(text, encoding="utf-8")
    assert read_names(tmp_path / "list") == names
    if len(names) > 3:  # a whole output
        (goal,) = planned(reader(tmp_path), "ab", "b", classes=names).objectives
        assert isinstance(goal, Reading) and goal.blank == 0
        assert list(goal.characters) == [name for name in names if name != "<pad>"]
    with pytest.raises(OnnxgenError, match="lists no names"):
        read_names(file := _written(tmp_path / "one", "z"))
    assert cli(["train", "net.py", "--classes", f"@{file}"]) == 2 and "lists no names" in capsys.readouterr().err
    assert cli(["train", "net.py", "--classes", "@gone.txt"]) == 2 and "can't be read" in capsys.readouterr().err


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_new_list_keeps_the_form_of_the_old_one() -> None:
    assert relabelled({"character": '["blank", "a", "b"]'}, ["x", "y"]) == ({"character": '["blank", "x", "y"]'}, [])
    assert relabelled({"character": "a\nb\n#-"}, ["x", "y"]) == ({"character": "x\ny\n#-"}, [])
    for same in ("a\nb", "a\nb\n "):
        assert relabelled({"character": same}, ["a", "b", " "]) == ({"character": same}, [])


# ---- a new head ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "alphabet"), [(8, "zba- pq"), (4, "abq"), (5, "abq")])
def test_characters_stay_in_a_new_head(classes: int, alphabet: str, tmp_path: Path) -> None:
    """With room for all, the old ones keep their places; with less, those of the data are there."""
    path, words = reader(tmp_path, character=LISTED), ["ab", "q"] + (["p"] if "p" in alphabet else [])
    plan = planned(path, *words, replace_head=classes, keep=True)
    assert "".join(plan.settings.classes) == alphabet
    new = ", ".join(character for character in alphabet if character not in READ)
    said = f"the {len(alphabet)} characters are the model's own and new ones ({new}), with the classes that they have"
    assert said in "\n".join(plan.notes)
    made = plan.model(torch.from_numpy(X)).detach().log()
    wanted = torch.from_numpy(X @ WEIGHT)
    for place, character in enumerate(alphabet, 1):
        if character in READ:  # as far above the blank as before
            before = wanted[..., READ.index(character) + 1] - wanted[..., 0]
            torch.testing.assert_close(made[..., place] - made[..., 0], before, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("listed", ["z\nb\na\n-\n", json.dumps(["", *"zba", "''", " "])])
def test_the_user_lists_the_characters_of_a_file_that_has_no_list(listed: str, tmp_path: Path) -> None:
    """With the blank or without it, and with a sign of several characters."""
    (tmp_path / "own.txt").write_text(listed, encoding="utf-8")
    plan = planned(reader(tmp_path), "ab", replace_head=3, keep=True, own_classes=tmp_path / "own.txt")
    assert "".join(plan.settings.classes) == "ab" and "the 2 characters are the model's own" in "\n".join(plan.notes)
    made, wanted = plan.model(torch.from_numpy(X)).detach().log(), torch.from_numpy(X @ WEIGHT)
    for place, old in ((1, 3), (2, 2)):  # as far above the blank as before
        before = wanted[..., old] - wanted[..., 0]
        torch.testing.assert_close(made[..., place] - made[..., 0], before, atol=1e-4, rtol=1e-4)


def test_a_list_of_another_number_of_characters_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("a\nb\n", encoding="utf-8")
    told = r"own.txt lists 2 characters, but the model has 6 -> .* with it at one end$"
    with pytest.raises(OnnxgenError, match=told):
        planned(reader(tmp_path), "ab", replace_head=3, keep=True, own_classes=tmp_path / "own.txt")


def test_a_list_that_is_none_of_characters_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("a\nb\t\nc\n<x>\n")
    told = r"lists 2 characters and 2 other names \(line 2 is 'b\?', line 4 is '<x>'\), but the model has 6 -> one"
    with pytest.raises(OnnxgenError, match=told):
        planned(reader(tmp_path), "ab", replace_head=3, keep=True, own_classes=tmp_path / "own.txt")


def test_an_alphabet_is_forgotten_with_its_head(tmp_path: Path) -> None:
    plan = planned(reader(tmp_path, character=LISTED), "ba", replace_head=6)
    assert plan.settings.classes == ("a", "b")


# ---- characters ------------------------------------------------------------------------------------------------------


def test_white_space_is_told_apart(tmp_path: Path) -> None:
    words = ("a\u3000", "\u3000", " a", "\u00a0")
    fit(reader(tmp_path), texts(*words), out=tmp_path / "run", task="ctc", epochs=1, show="nothing", **QUIET)
    learner = load(tmp_path / "run", device="cpu")
    assert learner.settings.classes == (" ", "a", "\u00a0", "\u3000")


# ---- how sure a text is ----------------------------------------------------------------------------------------------


def test_a_text_has_the_score_of_paddleocr(tmp_path: Path) -> None:
    path = reader(tmp_path, character=LISTED)
    fit(path, texts("ab", "z"), out=tmp_path / "run", task="ctc", epochs=1, show="nothing", **QUIET)
    learner = load(tmp_path / "run", device="cpu")
    made = learner.model(torch.from_numpy(X)).detach().numpy()
    found = learner.predict({"x": X})
    for one, row in zip(found, made, strict=True):
        ids, sure = row.argmax(1), row.max(1)
        chosen = np.concatenate([[True], ids[1:] != ids[:-1]]) & (ids != 0)  # as its BaseRecLabelDecode does
        assert one.answer.score == pytest.approx(np.mean(sure[chosen]) if chosen.any() else sure.mean(), rel=1e-6)
    np.savez(tmp_path / "new.npz", x=X)
    out = tmp_path / "out.csv"
    assert cli(["predict", str(tmp_path / "run"), str(tmp_path / "new.npz"), "-o", str(out), "--device", "cpu"]) == 0
    head, first, *_ = out.read_text().splitlines()
    assert head == "source,label,score"
    assert float(first.rpartition(",")[2]) == pytest.approx(found[0].answer.score)
