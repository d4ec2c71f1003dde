"""Tasks beside classification: their losses and metrics, from training to evaluation, prediction and export."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit, load
from onnxgen.training.endings import Ending
from onnxgen.training.goals.ctc import Layout, Reading
from onnxgen.training.goals.embedding import SCALE, ArcFace, BatchHard, RecallAt1
from onnxgen.training.goals.keypoints import Keypoints, gaussians
from onnxgen.training.goals.outputs import greedy, peaks, spelled
from onnxgen.training.logits import Noting
from onnxgen.training.runs.metrics import best_row
from onnxgen.training.runs.record import read_record

DRAW = torch.Generator().manual_seed(0)
QUIET: dict[str, Any] = {"device": "cpu", "workers": 0, "show": "nothing", "epochs": 1, "batch_size": 8}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=DRAW)


class Sequences(nn.Module):
    """x [n, 6, 4] to scores of 5 classes over 6 steps, as [n, 6, 5] or [6, n, 5]."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.fc, self.first = nn.Linear(4, 5), first

    def forward(self, x: Tensor) -> Tensor:
        made = F.log_softmax(self.fc(x), -1)
        return made if self.first else made.transpose(0, 1)


def module(network: nn.Module, example: Tensor, output: str, folder: Path, batch: int = 0) -> Path:
    """Export a network, and generate its module."""
    torch.manual_seed(0)
    axes = {"x": {0: "batch"}, output: {batch: "batch"}}
    torch.onnx.export(
        network.eval(), (example,), folder / "net.onnx", input_names=["x"], output_names=[output], dynamic_axes=axes,
        opset_version=17, dynamo=False,
    )  # fmt: skip
    generate(folder / "net.onnx", folder / "net.py", force=True)
    return folder / "net.py"


# ---- ctc -------------------------------------------------------------------------------------------------------------


def reading(batch: int = 0, blank: int = 0, kind: str = "", texts: tuple[str, ...] = ()) -> Reading:
    layout = Layout(0, "y", batch, 1 - batch, 2, 6, 5, Ending(kind, 2 if kind else None))
    return Reading(layout, "t", blank, "abcd" if texts else (), texts)


TARGETS = torch.tensor([[1, 2, -1], [3, 3, 4], [2, -1, -1], [-1, -1, -1]])


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("kind", ["", "log_softmax", "softmax"])
def test_the_ctc_loss_is_torchs(batch: int, kind: str) -> None:
    x = draw(4, 6, 5).requires_grad_()
    output = {"": x, "log_softmax": x.log_softmax(2), "softmax": x.softmax(2)}[kind]
    loss = reading(batch, kind=kind).mean_loss((output.transpose(0, batch),), {"t": TARGETS}, True)
    lengths = (TARGETS >= 0).sum(1)
    flat = TARGETS[TARGETS >= 0]
    expected = F.ctc_loss(x.log_softmax(2).transpose(0, 1), flat, torch.full((4,), 6), lengths, 0)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], torch.autograd.grad(expected, x)[0])


def test_a_probability_that_is_rounded_to_0_is_trained() -> None:
    """The loss takes the logits before the softmax, whose logarithm would be that of the smallest number."""
    x = (300 * draw(4, 6, 5)).requires_grad_()
    with Noting():
        output = x.softmax(2)
    assert (output == 0).any()
    loss = reading(kind="softmax").mean_loss((output,), {"t": TARGETS}, True)
    lengths, flat = (TARGETS >= 0).sum(1), TARGETS[TARGETS >= 0]
    expected = F.ctc_loss(x.log_softmax(2).transpose(0, 1), flat, torch.full((4,), 6), lengths, 0)
    torch.testing.assert_close(loss, expected)
    gradient, wanted = torch.autograd.grad(loss, x)[0], torch.autograd.grad(expected, x)[0]
    torch.testing.assert_close(gradient, wanted)
    assert wanted.abs().max() > 0.1


