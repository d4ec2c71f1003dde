"""Errors for texts that can't be read: one line each, with the file and the line. Or the sample is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate
from onnxgen.training.data import open_data
from onnxgen.training.data.table import read_jsonl
from onnxgen.training.data.text.tokenizer import beside
from onnxgen.training.settings import Settings
from tests.training import texts
from tests.training.small import network
from tests.training.texts import SENTENCES

pytest.importorskip("transformers")
GOOD = [{"text": "the cat", "label": "a"}, {"text": "a dog", "label": "b"}]
TAGGED = [{"tokens": ["the", "cat"], "tags": ["O", "O"]}, {"tokens": ["Tom"], "tags": ["NAME"]}]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return texts.tokenizer(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def model(file: Path) -> Any:
    return texts.WithMask(texts.bert("SequenceClassification", texts.size(file)))


def lines(*rows: Any) -> bytes:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


BROKEN: dict[str, tuple[str, bytes, str]] = {
    "not JSON": ("x.jsonl", lines(GOOD[0], "{'text': 1}"), "x.jsonl, line 2 can't be read: Expecting property name"),
    "no object": ("x.jsonl", lines(GOOD[0], [1, 2]), "x.jsonl, line 2 can't be read: the JSON is not an object"),
    "half a line": ("x.jsonl", lines(*GOOD)[:-9], "x.jsonl, line 2 can't be read"),
    "deep": ("x.jsonl", lines(GOOD[0], "[" * 100_000), "x.jsonl, line 2 can't be read: the JSON is nested too deeply"),
    "empty": ("x.jsonl", b"", "x.jsonl has no rows"),
    "empty objects": ("x.jsonl", b"{}\n{}\n", "x.jsonl has no rows"),
    "UTF-16": ("x.jsonl", lines(*GOOD).decode().encode("utf-16"), "x.jsonl can't be read: 'utf-8' codec"),
    "Latin-1": ("x.csv", "text,label\ncafé,a\n".encode("latin-1"), "x.csv can't be read: 'utf-8' codec"),
    "Latin-1 text": ("x.txt", "café\n".encode("latin-1"), "x.txt can't be read: 'utf-8' codec"),
    "UTF-16 without a mark": ("x.txt", "ab\ncd\n".encode("utf-16-le"), "x.txt, line 1 has a zero byte"),
    "blank text file": ("x.txt", b" \n\n", "x.txt has no text"),
    "no text at all": (
        "x.jsonl",
        lines({"text": " ", "label": 0}, {"text": "", "label": 1}),
        "x.jsonl, line 1: no text",
    ),
    "other kinds": (
        "x.jsonl",
        lines({"text": "a", "label": 1}, {"text": "b", "label": "x"}),
        r"column 'label' holds a number \(line 1\) and text \(line 2\)",
    ),
    "several columns": (
        "x.jsonl",
        lines({"a": "x", "b": "y", "c": "z", "label": 0}),
        "which column of text does input 'input_ids' read\\? The data's columns of text are a, b, c",
    ),
    "no known target": ("x.csv", b"review,mood\nok,good\nno,bad\n", "columns of text are review, mood .*target"),
    "no label": ("x.jsonl", lines(GOOD[0], {"text": "a"}), "x.jsonl, line 2: column 'label' has no value"),
    "other lengths": (
        "x.jsonl",
        lines({"tokens": ["the", "cat"], "tags": ["O"]}),
        "x.jsonl, line 1: 2 words, but 1 tag",
    ),
    "no words": (
        "x.jsonl",
        lines({"tokens": [], "tags": ["O"]}, *[{"tokens": [], "tags": []}]),
        "which column|no text",
    ),
    "mixed tags": ("x.jsonl", lines({"tokens": ["the"], "tags": [0]}, {"tokens": ["a"], "tags": [-1]}), "line 2: tags"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_data_is_one_line(case: str, file: Path, model: Any, tmp_path: Path) -> None:
    name, content, expected = BROKEN[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OnnxgenError, match=expected) as caught:
        evaluate(model, tmp_path / name, tokenizer=file, val=0.0, strict=True)
    assert all("\n" not in str(problem) for problem in caught.value.problems)
    assert caught.value.problems[0].help


LEFT_OUT = {
    "no text": (lines(*GOOD, {"text": "", "label": "a"}), "line 3: no text"),
    "null": (lines(GOOD[0], {"text": None, "label": "a"}, GOOD[1]), "line 2: no text"),
    "lacking": (lines({"label": "a"}, *GOOD), "line 1: no text"),
    "lengths": (lines(*TAGGED, {"tokens": ["a"], "tags": ["O", "O"]}), "line 3: 1 word, but 2 tags"),
    "a tag that is no text": (lines(*TAGGED, {"tokens": ["a"], "tags": [7]}), "line 3: tags that are no text"),
    "no tags": (lines(*TAGGED, {"tokens": ["a"]}), "line 3: 1 word, but 0 tags"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_broken_sample_is_left_out_and_counted(case: str, file: Path, model: Any, tmp_path: Path) -> None:
    content, expected = LEFT_OUT[case]
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    found = open_data(path, model, Settings(tokenizer=file, val=0))
    assert found.train is not None and len(found.train) == 2
    assert f"1 sample left out: {path}, {expected}" in found.notes
    label = "tags" if "tokens" in content.decode() else "label"
    assert len({*found.train.take([0, 1], 0)[label].flatten().tolist()} - {-100}) == 2  # the others have their own
    with pytest.raises(OnnxgenError, match=f"x.jsonl, {expected}"):
        open_data(path, model, Settings(tokenizer=file, val=0, strict=True))


TOKENIZERS = {
    "missing": (None, "there is no file .*tokenizer.json"),
    "not JSON": (b"[CLS]\nthe\n", "tokenizer.json is no tokenizer"),
    "other JSON": (b'{"a": 1}', "tokenizer.json is no tokenizer"),
    "binary": (b"\xff\xfe\x00", "tokenizer.json is no tokenizer"),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_broken_tokenizers(case: str, model: Any, tmp_path: Path) -> None:
    content, expected = TOKENIZERS[case]
    (tmp_path / "x.jsonl").write_bytes(lines(*GOOD))
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(OnnxgenError, match=expected):
        evaluate(model, tmp_path / "x.jsonl", tokenizer=tmp_path, val=0.0)


def test_settings_that_do_not_fit(file: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines(*GOOD))
    asked: list[tuple[dict[str, Any], str]] = [
        ({}, "takes token ids, but column 'text' is text -> tokenizer='tokenizer.json'|takes token ids"),
        ({"tokenizer": file, "inputs": {"input_ids": "texts"}}, "column 'texts' is not there"),
        ({"tokenizer": file, "inputs": {"input_ids": "text+text+text"}}, "reads a text, or a pair of them"),
        ({"tokenizer": file, "max_length": 2}, "2 tokens leave no room for text: the tokenizer adds 2 of its own"),
        (
            {"tokenizer": file, "task": "language-model", "target": "label"},
            "has no target: it predicts the text itself",
        ),
        (
            {"tokenizer": file, "task": "language-model", "inputs": {"input_ids": "text"}},
            r"needs scores of each token \[2, 4, vocabulary\]",
        ),
        ({"tokenizer": file, "task": "language-model"}, "columns of text are text, label -> "),
        ({"tokenizer": file, "task": "seq2seq"}, "the model has no input decoder_input_ids"),
    ]
    for given, expected in asked:
        with pytest.raises(OnnxgenError, match=expected):
            evaluate(model, path, val=0.0, **given)
    (tmp_path / "x.txt").write_text("a dog")
    with pytest.raises(OnnxgenError, match="how long are the blocks that x.txt is cut into"):
        evaluate(model, tmp_path / "x.txt", val=0.0, tokenizer=file, task="language-model")
    tagged = tmp_path / "tags.jsonl"
    tagged.write_bytes(lines(*TAGGED))
    with pytest.raises(OnnxgenError, match="tags.jsonl, line 2: NAME is no class"):
        evaluate(model, tagged, val=0.0, tokenizer=file, classes=("O", "PLACE"))
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(OnnxgenError, match=r"text needs the package tokenizers -> pip install .*\[text\]"):
        evaluate(model, path, tokenizer=file, val=0.0)


def test_parts_and_labels_that_do_not_fit(file: Path, model: Any, tmp_path: Path) -> None:
    for part, rows in (("train", TAGGED), ("val", [{"tokens": ["a"], "label": 1}])):
        (tmp_path / f"{part}.jsonl").write_bytes(lines(*rows))
    with pytest.raises(OnnxgenError, match="parts?.*val.* no column tags|part val has columns"):
        evaluate(model, tmp_path, tokenizer=file)
    gpt, ids = texts.WithMask(texts.gpt2(texts.size(file))), np.array([[5, 6, 7, 8], [8, 7, 6, 5]])
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": np.roll(ids, -1, 1)}
    with pytest.raises(OnnxgenError, match="column 'labels' does not hold the token ids of an input"):
        evaluate(gpt, arrays, task="language-model", val=0.0)


def test_another_vocabulary(file: Path, tmp_path: Path) -> None:
    """Ids past the embedding are an error. A tokenizer that does not know the words is noted."""
    small = texts.WithMask(texts.bert("SequenceClassification", 9))
    path = texts.table(tmp_path / "x.csv", ["text", "label"], [[text, i % 2] for i, text in enumerate(SENTENCES)])
    with pytest.raises(OnnxgenError, match=r"column 'input_ids' of train has .*word_embeddings has 9 rows"):
        evaluate(small, path, tokenizer=file, val=0.0)
    data = {"text": ["xyzzy plugh", "the cat"], "label": np.array([0, 1])}
    found = open_data(data, small, Settings(tokenizer=file, val=0))
    assert "2 of 8 tokens are unknown to the tokenizer: is it the network's own?" in found.notes


def test_a_tokenizer_is_looked_for_beside_generated_modules_alone(tmp_path: Path) -> None:
    """The folder of another class is its library's, whose tokenizer is another model's."""
    made = network(tmp_path, x=("float32", ("n", 4)))
    assert beside(made)[0] == tmp_path and beside(torch.nn.Linear(1, 1)) == []


def test_all_lines_that_can_not_be_read_are_told_at_once(tmp_path: Path) -> None:
    """The first five of them."""
    path = tmp_path / "x.jsonl"
    for bad in (3, 9):
        path.write_bytes(lines(*[GOOD[0], "{"] * bad))
        with pytest.raises(OnnxgenError) as caught:
            read_jsonl(path)
        said = [problem.what.partition(" can't")[0] for problem in caught.value.problems]
        assert said == [f"{path}, line {2 * n + 2}" for n in range(min(bad, 5))]
