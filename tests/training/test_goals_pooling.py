"""`--pooling`, the vector of a text of those of its tokens; and pairs of which several have the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.ship import ship
from onnxgen.ship.targets import target_of
from onnxgen.training import evaluate, fit, load
from onnxgen.training.runs.contract import contract
from onnxgen.training.runs.record import read_record
from tests.training import texts
from tests.training.shipping import need_same, shipped
from tests.training.texts import SENTENCES, Pooled

library = pytest.importorskip("tokenizers")
PAIRS = [[SENTENCES[i], SENTENCES[(i + 1) % 6]] for i in range(6)]


class Tokens(Pooled):
    """A vector for each token [n, T, 8]."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        seen = (self.query(x) @ x.transpose(1, 2)).masked_fill(attention_mask[:, None] == 0, -1e9).softmax(-1)
        return self.out(x + seen @ x)  # type: ignore[no-any-return]


class WithoutMask(Tokens):
    def forward(self, input_ids: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input_ids, torch.ones_like(input_ids))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return texts.tokenizer(tmp_path_factory.mktemp("words"))


def by_hand(model: Tokens, file: Path, lines: list[str], how: str) -> Tensor:
    """Return the vectors of texts, each alone and without padding."""
    found, each = library.Tokenizer.from_file(str(file)), []
    for line in lines:
        ids = torch.tensor([found.encode(line).ids])
        (y,) = model(ids, torch.ones_like(ids))
        each.append(y[0] if how == "cls" else y.mean(0) if how == "mean" else y.amax(0))
    return F.normalize(torch.stack(each))


def given(file: Path, **more: Any) -> dict[str, Any]:
    return {"task": "embedding", "tokenizer": file, "val": 0.0, "device": "cpu", "workers": 0, **more}


@pytest.mark.parametrize("pooling", ["auto", "mean", "cls", "max"])
def test_the_vectors_of_a_padded_batch_are_those_of_each_text_alone(pooling: str, file: Path, tmp_path: Path) -> None:
    """The run, a later one of its folder, and a program that has the exported file alone say the same."""
    model = Tokens(texts.size(file))
    path = texts.table(tmp_path / "x.csv", ["anchor", "positive"], PAIRS)
    how = "mean" if pooling == "auto" else pooling
    anchors, positives = (by_hand(model, file, [*column], how) for column in zip(*PAIRS))
    wanted = F.cross_entropy(anchors @ positives.T / 0.05, torch.arange(6))
    found = evaluate(model, path, **given(file, pooling=pooling))
    assert found["loss"] == pytest.approx(wanted.item(), abs=1e-5)
    assert found["recall_at_1"] == pytest.approx((anchors @ positives.T).argmax(1).eq(torch.arange(6)).float().mean())

    module = texts.generated(model, tmp_path / "net.py", ["input_ids", "attention_mask"])
    run = shipped(module, path, tmp_path / "run", task="embedding", tokenizer=file, pooling=pooling)
    assert read_record(run).settings["pooling"] == how
    (output,) = contract(read_record(run))["outputs"]
    assert (output["kind"], output["pooling"], output["mask"]) == ("vectors", how, "attention_mask")
    texts.table(tmp_path / "one.csv", ["anchor"], [[line] for line in SENTENCES])
    found = need_same(run, tmp_path / "one.csv")
    trained = load(run, device="cpu")
    made = by_hand(trained.model, file, [*SENTENCES], how).detach().numpy()
    np.testing.assert_allclose(np.stack([one[output["name"]] for one in found]), made, atol=1e-5)
    for to in ("onnx", "torchscript", "pt2") if pooling == "auto" else ():
        report = ship(run, to, tmp_path / f"shipped{target_of(to).suffix}", data=path)
        assert report.difference < 1e-5 and report.compared == 12
    cosines = [one.answer.value.item() for one in trained.predict([tuple(pair) for pair in PAIRS])]
    ends = [SENTENCES.index(end) for _, end in PAIRS]
    np.testing.assert_allclose(cosines, (made * made[ends]).sum(1), atol=1e-5)


def test_an_equal_text_is_no_negative(file: Path, tmp_path: Path) -> None:
    """Of two pairs with one positive, neither is wrong for the other; nor are two positives of one anchor."""
    a, b, c, d, e, _ = SENTENCES
    model, rows = Tokens(texts.size(file)), [[a, b], [c, b], [a, d], [e, c]]
    path = texts.table(tmp_path / "x.csv", ["anchor", "positive"], rows)
    anchors, positives = (by_hand(model, file, [*column], "mean") for column in zip(*rows))
    left_out = torch.zeros(4, 4, dtype=torch.bool)
    for i, j in ((0, 1), (1, 0), (0, 2), (2, 0)):
        left_out[i, j] = True
    scores = (anchors @ positives.T / 0.05).masked_fill(left_out, -torch.inf)
    found = evaluate(model, path, **given(file))
    assert found["loss"] == pytest.approx(F.cross_entropy(scores, torch.arange(4)).item(), abs=1e-5)
    good = [{0, 1, 2}, {0, 1}, {0, 2}, {3}]
    right = [(anchors[i] @ positives.T).argmax().item() in good[i] for i in range(4)]
    assert found["recall_at_1"] == pytest.approx(np.mean(right))


CLASSES = {"inputs": {"input_ids": "anchor"}, "target": "positive"}
REFUSED = {
    "pooled already": (
        Pooled,
        {"pooling": "mean"},
        r"pooling needs one output with a vector for each token \[N, T, D\]",
    ),
    "no mask": (WithoutMask, {"pooling": "max"}, "pooling='max': the network has no input attention_mask"),
    "no mask, and nothing asked": (WithoutMask, {}, "pooling='mean': the network has no .*mask.*pooling='cls'"),
    "another word": (Tokens, {"pooling": "sum"}, "pooling must be one of auto, mean, cls, max, not 'sum'"),
    "another task": (
        Pooled,
        {"pooling": "cls", "task": "outputs", **CLASSES},
        "pooling makes vectors, and the task is",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, file: Path, tmp_path: Path) -> None:
    kind, settings, says = REFUSED[case]
    path = texts.table(tmp_path / "x.csv", ["anchor", "positive"], PAIRS)
    with pytest.raises(OnnxgenError, match=says):
        fit(kind(texts.size(file)), path, out=tmp_path / "run", show="nothing", **given(file, **settings))


def test_the_first_token_needs_no_mask(file: Path, tmp_path: Path) -> None:
    path = texts.table(tmp_path / "x.csv", ["anchor", "positive"], [[SENTENCES[0], SENTENCES[0]], ["a dog", "a dog"]])
    assert evaluate(WithoutMask(texts.size(file)), path, **given(file, pooling="cls"))["recall_at_1"] == 1