def test_parts_of_a_batch_add_up_and_targets_without_enough_steps_do_not_count() -> None:
    long = torch.tensor([[1, 2, 3, -1], [1, 1, 1, 1], [2, -1, -1, -1]])  # the second needs 7 of 6 steps
    goal, x = reading(), draw(3, 6, 5).requires_grad_()
    whole = {"t": long}
    loss, weight, _ = goal.compute((x,), whole)
    assert int(weight) == 2
    kept = [0, 2]
    torch.testing.assert_close(loss, goal.mean_loss((x[kept],), {"t": long[kept]}, True))
    parts = [({"t": long[i : i + 1]}, x[i : i + 1]) for i in range(3)]
    summed = sum(goal.compute((y,), part)[0] * goal.share(part, whole) for part, y in parts)
    torch.testing.assert_close(loss, summed)
    assert bool(torch.autograd.grad(loss, x)[0].isfinite().all())


def test_texts_are_read_greedily_and_their_errors_counted() -> None:
    assert greedy(torch.tensor([[0, 1, 1, 0, 1, 2], [0, 0, 0, 0, 0, 0]]), 0) == [[1, 1, 2], []]
    assert spelled([1, 1, 2], 0, "ab") == "aab" and spelled([0, 2], 1, "ab") == "ab" and spelled([7, 9], 0, ()) == "7 9"
    for texts in ((), ("ab", "dd", "b", "")):
        goal = reading(texts=texts)
        target = torch.arange(4) if texts else torch.tensor([[1, 2], [4, 4], [2, -1], [-1, -1]])
        best = torch.tensor([[0, 1, 1, 0, 2, 2], [4, 4, 4, 4, 4, 4], [0, 2, 0, 0, 2, 0], [0, 0, 0, 0, 0, 0]])
        scores = goal.scores()
        scores.update((F.one_hot(best, 5).float() * 9,), {"t": target})
        # read: ab, d, bb and nothing: one deletion and one insertion, of five characters
        assert scores.compute(torch.device("cpu")) == {"character_error": pytest.approx(0.4), "exact_match": 0.5}


