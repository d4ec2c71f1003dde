"""Networks that read text: their columns and losses are those of transformers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit, load, open_model
from onnxgen.training.data import open_data
from onnxgen.training.data.samples import Data
from onnxgen.training.runs.record import read_record
from onnxgen.training.settings import Settings
from tests.training import texts
from tests.training.texts import SENTENCES, theirs

hf = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
WORDS = [text.split() for text in SENTENCES]
TAGS = [["NAME" if word[0].isupper() else "O" for word in words] for words in WORDS]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return texts.tokenizer(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return texts.tokenizer(tmp_path_factory.mktemp("pieces"), pieces=True)


def whole(data: Data) -> dict[str, torch.Tensor]:
    assert data.train is not None
    return data.train.take(range(len(data.train)), 0)


def opened(model: nn.Module, path: Any, file: Path, **given: Any) -> Data:
    return open_data(path, model, Settings(tokenizer=file, val=0, **given))


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("limit", [None, 5])
def test_columns_are_those_of_transformers(pair: bool, limit: int | None, file: Path, tmp_path: Path) -> None:
    model = texts.WithTypes(texts.bert("SequenceClassification", texts.size(file)))
    second = SENTENCES[::-1] if pair else None
    rows = [[*row, i % 2] for i, row in enumerate(zip(SENTENCES, second) if second else zip(SENTENCES))]
    path = texts.table(tmp_path / "x.csv", ["first", *(["second"] if pair else []), "label"], rows)
    found = opened(model, path, file, max_length=limit)
    wanted = theirs(file, SENTENCES, second, **({} if limit is None else {"truncation": True, "max_length": limit}))
    batch = whole(found)
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(batch[name], wanted[name])
    assert batch["label"].tolist() == [0, 1] * 3
    assert found.joined["input_ids"] == (["first", "second"] if pair else ["first"])
    assert any("cut to 5 tokens" in note for note in found.notes) == (limit == 5)


def test_a_fixed_length_is_filled(file: Path, tmp_path: Path) -> None:
    net = texts.WithMask(texts.bert("SequenceClassification", texts.size(file)))
    model = open_model(texts.generated(net, tmp_path / "fixed.py", ["input_ids", "attention_mask"], dims=""))
    path = texts.table(tmp_path / "x.csv", ["text", "label"], [[text, i % 2] for i, text in enumerate(SENTENCES)])
    assert whole(opened(model, path, file))["input_ids"].shape == (6, 5)
    assert whole(opened(model, path, file, max_length=4))["attention_mask"].tolist() == [[1, 1, 1, 1, 0]] * 6


def test_words_and_tags(pieces: Path, tmp_path: Path) -> None:
    """The first piece of a word has its label. The loss is that of transformers."""
    net = texts.bert("TokenClassification", texts.size(pieces))
    rows = [{"tokens": words, "tags": tags} for words, tags in zip(WORDS, TAGS)]
    path = texts.objects(tmp_path / "x.jsonl", rows)
    made = theirs(pieces, WORDS, is_split_into_words=True)
    labels = torch.full_like(made["input_ids"], -100)
    for i, tags in enumerate(TAGS):
        before = None
        for place, word in enumerate(made.word_ids(i)):
            if word is not None and word != before:
                labels[i, place] = ["NAME", "O"].index(tags[word])
            before = word
    batch = whole(opened(texts.WithMask(net), path, pieces))
    assert torch.equal(batch["input_ids"], made["input_ids"]) and torch.equal(batch["tags"], labels)
    with torch.no_grad():
        out = net(input_ids=made["input_ids"], attention_mask=made["attention_mask"], labels=labels)
    given = {"tokenizer": pieces, "val": 0.0, "batch_size": 2, "metric": ("F1Score",)}
    found = evaluate(texts.WithMask(net), path, **given)
    real = labels != -100
    chosen, truth = out.logits.argmax(-1)[real], labels[real]
    f1 = []
    for name in (0, 1):
        right = int(((chosen == name) & (truth == name)).sum())
        f1.append(2 * right / max(int((chosen == name).sum() + (truth == name).sum()), 1))
    assert found["loss"] == pytest.approx(out.loss.item(), abs=1e-5)
    assert found["accuracy"] == pytest.approx((chosen == truth).float().mean().item(), abs=1e-6)
    assert found["f1_score"] == pytest.approx(np.mean(f1), abs=1e-6)


def test_tags_as_text_numbers_and_in_another_order(file: Path, tmp_path: Path) -> None:
    net = texts.WithMask(texts.bert("TokenClassification", texts.size(file)))
    model = open_model(texts.generated(net, tmp_path / "tags.py", ["input_ids", "attention_mask"]))
    rows = [[" ".join(words), " ".join(tags)] for words, tags in zip(WORDS, TAGS)]
    lists = [{"tokens": w, "tags": [int(tag == "O") for tag in tags]} for w, tags in zip(WORDS, TAGS)]
    path = texts.table(tmp_path / "x.csv", ["sentence", "tags"], rows)
    found = opened(model, path, file, target="tags")
    assert found.train is not None and found.train.fields["tags"].classes == ("NAME", "O")
    numbers = opened(model, texts.objects(tmp_path / "x.jsonl", lists), file)
    turned = whole(opened(model, path, file, target="tags", classes=("O", "NAME")))["tags"]
    tags = whole(found)["tags"]
    assert torch.equal(whole(numbers)["tags"], tags)
    assert torch.equal(turned, torch.where(tags < 0, tags, 1 - tags)) and len({*tags.flatten().tolist()}) == 3


def test_no_axis_is_open_if_a_text_has_as_many_tokens_as_there_are_classes(file: Path, tmp_path: Path) -> None:
    net = texts.WithMask(texts.bert("TokenClassification", texts.size(file), labels=8))
    model = open_model(texts.generated(net, tmp_path / "eight.py", ["input_ids", "attention_mask"]))
    path = texts.objects(tmp_path / "x.jsonl", [{"tokens": WORDS[0], "tags": TAGS[0]}])  # 6 words are 8 tokens
    assert whole(opened(model, path, file))["input_ids"].shape == (1, 9)
    assert whole(opened(model, path, file, max_length=8))["input_ids"].shape == (1, 7)
    evaluate(model, path, tokenizer=file, val=0.0, classes=tuple("NAME O c d e f g h".split()))


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_language_model(batch: int, file: Path, tmp_path: Path) -> None:
    net = texts.gpt2(texts.size(file))
    made = theirs(file, SENTENCES)
    labels = made["input_ids"].masked_fill(made["attention_mask"] == 0, -100)
    with torch.no_grad():
        loss = net(input_ids=made["input_ids"], attention_mask=made["attention_mask"], labels=labels).loss.item()
    path = texts.table(tmp_path / "x.csv", ["text", "year"], [[text, 2000] for text in SENTENCES])
    given = {"task": "language-model", "tokenizer": file, "val": 0.0, "batch_size": batch}
    found = evaluate(texts.WithPositions(net), path, **given)
    assert found["loss"] == pytest.approx(loss, abs=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    arrays = {name: made[name] for name in ("input_ids", "attention_mask")}  # token ids that others made
    given.pop("tokenizer")
    assert evaluate(texts.WithMask(net), arrays, **given)["loss"] == pytest.approx(loss, abs=1e-5)


def test_a_text_file_is_cut_into_blocks(file: Path, tmp_path: Path) -> None:
    net = texts.gpt2(texts.size(file))
    (tmp_path / "x.txt").write_text("\n\n".join(SENTENCES), encoding="utf-8")
    found = opened(texts.WithPositions(net), tmp_path / "x.txt", file, task="language-model", max_length=6)
    ids = theirs(file, ["\n\n".join(SENTENCES)], add_special_tokens=False)["input_ids"][0]
    batch = whole(found)
    assert torch.equal(batch["input_ids"][batch["attention_mask"] == 1], ids)
    assert batch["input_ids"].shape == (5, 6) and len(ids) == 30
    assert torch.equal(batch["labels"] == -100, batch["attention_mask"] == 0)
    assert torch.equal(batch["position_ids"][0], torch.arange(6))


def test_a_network_that_sees_later_tokens_is_refused(file: Path, tmp_path: Path) -> None:
    path = texts.table(tmp_path / "x.csv", ["text", "n"], [[text, 1] for text in SENTENCES])
    model = texts.WithTypes(texts.bert("MaskedLM", texts.size(file)))
    with pytest.raises(OnnxgenError, match=r"at position 3 depends on token 4.*masked-language-model"):
        evaluate(model, path, task="language-model", tokenizer=file, val=0.0)


def test_masked_language_model(file: Path, tmp_path: Path) -> None:
    """15 % of the tokens, but no special ones; 80 % of these are masked, 10 % are any token, and 10 % are as before."""
    net = texts.bert("MaskedLM", texts.size(file))
    lines = [SENTENCES[i % 6] for i in range(1200)]
    path = texts.table(tmp_path / "x.csv", ["text", "n"], [[line, 1] for line in lines])
    found = opened(texts.WithMask(net), path, file, task="masked-language-model")
    plain = theirs(file, lines)["input_ids"]
    assert found.train is not None
    batch, again, other = (found.train.take(range(1200), seed) for seed in (0, 0, 1))
    ids, labels = batch["input_ids"], batch["labels"]
    chosen = labels != -100
    assert torch.equal(ids[~chosen], plain[~chosen]) and torch.equal(labels[chosen], plain[chosen])
    assert not (chosen & (plain < len(texts.SPECIAL))).any()
    count, n = int(chosen.sum()), int((plain >= len(texts.SPECIAL)).sum())
    masked, same = int((ids[chosen] == 4).sum()), int((ids[chosen] == plain[chosen]).sum())
    assert abs(count / n - 0.15) < 4 * math.sqrt(0.15 * 0.85 / n)
    assert abs(masked / count - 0.8) < 0.05 and 0.07 < same / count < 0.15  # any token may be the same
    assert torch.equal(again["input_ids"], ids) and not torch.equal(other["input_ids"], ids)
    with torch.no_grad():
        mask = (plain != 0).long()
        frozen = open_data(path, texts.WithMask(net), Settings(tokenizer=file, task="masked-language-model", val=0.5))
        assert frozen.val is not None
        held = frozen.val.take(range(20), 7)
        loss = net(held["input_ids"], attention_mask=(held["input_ids"] != 0).long(), labels=held["labels"]).loss
        assert torch.equal(held["input_ids"], frozen.val.take(range(20), 8)["input_ids"]) and mask.any()
    assert loss.isfinite()


def test_sequence_to_sequence(file: Path, tmp_path: Path) -> None:
    """The decoder's input begins as `decoder_start_token_id` says, and the loss is that of transformers."""
    net = texts.bart(texts.size(file))
    rows = [[a, b] for a, b in zip(SENTENCES, SENTENCES[::-1])]
    path = texts.table(tmp_path / "x.csv", ["source", "other"], rows)
    made, others = theirs(file, SENTENCES), theirs(file, SENTENCES[::-1])
    labels = others["input_ids"].masked_fill(others["attention_mask"] == 0, -100)
    with torch.no_grad():
        out = net(input_ids=made["input_ids"], attention_mask=made["attention_mask"], labels=labels)
    given: dict[str, Any] = {"task": "seq2seq", "target": "other", "tokenizer": file, "val": 0.0, "batch_size": 4}
    with pytest.raises(OnnxgenError, match=r"no generation_config.json .* --decoder-start|decoder_start"):
        evaluate(texts.WithDecoder(net), path, **given)
    found = evaluate(texts.WithDecoder(net), path, **given, decoder_start="[SEP]")
    assert found["loss"] == pytest.approx(out.loss.item(), abs=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(out.loss.item()), rel=1e-5)
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(file.read_bytes())
    net.generation_config.save_pretrained(folder)
    assert evaluate(texts.WithDecoder(net), path, **{**given, "tokenizer": folder}) == found


