"""`--task embedding` with pairs of texts: losses by hand, correlations of scipy, runs, and what is refused."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit, load, predict
from onnxgen.training.data import feed, open_data
from onnxgen.training.data.arrays import Tuples, row_of
from onnxgen.training.goals.embedding import Correlation
from onnxgen.training.prepare import objectives_of, prepare
from onnxgen.training.runs.contract import contract
from onnxgen.training.runs.record import read_record
from onnxgen.training.settings import Settings
from tests.training import texts
from tests.training.shipping import need_same, shipped
from tests.training.texts import SENTENCES, Pooled

library = pytest.importorskip("tokenizers")
NAMES = ["sentence1", "sentence2", "score"]
LINES = [*SENTENCES, *(text.rpartition(" ")[0] for text in SENTENCES)]
# Of two equal texts or of two orders of one pair, rounding would decide which cosine is greater.
PAIRS = [*combinations(LINES, 2)][::2]


def alike(one: str, other: str) -> float:
    """Return 5 times the share of words that two texts have in common."""
    words, others = set(one.split()), set(other.split())
    return 5 * len(words & others) / len(words | others)


ROWS = [(one, other, alike(one, other)) for one, other in PAIRS]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return texts.tokenizer(tmp_path_factory.mktemp("words"))


@pytest.fixture
def model(file: Path) -> Pooled:
    return Pooled(texts.size(file))


def vectors(model: nn.Module, file: Path, lines: list[str]) -> Tensor:
    """Return the vector of each text alone, without padding: what the library `tokenizers` and the module say."""
    found = library.Tokenizer.from_file(str(file))
    each = [torch.tensor([found.encode(line).ids]) for line in lines]
    return torch.cat([model(ids, torch.ones_like(ids)) for ids in each])


def cosines(model: nn.Module, file: Path, pairs: Any) -> Tensor:
    one, other = (vectors(model, file, [*lines]) for lines in zip(*pairs))
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1))


def given(file: Path, **more: Any) -> dict[str, Any]:
    return {"task": "embedding", "tokenizer": file, "val": 0.0, "device": "cpu", "workers": 0, **more}


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [*model.parameters()]))


# ---- losses and metrics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scores, largest", [([0.0, 5.0, 2.5], 5.0), ([4, 0, 1], 4.0), ([-1.0, 0.25, 0.5], 1.0)])
def test_loss_and_gradient_are_those_by_hand(
    scores: list[float], largest: float, model: Pooled, file: Path, tmp_path: Path
) -> None:
    # The longest text is a second one.
    pairs = [(SENTENCES[4], SENTENCES[3]), (SENTENCES[2], SENTENCES[0]), (SENTENCES[4], SENTENCES[1])]
    path = texts.table(tmp_path / "x.csv", NAMES, [[*pair, score] for pair, score in zip(pairs, scores)])
    plan = prepare(model, path, Settings(**given(file, target="score")))
    samples = plan.data.train
    assert samples is not None and isinstance(samples, Tuples) and len(samples) == 3
    batch = samples.take([0, 1, 2], 0)
    loss, weight, _ = plan.objectives[0].compute((model(*plan.feeding.arguments(batch)),), batch, training=True)
    wanted = F.mse_loss(cosines(model, file, pairs), torch.tensor(scores) / largest)
    assert int(weight) == 3 and loss.item() == pytest.approx(wanted.item(), abs=1e-5)
    for mine, theirs in zip(gradients(model, loss), gradients(model, wanted), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)
    assert plan.settings.largest_score == largest
    assert any(note.endswith("its score, divided by 5") for note in plan.notes) == (largest == 5)


@pytest.mark.parametrize("batch", [5, 64])
def test_an_evaluation_is_that_of_scipy(batch: int, model: Pooled, file: Path, tmp_path: Path) -> None:
    path = texts.table(tmp_path / "x.csv", NAMES, ROWS)
    found = evaluate(model, path, **given(file, target="score", batch_size=batch))
    made, scores = cosines(model, file, PAIRS).detach().numpy(), np.array([row[2] for row in ROWS])
    assert found["loss"] == pytest.approx(np.square(made - scores / scores.max()).mean(), abs=1e-5)
    assert found["spearman"] == pytest.approx(stats.spearmanr(made, scores).statistic, abs=1e-5)
    assert found["pearson"] == pytest.approx(stats.pearsonr(made, scores).statistic, abs=1e-5)


@pytest.mark.parametrize("count, ties", [(2, 2), (37, 5), (1000, 1000), (200_000, 2)])
def test_correlations_are_those_of_scipy(count: int, ties: int) -> None:
    rng = np.random.default_rng(0)
    scores = np.arange(count) % ties
    made = scores * 0.1 + rng.normal(size=count)
    metric = Correlation()
    for part in (slice(0, count // 3), slice(count // 3, None)):
        metric.update(torch.tensor(made[part]), torch.tensor(scores[part]).float())
    found = metric.compute()
    assert found["spearman"].item() == pytest.approx(stats.spearmanr(made, scores).statistic, abs=1e-9)
    assert found["pearson"].item() == pytest.approx(stats.pearsonr(made, scores).statistic, abs=1e-6)


def test_equal_cosines_have_no_correlation() -> None:
    metric = Correlation()
    metric.update(torch.ones(4), torch.arange(4.0))
    assert metric.compute()["spearman"].isnan() and metric.compute()["pearson"].isnan()


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("loss", ["auto", "info_nce", "triplet"])
def test_tuples_of_texts(loss: str, members: int, model: Pooled, file: Path, tmp_path: Path) -> None:
    rows = [[SENTENCES[i], SENTENCES[i - 1], SENTENCES[i - 2]][:members] for i in range(4)]
    path = texts.table(tmp_path / "x.csv", ["id", "anchor", "positive", "negative"][: members + 1],
                       [[i, *row] for i, row in enumerate(rows)])  # fmt: skip
    found = evaluate(model, path, **given(file, loss=loss))
    each = [vectors(model, file, [*column]) for column in zip(*rows)]
    others = [row[i] for i in range(1, members) for row in rows]
    own = torch.tensor([[other == row[1] for other in others] for row in rows])  # a negative may be such a text, too
    own[:, :4] &= ~torch.eye(4, dtype=torch.bool)
    if loss != "triplet":
        unit = [F.normalize(x) for x in each]
        scores = unit[0] @ torch.cat(unit[1:]).T / 0.05
        wanted = F.cross_entropy(scores.masked_fill(own, -torch.inf), torch.arange(4))
    else:
        x, pair = torch.cat(each), torch.tensor([*range(4), *range(4), *range(-1, -5, -1)][: 4 * members])
        far = [(x[i] - x[(i + 4) % 8]).norm() for i in range(8)]
        equal = torch.cat([torch.zeros(4, 4, dtype=torch.bool), own], 1)
        near = [(x[i] - x[(pair != pair[i]) & ~equal[i % 4]]).norm(dim=1).min() for i in range(8)]
        wanted = torch.stack([F.softplus(p - q) for p, q in zip(far, near)]).mean()
    assert found["loss"] == pytest.approx(wanted.item(), abs=1e-5)
    assert 0 <= found["recall_at_1"] <= 1


# ---- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "dict"])
def test_kinds_of_files(kind: str, model: Pooled, file: Path, tmp_path: Path) -> None:
    columns = {name: [*values] for name, values in zip(NAMES, zip(*ROWS[:5]))}
    path = tmp_path / f"x.{kind}"
    if kind == "jsonl":
        texts.objects(path, [dict(zip(NAMES, row)) for row in ROWS[:5]])
    elif kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(pytest.importorskip("pyarrow").table(columns), path)
    else:
        path.write_text("\n".join("\t,"[kind == "csv"].join(map(str, row)) for row in [NAMES, *ROWS[:5]]))
    data: Any = {name: np.array(values) for name, values in columns.items()} if kind == "dict" else path
    found = open_data(data, model, Settings(**given(file)))
    assert found.train is not None
    batch = found.train.take(range(5), 0)
    assert batch["score"].tolist() == pytest.approx([value for row in ROWS[:5] for value in [row[2]] * 2])
    lines = [text for row in ROWS[:5] for text in row[:2]]
    fast = library.Tokenizer.from_file(str(file))
    assert [ids[mask == 1].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"])] == [
        fast.encode(line).ids for line in lines
    ]


def test_a_pair_without_a_text_is_left_out(model: Pooled, file: Path, tmp_path: Path) -> None:
    rows = [["the cat", "a dog", 0.1], ["", "a dog", 0.2], ["the cat", " ", 0.3], ["a dog", "a good dog", 0.9]]
    path = texts.table(tmp_path / "x.csv", NAMES, rows)
    found = open_data(path, model, Settings(**given(file, target="score")))
    assert found.train is not None and found.train.take([0, 1], 0)["score"].tolist() == pytest.approx(
        [0.1, 0.1, 0.9, 0.9]
    )
    assert any(f"2 samples left out: {path}, line 3: no text, and 1 more" in note for note in found.notes)
    with pytest.raises(OnnxgenError, match="x.csv, line 3: no text -> correct the data"):
        open_data(path, model, Settings(**given(file, target="score", strict=True)))


def test_two_of_several_columns(model: Pooled, file: Path, tmp_path: Path) -> None:
    rows = [[i, "news", *row, 2000] for i, row in enumerate(ROWS[:6])]
    path = texts.table(tmp_path / "x.csv", ["id", "genre", *NAMES, "year"], rows)
    plain = texts.table(tmp_path / "plain.csv", NAMES, ROWS[:6])
    more = {"inputs": {"input_ids": "sentence1+sentence2"}, "target": "score"}
    assert evaluate(model, path, **given(file, **more)) == evaluate(model, plain, **given(file))


REFUSED: dict[str, tuple[list[str], list[list[object]], dict[str, Any], str]] = {
    "no number": (["a", "b"], [["the cat", "a dog"]], {}, r"which column is the score of a, b\? \(columns of numbers: "
                  r"none\) -> target='COLUMN'; pairs without a score are columns anchor and positive"),
    "several numbers": (["a", "b", "u", "v"], [["the cat", "a dog", 1, 2]], {}, r"\(columns of numbers: u, v\)"),
    "text as the score": (["a", "b", "label"], [["the cat", "a dog", "yes"]], {"target": "label"},
                          "column 'label' holds text, and the score of a, b is a number for each pair"),
    "no such score": (["a", "b", "u"], [["the cat", "a dog", 1]], {"target": "v"}, "target='v': .* no such column"),
    "a gap": (["a", "b", "u"], [["the cat", "a dog", 1], ["a", "b", ""]], {}, "x.csv, line 3: column 'u' has no value"),
    "one text": (["a", "u"], [["the cat", 0.5], ["a dog", 0.1]], {"target": "u"},
                 "column 'u' holds .*not the number of a class -> .*; a score is of two columns of text"),
    "three texts": (["a", "b", "c", "u"], [["the", "cat", "sat", 1]], {"target": "u"}, "which column of text does"),
    "no texts": (["a", "b", "u"], [["the", "", 1], ["", "cat", 2]], {}, "x.csv, line 2: no text"),
    "one score": (["a", "b", "u"], [["the cat", "a dog", 3], ["the cat", "the cat", 3]], {},
                  "all pairs have one score in column 'u' -> give pairs of two scores"),
    "another loss": (["a", "b", "u"], [["the cat", "a dog", 3]], {"loss": "info_nce"}, "no loss of pairs with a score"),
    "nothing for an input": (["a", "b", "u"], [["the cat", "a dog", 3]], {"model": "more"},
                             "pairs of texts feed input_ids, .*nothing feeds scale -> .*const={'scale': 0}"),
    "one text at a time": (["anchor", "positive"], [["the cat", "a dog"]], {"model": "fixed"},
                           "a pair is two rows of a batch, and the model takes batches of one size"),
}  # fmt: skip


class Scaled(Pooled):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input_ids, attention_mask) * scale[:, None]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, model: Pooled, file: Path, tmp_path: Path) -> None:
    columns, rows, settings, says = REFUSED[name]
    kind = settings.get("model", "")
    net: Any = Scaled(texts.size(file)) if kind == "more" else model
    if kind == "fixed":
        ones = torch.ones(2, 5, dtype=torch.int64)
        torch.onnx.export(model, (ones, ones), tmp_path / "net.onnx", dynamo=False, input_names=["input_ids", "mask"])
        texts.generate(tmp_path / "net.onnx", net := tmp_path / "net.py")
    path = texts.table(tmp_path / "x.csv", columns, rows)
    with pytest.raises(OnnxgenError, match=says) as caught:
        evaluate(net, path, **given(file, **{key: value for key, value in settings.items() if key != "model"}))
    assert "\n" not in str(caught.value) or name == "no texts"  # a line for each sample


# ---- from a file to a run --------------------------------------------------------------------------------------------


@pytest.fixture
def module(model: Pooled, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A generated module with its tokenizer and pairs beside it, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(file.read_bytes())
    words = [text.split() for text in SENTENCES]
    spans = {" ".join(line[a:b]): 0 for line in words for a in range(len(line)) for b in range(a + 2, len(line) + 1)}
    rows = [[one, other, alike(one, other)] for one, other in combinations(spans, 2)]
    texts.table(tmp_path / "x.csv", NAMES, [row for row in rows if row[2]][::6])
    return texts.generated(model, tmp_path / "net.py", ["input_ids", "attention_mask"])


QUIET: dict[str, Any] = {"show": "nothing", "device": "cpu", "workers": 0, "out": "run", "batch_size": 16, "lr": 2e-2}


def test_scores_are_learnt_evaluated_and_predicted(
    module: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = evaluate("net.py", "x.csv", **given(file))["spearman"]
    result = fit("net.py", "x.csv", task="embedding", target="score", epochs=8, val=0.4, **QUIET)
    best = result.history[result.best_epoch]
    assert best["val_spearman"] == max(row["val_spearman"] for row in result.history)
    run = load("run", device="cpu")
    largest = read_record(tmp_path / "run").settings["largest_score"]
    trained = open_data("x.csv", run.model, Settings(**given(file, target="score", val=0.4))).train
    assert isinstance(trained, Tuples) and trained.score == "score"
    scores = trained.column("score")
    assert scores is not None and largest == scores.max().item() > 2
    assert run.evaluate()["spearman"] == pytest.approx(best["val_spearman"], abs=1e-6)
    assert best["val_spearman"] > before + 0.2, before
    texts.table(tmp_path / "low.csv", NAMES, [row for row in ROWS if row[2] < 2])  # and the largest score stays
    low = [row for row in ROWS if row[2] < 2]
    wanted = F.mse_loss(cosines(run.model, file, [row[:2] for row in low]), torch.tensor([r[2] for r in low]) / largest)
    assert run.evaluate("low.csv")["loss"] == pytest.approx(wanted.item(), abs=1e-5)
    pairs, lines = [(SENTENCES[0], SENTENCES[1]), (SENTENCES[2], SENTENCES[3])], [*SENTENCES[:2]]
    texts.table(tmp_path / "own.csv", ["a", "n", "b"], [[one, 1, other] for one, other in pairs])
    texts.table(tmp_path / "same.csv", ["genre", *NAMES[:2]], [["news", *pair] for pair in pairs])
    near = cosines(run.model, file, pairs).detach().numpy()
    for data in ("own.csv", "same.csv", pairs):
        made = [one.answers["cosine"].value for one in run.predict(data)]
        np.testing.assert_allclose(np.concatenate(made), near, atol=1e-5)
    x = (tmp_path / "x.csv").read_text().splitlines()[1:]
    seen = {tuple(x[row_of(trained, i)].split(",")[:2]) for i in range(2 * len(trained))}
    count = sum((one, other) in seen for one, other, _ in low)
    assert run.notes.pop(0).startswith(f"{count} of {len(low)} samples were trained on:") and 0 < count < len(low)
    assert [*dict.fromkeys(run.notes)] == [f"each value is the cosine of the vectors of {names}" for names in
                         ("a and b", "sentence1 and sentence2")]  # fmt: skip
    (tmp_path / "x.txt").write_text("\n".join(lines))
    texts.table(tmp_path / "one.csv", ["genre", "sentence2"], [["news", line] for line in lines])
    for one_text in ("x.txt", "one.csv", lines):
        made = [one.answer.value for one in run.predict(one_text)]
        np.testing.assert_allclose(np.stack(made), vectors(run.model, file, lines).detach(), atol=1e-5)
    with pytest.raises(OnnxgenError, match="is something else -> give a list of texts, or of pairs"):
        run.predict([SENTENCES[0], pairs[0]])
    assert cli(["predict", "run", "own.csv", "--json"]) == 0
    said = capsys.readouterr()
    assert "note: each value is the cosine of the vectors of a and b\n" in said.err
    assert [one["outputs"]["cosine"]["value"] for one in json.loads(said.out)] == pytest.approx(near[:, None], abs=1e-5)
    (entry, *_) = contract(read_record(tmp_path / "run"))["inputs"]
    assert entry["kind"] == "text" and [*entry["columns"]] == ["sentence1"]  # a program feeds one text


def test_a_run_of_triplets(module: Path, file: Path, tmp_path: Path) -> None:
    rows = [[SENTENCES[i % 6], SENTENCES[i % 6], SENTENCES[(i + 1) % 6]] for i in range(18)]
    texts.table(tmp_path / "t.csv", ["anchor", "positive", "negative"], rows)
    result = fit("net.py", "t.csv", task="embedding", epochs=1, val=0.2, **QUIET)
    run = load("run", device="cpu")
    assert run.evaluate()["recall_at_1"] == pytest.approx(result.history[0]["val_recall_at_1"])
    made = np.stack([one.answer.value for one in run.predict("t.csv")])
    np.testing.assert_allclose(made[:, 0], 1, atol=1e-5)
    wanted = cosines(run.model, file, [(row[0], row[2]) for row in rows]).detach()
    np.testing.assert_allclose(made[:, 1], wanted, atol=1e-5)
    fit("net.py", "t.csv", task="embedding", epochs=2, val=0.2, resume=True, **QUIET)


def test_outputs_of_pairs(model: Pooled, file: Path, tmp_path: Path) -> None:
    path = texts.table(tmp_path / "x.csv", NAMES[:2], PAIRS)
    made = predict(model, path, **given(file))
    assert isinstance(made, Tensor) and made.shape == (len(PAIRS), 2, 8)
    for place, lines in enumerate(zip(*PAIRS)):
        torch.testing.assert_close(made[:, place], vectors(model, file, [*lines]).detach(), atol=1e-5, rtol=0)


def test_the_largest_score_may_be_named(model: Pooled, file: Path, tmp_path: Path) -> None:
    path = texts.table(tmp_path / "x.csv", NAMES, ROWS)
    settings = Settings(**given(file, target="score", largest_score=10.0))
    data = open_data(path, model, settings)
    assert data.train is not None
    feeding = feed(data, model, settings)
    (goal,) = objectives_of(model, data.train, feeding, settings)
    batch = data.train.take(range(len(PAIRS)), 0)
    wanted = F.mse_loss(cosines(model, file, PAIRS), torch.tensor([row[2] for row in ROWS]) / 10)
    assert goal.compute((model(*feeding.arguments(batch)),), batch)[0].item() == pytest.approx(wanted.item(), abs=1e-5)
    with pytest.raises(OnnxgenError, match="largest_score must be more than 0"):
        Settings(largest_score=0.0)


def test_the_exported_file_says_how_one_text_is_read(module: Path, file: Path, tmp_path: Path) -> None:
    """A program that reads the file alone makes the vector that `predict` makes."""
    run = shipped(module, tmp_path / "x.csv", tmp_path / "run", task="embedding", loss="cosine", target="score")
    texts.table(tmp_path / "one.csv", NAMES[:1], [[line] for line in SENTENCES])
    found = need_same(run, tmp_path / "one.csv")
    made = vectors(load(run, device="cpu").model, file, [*SENTENCES]).detach()
    np.testing.assert_allclose(np.stack([one["logits"] for one in found]), made, atol=1e-5)