@pytest.mark.parametrize("first", [True, False])
def test_a_reader_is_trained_evaluated_asked_and_exported(first: bool, tmp_path: Path) -> None:
    x = draw(24, 6, 4).numpy()
    words = np.array(["cab", "ba", "d", "cc"] * 6)
    path = module(Sequences(first), torch.zeros(2, 6, 4), "scores", tmp_path, 0 if first else 1)
    result = fit(path, {"x": x, "y": words}, task="ctc", val=0.25, out=tmp_path / "run", **QUIET)
    assert {"val_loss", "val_character_error", "val_exact_match"} <= result.history[0].keys()
    learner = load(tmp_path / "run", device="cpu")
    assert learner.settings.classes == ("a", "b", "c", "d") and learner.settings.blank == 0
    again = learner.evaluate({"x": x[:20], "y": words[:20]})  # of its own data, it would take the part held back
    logs = learner.model(torch.from_numpy(x))
    logs = logs if first else logs.transpose(0, 1)
    by_hand = ["".join("abcd"[i - 1] for i in torch.unique_consecutive(row).tolist() if i) for row in logs.argmax(2)]
    assert [one.label for one in learner.predict({"x": x})] == by_hand
    assert again["exact_match"] == pytest.approx(np.mean((np.array(by_hand) == words)[:20]))
    assert run(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out.onnx"), "-q"]) == 0
    (made,) = onnxruntime.InferenceSession(tmp_path / "out.onnx").run(None, {"x": x})
    np.testing.assert_allclose(made if first else made.swapaxes(0, 1), logs.detach().numpy(), atol=1e-5)


IDS = {"last": [[0, 1], [2, 3]], "first": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    "target, more, says",
    [
        ([[1, 2], [3, 1]], {}, "which class is the blank.*either may be the blank.*blank=0 or blank=4"),
        ([[0, 2], [3, 4]], {}, "both are used, so neither is"),
        ([[1, 2], [0, 4]], {"blank": 0}, r"column 'y' has \[0, 4\] in sample 1.*without the blank"),
        ([[1, 2], [-1, 4]], {}, r"\[-1, 4\] in sample 1"),
        ([[1, 9], [2, 3]], {}, "the targets have class 9, but the output the classes 0 to 4"),
        ([[1] * 5, [2, 3, -1, -1, -1]], {"blank": 0, "strict": True}, "1 of 2 targets need more than .* 6 steps"),
        ([[1] * 5, [2] * 5], {"blank": 0}, "2 of 2 targets need more"),
        ([[0.5], [1.0]], {}, "holds torch.float32"),
        ([3, 4], {}, "single numbers"),
        (["abc", "xyz"], {}, "6 characters, but the output 4 .*replace_head=7"),
        ([[1, 2], [3, 4]], {"classes": ("a", "b")}, "2 names, but the output has 4 beside the blank"),
        ([[1, 2], [3, 4]], {"loss": "mse"}, "loss does not go with task=.ctc. -> leave out loss"),
        ([[1, 2], [3, 4]], {"blank": 5}, "blank=5: the output has the classes 0 to 4"),
    ],
)
def test_what_a_reader_refuses(target: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(OnnxgenError, match=says):
        evaluate(Sequences(True), {"x": draw(2, 6, 4), "y": np.array(target)}, task="ctc", device="cpu", **more)


@pytest.mark.parametrize("ids, blank", [(IDS["last"], 4), (IDS["first"], 0)])
def test_the_blank_is_the_class_that_no_target_has(ids: list[list[int]], blank: int) -> None:
    network, x = Sequences(True), draw(2, 6, 4)
    found = evaluate(network, {"x": x, "y": np.array(ids)}, task="ctc", device="cpu")
    logs = network(x).transpose(0, 1)
    expected = F.ctc_loss(logs, torch.tensor(ids), torch.full((2,), 6), torch.full((2,), 2), blank)
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)


# ---- embedding -------------------------------------------------------------------------------------------------------


def test_arcface_is_the_published_formula() -> None:
    torch.manual_seed(0)  # its centres are drawn
    labels = torch.tensor([3, 5, 9])
    goal, x = ArcFace(0, "y", labels, 4), draw(6, 4)
    y = torch.tensor([3, 9, 5, 9, 7, 3])  # there is no 7
    loss, weight, _ = goal.compute((x,), {"y": y})
    total = 0.0
    for vector, label in zip(x, y):
        if label == 7:
            continue
        own = int((labels == label).nonzero())
        angles = [math.acos(F.cosine_similarity(vector, centre, 0).item()) for centre in goal.centres]
        assert angles[own] + 0.5 < math.pi
        logits = [SCALE * math.cos(angle + 0.5 * (i == own)) for i, angle in enumerate(angles)]
        total += math.log(sum(math.exp(z - logits[own]) for z in logits))
    assert int(weight) == 5 and loss.item() == pytest.approx(total / 5, rel=1e-4)


def test_batch_hard_is_the_published_formula() -> None:
    x, y = draw(6, 3), torch.tensor([0, 0, 1, 1, 1, 2])  # the last one has no other of its class
    loss, weight, _ = BatchHard(0, "y").compute((x,), {"y": y})
    distance = [[(a - b).square().sum().sqrt().item() for b in x] for a in x]
    each = []
    for a in range(5):
        far = max(distance[a][i] for i in range(6) if y[i] == y[a] and i != a)
        near = min(distance[a][i] for i in range(6) if y[i] != y[a])
        each.append(math.log1p(math.exp(far - near)))
    assert int(weight) == 5 and loss.item() == pytest.approx(sum(each) / 5, rel=1e-5)


def test_recall_is_that_of_scikit_learns_neighbours() -> None:
    from sklearn.neighbors import NearestNeighbors

    x, y = draw(60, 5), torch.arange(60) % 7
    y[0] = 99  # no other has it
    metric = RecallAt1()
    for part in (slice(0, 25), slice(25, 60)):
        metric.update(x[part], y[part])
    near = NearestNeighbors(n_neighbors=2, metric="cosine").fit(x).kneighbors(x, return_distance=False)[:, 1]
    found = metric.compute()
    assert found["recall_at_1"].item() == pytest.approx((y[near] == y)[1:].float().mean().item())
    assert found["recall_at_1_samples"] == 59
    alone = RecallAt1()
    alone.update(x[:5], torch.arange(5))
    assert alone.compute()["recall_at_1"].isnan() and alone.compute()["recall_at_1_samples"] == 0


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("embedding")
    x, names = draw(48, 6), np.array(["one", "two", "three"] * 16)
    path = module(nn.Sequential(nn.Linear(6, 4)), torch.zeros(2, 6), "vector", folder)
    return path, {"x": x.numpy(), "y": names}


def test_centres_are_trained_kept_for_evaluations_and_resumed(
    digits: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path, data = digits
    given: dict[str, Any] = {"task": "embedding", "val": 0.25, "lr": 0.05, **QUIET}
    whole = fit(path, data, out=tmp_path / "whole", **given | {"epochs": 3})
    fit(path, data, out=tmp_path / "run", **given | {"epochs": 2})
    begun = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=False)["state_dict"]["goals.0.centres"]
    resumed = fit(path, data, out=tmp_path / "run", resume=True, **given | {"epochs": 3})
    ended = [
        torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=False)["state_dict"]["goals.0.centres"]
        for name in ("whole", "run")
    ]
    assert torch.equal(*ended) and not torch.equal(begun, ended[0])
    assert [r["val_loss"] for r in resumed.history] == [r["val_loss"] for r in whole.history]
    assert "goals.0.centres" not in load_file(tmp_path / "run/best.safetensors")
    learner = load(tmp_path / "run", device="cpu")
    held = learner.evaluate(data)
    before = dict(read_record(tmp_path / "run").result["before"])  # the model that was opened may be the best one
    best = best_row([before, *resumed.history], "val_recall_at_1")
    assert best is not None and held["loss"] == pytest.approx(best["val_loss"], rel=1e-5)
    assert held["recall_at_1"] == pytest.approx(best["val_recall_at_1"])
    new = {"x": data["x"], "y": np.array(["one", "zebra", "ape"] * 16)}  # classes that were never trained
    assert 0 <= learner.evaluate(new)["recall_at_1"] <= 1
    with pytest.raises(OnnxgenError, match="evaluate the folder of the run"):
        evaluate(path, data, task="embedding", device="cpu")
    assert evaluate(path, data, task="embedding", loss="triplet", device="cpu")["loss"] > 0