def test_a_run_keeps_the_name_of_the_start(tmp_path: Path) -> None:
    """The start is number 3, and there is a token that is called 3."""
    library = pytest.importorskip("tokenizers")
    names = [*texts.SPECIAL, "1", "2", "3"]
    library.Tokenizer(library.models.WordLevel({n: i for i, n in enumerate(names)}, "[UNK]")).save(str(tmp_path / "t"))
    path = texts.table(tmp_path / "x.csv", ["source", "other"], [["three", "one"]])
    model = texts.WithDecoder(texts.bart(len(names)))
    settings = Settings(task="seq2seq", target="other", tokenizer=tmp_path / "t", val=0, decoder_start="[SEP]")
    first = open_data(path, model, settings)
    assert first.text is not None
    again = open_data(path, model, first.text.kept(settings))
    assert whole(first)["decoder_input_ids"].tolist() == whole(again)["decoder_input_ids"].tolist() == [[3]]


class WithPast(nn.Module):
    """A past of length 0 goes before the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 8), nn.Linear(8, 40)

    def forward(self, input_ids: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([past[:, 0], self.embed(input_ids)], 1))


def test_an_empty_past(file: Path, tmp_path: Path) -> None:
    names, path = ["input_ids", "past_key_values.0.key"], tmp_path / "past.onnx"
    for dims in ({0: "batch", 2: "past"}, {0: "batch"}):
        torch.onnx.export(
            WithPast().eval(), (torch.ones(2, 5, dtype=torch.int64), torch.zeros(2, 1, 3, 8)), path, dynamo=False,
            opset_version=17, input_names=names, output_names=["logits"],
            dynamic_axes={names[0]: {0: "batch", 1: "length"}, names[1]: dims, "logits": {0: "batch", 1: "all"}},
        )  # fmt: skip
        texts.generate(path, tmp_path / "past.py", force=True)
        model = open_model(tmp_path / "past.py")
        data = texts.table(tmp_path / "x.csv", ["text", "n"], [[text, 1] for text in SENTENCES])
        given: dict[str, Any] = {"task": "language-model", "tokenizer": file, "val": 0.0}
        if 2 in dims:
            assert evaluate(model, data, **given)["loss"] > 0
        else:
            with pytest.raises(OnnxgenError, match="takes a past of a fixed length, and texts have none -> export"):
                evaluate(model, data, **given)


def test_a_run_has_its_tokenizer(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It predicts for texts and files of other columns after everything beside it is gone, and goes on."""
    monkeypatch.chdir(tmp_path)
    net = texts.WithTypes(texts.bert("SequenceClassification", texts.size(file)))
    texts.generated(net, tmp_path / "bert.py", ["input_ids", "attention_mask", "token_type_ids"])
    (tmp_path / "tokenizer.json").write_bytes(file.read_bytes())  # it is found beside the module
    rows = [[SENTENCES[i % 6], "yes" if "good" in SENTENCES[i % 6] else "no"] for i in range(60)]
    texts.table(tmp_path / "x.csv", ["review", "label"], rows)
    fit("bert.py", "x.csv", epochs=8, lr=1e-2, batch_size=10, out="run", show="nothing")
    for name in ("tokenizer.json", "bert.py"):
        (tmp_path / name).unlink()
    record = read_record(tmp_path / "run")
    assert record.settings["tokenizer"] == "tokenizer.json" and record.inputs[0].columns == ("review",)
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == file.read_bytes()
    assert 'tokenizer = "tokenizer.json"' in (tmp_path / "run" / "config.toml").read_text()
    run = load("run")
    assert [one.label for one in run.predict(["the film was good", SENTENCES[1]])] == ["yes", "no"]
    texts.table(tmp_path / "new.csv", ["id", "title", "review"], [["a", "x", "a good dog"], ["b", "x", SENTENCES[1]]])
    (tmp_path / "new.txt").write_text(f"a good dog\n{SENTENCES[1]}\n")
    for new in ("new.csv", "new.txt"):
        assert [one.label for one in run.predict(new)] == ["yes", "no"]
    assert run.evaluate()["accuracy"] == 1.0 == run.evaluate("x.csv")["accuracy"]
    with pytest.raises(OnnxgenError, match=r"new.txt, line 2: no text"):
        (tmp_path / "new.txt").write_text("a good film\n\n")
        run.predict("new.txt")
    fit("run", epochs=1, out="further", show="nothing")
    assert (tmp_path / "further" / "tokenizer.json").is_file()


def test_a_language_model_trains_and_resumes(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts.generated(texts.WithMask(texts.gpt2(texts.size(file))), tmp_path / "gpt.py", ["input_ids", "attention_mask"])
    (tmp_path / "x.txt").write_text("\n".join(SENTENCES * 10))
    given: dict[str, Any] = {"task": "language-model", "tokenizer": file, "max_length": 12, "out": tmp_path / "run"}
    given |= {"batch_size": 8, "lr": 1e-2, "show": "nothing"}
    before = fit("gpt.py", "x.txt", epochs=2, **given)
    found = fit("gpt.py", "x.txt", epochs=3, resume=True, **{**given, "tokenizer": tmp_path / "run"})
    assert len(found.history) == 3 and found.history[:2] == before.history
    for row in found.history:
        assert row["val_perplexity"] == pytest.approx(math.exp(row["val_loss"]), rel=1e-4)
    assert found.history[-1]["val_loss"] < found.history[0]["val_loss"]
    assert load("run").evaluate()["loss"] == pytest.approx(min(row["val_loss"] for row in found.history), abs=1e-5)