# ---- keypoints -------------------------------------------------------------------------------------------------------


def test_keypoints_that_are_not_visible_do_not_count() -> None:
    target = torch.tensor([[[0.5, 0.5, 1], [0.1, 0.1, 0]], [[0.0, 1.0, 2], [0.25, 0.5, 1]]])
    made = torch.tensor([[0.5, 0.6, 9, 9], [0.3, 1.0, 0.25, 0.5]])
    goal = Keypoints(0, "y", "t", (4,), (40.0, 30.0))
    # in mean over x and y, and over all four keypoints: 0.1 / 2 and 0.3 / 2
    assert goal.mean_loss((made,), {"t": target}, True).item() == pytest.approx((0.05 + 0.15) / 4)
    scores = goal.scores()
    scores.update((made,), {"t": target})
    # 0.1 of 30 is 3 pixels, 0.3 of 40 is 12, and the diagonal is 50
    expected = {"keypoint_error": pytest.approx((3 / 50 + 12 / 50 + 0) / 3), "pck": pytest.approx(1 / 3)}
    assert scores.compute(torch.device("cpu")) == expected
    pixels = Keypoints(0, "y", "t", (4,), (40.0, 30.0), pixels=(40.0, 30.0))
    larger = target * torch.tensor([40, 30, 1])
    loss = pixels.mean_loss((made * torch.tensor([40, 30, 40, 30]),), {"t": larger}, True)
    assert loss.item() == pytest.approx((0.05 + 0.15) / 4)


def test_the_third_number_says_whether_a_keypoint_is_visible() -> None:
    target, made = torch.tensor([[[0.5, 0.5, 1], [0.1, 0.1, 0]]]), draw(1, 2, 3)
    loss = Keypoints(0, "y", "t", (2, 3), (1.0, 1.0), "mse").mean_loss((made,), {"t": target}, True)
    place = (made[0, 0, :2] - 0.5).square().mean()
    sure = -(F.logsigmoid(made[0, 0, 2]) + F.logsigmoid(-made[0, 1, 2]))
    torch.testing.assert_close(loss, (place + sure) / 2)


def test_heatmaps_are_gaussians_whose_peaks_are_the_places() -> None:
    places = torch.tensor([[[0.25, 0.75], [0.61, 0.32]]])
    maps = gaussians(places, 64, 48)
    y, x = 20, 30  # of the second: 2 pixels is the deviation, as in the paper for 64x48
    expected = math.exp(-((x + 0.5 - 0.61 * 48) ** 2 + (y + 0.5 - 0.32 * 64) ** 2) / (2 * 2**2))
    assert maps.shape == (1, 2, 64, 48) and maps[0, 1, y, x].item() == pytest.approx(expected, rel=1e-4)
    found = peaks(maps)[..., :2]
    assert float(((found - places).abs() * torch.tensor([48, 64])).max()) <= 0.3  # pixels
    goal = Keypoints(0, "y", "t", (2, 64, 48), (48.0, 64.0), "mse")
    target = torch.cat([places, torch.tensor([[[1.0], [0.0]]])], 2)
    loss = goal.mean_loss((torch.zeros(1, 2, 64, 48),), {"t": target}, True)
    torch.testing.assert_close(loss, maps[0, 0].square().mean() / 2)


class Corners(nn.Module):
    """An image [n, 1, 16, 12] to heatmaps of two keypoints, [n, 2, 16, 12]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)  # type: ignore[no-any-return]


def test_pixels_are_those_of_the_stored_image(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, shares = random.integers(0, 256, (16, 32, 36), dtype=np.uint8), random.random((16, 2, 2), np.float32)
    path = module(Corners(), torch.zeros(2, 1, 16, 12), "maps", tmp_path)
    results = []
    for name, places in (("shares", shares), ("pixels", shares * np.array([36, 32], np.float32))):
        data = {"x": x, "keypoints": places}
        results.append(fit(path, data, task="keypoints", val=0.25, out=tmp_path / name, **QUIET).history[0])
    assert results[0] == pytest.approx({**results[1], "seconds": results[0]["seconds"]}, rel=1e-5)
    assert "places in keypoints are pixels of an image of 36x32;" in (tmp_path / "pixels/report.html").read_text()
    with pytest.raises(OnnxgenError, match="nor pixels of an image 36x32"):
        fit(path, {"x": x, "keypoints": shares * 100}, task="keypoints", out=tmp_path / "other", **QUIET)


def test_keypoints_are_trained_evaluated_asked_and_exported(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (16, 16, 12), dtype=np.uint8)
    data = {"x": x, "keypoints": random.random((16, 2, 2), np.float32)}
    path = module(Corners(), torch.zeros(2, 1, 16, 12), "maps", tmp_path)
    result = fit(path, data, task="keypoints", val=0.25, out=tmp_path / "run", **QUIET)
    learner = load(tmp_path / "run", device="cpu")
    held = learner.evaluate(data)
    before = read_record(tmp_path / "run").result["before"]  # the model that was opened may be the best one
    best = min(result.history[0]["val_keypoint_error"], before["val_keypoint_error"])
    assert held["keypoint_error"] == pytest.approx(best)
    first, *_ = learner.predict({"x": x})
    assert first.answer.value.shape == (2, 3) and 0 <= first.answer.value[..., :2].min() <= 1
    assert run(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out.onnx"), "-q"]) == 0
    with pytest.raises(OnnxgenError, match="augment flip moves the image, but not its keypoints"):
        fit(path, data, task="keypoints", augment="flip,light", out=tmp_path / "other", **QUIET)
    data["keypoints"] = data["keypoints"] * 500
    with pytest.raises(OnnxgenError, match="neither shares of width and height, nor pixels of an image 12x16"):
        fit(path, data, task="keypoints", out=tmp_path / "other", **QUIET)
