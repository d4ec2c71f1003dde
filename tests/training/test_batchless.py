"""Networks that take one sample compute what a loop by hand does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image as Picture
from torch import Tensor, nn

import onnxgen
from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.training import Settings, evaluate, fit, load, open_model, predict
from onnxgen.training.data import open_data
from tests.training.shipping import need_same, shipped

QUIET: dict[str, Any] = {"epochs": 1, "show": "nothing", "workers": 0, "device": "cpu", "loggers": "none"}
WAY = "export it again with a batch axis in front"


class Features(nn.Module):
    """[3] to [2]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Pooled(nn.Module):
    """Frames [16, 80] to [2]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(80, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(0))


class Image(nn.Module):
    """[3, 8, 8] to [1, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x[None]).mean((2, 3)))


class Mixed(nn.Module):
    """Frames [16, 8] to [16, 2], each with what the others are."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((x @ x.t()).softmax(1) @ x)


class Alone(Features):
    """[16, 3] to [16, 2], a row for each."""


class Whole(Features):
    """[n, 3] to one number."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).mean()


def generated(network: nn.Module, folder: Path, shape: tuple[int, ...], free: str = "") -> Path:
    torch.manual_seed(0)
    torch.onnx.export(
        network.eval(), (torch.zeros(shape),), folder / "net.onnx", input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: free}} if free else None, opset_version=17, dynamo=False,
    )  # fmt: skip
    torch.save(network.state_dict(), folder / "own.pt")
    onnxgen.generate(folder / "net.onnx", folder / "net.py")
    return folder / "net.py"


def data(folder: Path, *shape: int, classes: int = 2) -> Path:
    """48 samples of a shape, each with a class."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(48, *shape)).astype(np.float32), rng.integers(0, classes, 48)
    np.savez(folder / "data.npz", x=x, y=y)
    return folder / "data.npz"


class Fixed(Features):
    """[1, 3] to [1, 2], by a reshape that fixes the batch at 1."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.reshape(1, 3))


@pytest.mark.parametrize(
    ("network", "shape", "free"),
    [
        (Features, (3,), ""),
        (Fixed, (1, 3), ""),
        (Pooled, (16, 80), ""),
        (Pooled, (16, 80), "time"),
        (Image, (3, 8, 8), ""),
        (Mixed, (16, 8), ""),
    ],
)
def test_each_sample_is_run_by_itself(
    network: type[nn.Module], shape: tuple[int, ...], free: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fit`, `evaluate`, `predict` and `export` are as a loop over the samples by hand, and as onnxruntime."""
    file, samples = generated(network(), tmp_path, shape, free), data(tmp_path, *shape[shape[0] == 1 :])
    x, y = (torch.from_numpy(np.load(samples)[name]) for name in "xy")
    if network is Mixed:  # a class for each frame
        y = torch.from_numpy(np.random.default_rng(1).integers(0, 2, (48, 16)))
        np.savez(samples, x=x.numpy(), y=y.numpy())
    given = {**QUIET, "val": 0.0, "lr": 0.1, "optimizer": "sgd", "batch_size": 8, "accumulate": 6, "max_steps": 1}
    given["show"] = "lines"
    trained = fit(file, samples, out=tmp_path / "run", **given)  # one step with all of the samples
    said = capsys.readouterr().out
    assert "the network takes one sample" in said and ("dynamic" in said) == (network is Fixed)
    own = network()
    own.load_state_dict(torch.load(tmp_path / "own.pt"))
    loss = torch.stack([entropy(own(row), label) for row, label in zip(x, y)]).mean()
    loss.backward()
    assert trained.history[-1]["train_loss"] == pytest.approx(loss.item(), abs=1e-6)

    assert cli(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out.onnx")]) == 0
    before, after = (onnxruntime.InferenceSession(tmp_path / name) for name in ("net.onnx", "out.onnx"))
    assert [i.shape for i in before.get_inputs()] == [i.shape for i in after.get_inputs()]
    rows = [after.run(None, {"x": row.reshape(shape).numpy()})[0] for row in x]
    with torch.no_grad():
        for parameter in own.parameters():
            parameter -= 0.1 * parameter.grad
        np.testing.assert_allclose(rows, [own(row.reshape(shape)).numpy() for row in x], rtol=0, atol=1e-6)
    made = predict(tmp_path / "run", samples, device="cpu", workers=0)
    np.testing.assert_allclose(made, np.reshape(rows, made.shape), rtol=1e-5, atol=1e-6)
    told = evaluate(tmp_path / "run", samples, device="cpu", workers=0)
    scores = torch.from_numpy(np.reshape(rows, (y.numel(), -1)))
    assert told["loss"] == pytest.approx(float(nn.functional.cross_entropy(scores, y.flatten())), abs=1e-6)
    assert told["accuracy"] == pytest.approx(float((scores.argmax(1) == y.flatten()).double().mean()), abs=1e-6)


def entropy(made: Tensor, label: Tensor) -> Tensor:
    """Return the loss of one sample, or the mean of its frames."""
    return nn.functional.cross_entropy(made.reshape(label.numel(), -1), label.reshape(-1))


@pytest.mark.parametrize(
    ("network", "shape", "free"),
    [(Pooled, (16, 80), ""), (Pooled, (16, 80), "time"), (Pooled, (16, 80), "batch"), (Whole, (4, 3), "n")],
)
@pytest.mark.parametrize("loss", ["auto", "mse"])
def test_rows_are_no_samples_of_a_network_that_joins_them(
    network: type[nn.Module], shape: tuple[int, ...], free: str, loss: str, tmp_path: Path
) -> None:
    """Two rows would make two numbers, as two samples with a number each do."""
    file, samples = generated(network(), tmp_path, shape, free), data(tmp_path, *shape[1:])
    with np.load(samples) as found:
        np.savez(samples, x=found["x"], y=found["y"] if loss == "auto" else found["y"].astype(np.float32))
    with pytest.raises(OnnxgenError, match="first axis of input 'x' .* is no batch -> " + WAY):
        fit(file, samples, out=tmp_path / "run", batch_size=16, loss=loss, **QUIET)
    with pytest.raises(OnnxgenError, match="takes one sample|no batch"):
        predict(file, samples, device="cpu", workers=0, batch_size=16)


def test_a_fixed_first_axis_of_rows_that_are_apart_is_a_batch(tmp_path: Path) -> None:
    file, samples = generated(Alone(), tmp_path, (16, 3)), data(tmp_path, 3)
    found = predict(file, samples, device="cpu", workers=0, batch_size=16)
    session, x = onnxruntime.InferenceSession(tmp_path / "net.onnx"), np.load(samples)["x"]
    by_hand = [session.run(None, {"x": np.repeat(row[None], 16, 0)})[0][0] for row in x]  # each row alone
    np.testing.assert_allclose(found, by_hand, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("network", "told"), [(Mixed, True), (Alone, False)])
def test_rows_that_see_each_other_are_told(
    network: type[nn.Module], told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = 8 if told else 3
    file, samples = generated(network(), tmp_path, (16, columns)), data(tmp_path, columns)
    fit(file, samples, out=tmp_path / "run", batch_size=16, **{**QUIET, "show": "lines"})
    said = capsys.readouterr().out
    assert (
        "depends on the others of its batch: is the first axis of input 'x' [16, 8] one of samples?" in said
    ) == told


class Normed(nn.Module):
    """[3, 8, 8] to [2], with a norm that has statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x[None])).relu().mean((2, 3)))[0]


def test_norms_over_a_single_sample_keep_their_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = Normed()
    network.norm.running_mean.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    generated(network, tmp_path, (3, 8, 8))
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "normed.py", Options(restore_batchnorm=True))
    samples = data(tmp_path, 3, 8, 8)
    given = {**QUIET, "show": "lines", "max_steps": 1, "val": 0.0, "optimizer": "sgd", "lr": 0.1, "batch_size": 48}
    trained = fit(tmp_path / "normed.py", samples, out=tmp_path / "run", **given)
    said = capsys.readouterr().out
    assert "the network takes one sample: each of a batch is run by itself, and their gradients add up" in said
    assert "--dynamic-batch" not in said, "there is no batch"
    assert "1 BatchNorm (bn) use the statistics that they have" in said and "measured on 48 samples" in said
    x, y = (torch.from_numpy(np.load(samples)[name]) for name in "xy")
    with torch.no_grad():
        wide = network.conv(x)
    norm = next(module for module in trained.model.modules() if isinstance(module, nn.BatchNorm2d))
    torch.testing.assert_close(norm.running_var, wide.transpose(0, 1).flatten(1).var(1), rtol=1e-4, atol=1e-5)
    before = torch.stack([network(row) for row in x])
    assert trained.history[0]["train_loss"] == pytest.approx(nn.functional.cross_entropy(before, y).item(), abs=1e-5)


def test_pictures_are_fed_one_by_one(tmp_path: Path) -> None:
    """A folder of pictures of two sizes, another number of classes, and the program that reads the ONNX file alone."""
    rng, folder = np.random.default_rng(0), tmp_path / "photos"
    for n in range(24):
        (folder / "abc"[n % 3]).mkdir(parents=True, exist_ok=True)
        Picture.fromarray(rng.integers(0, 256, (8 + n % 2, 9, 3), np.uint8)).save(folder / "abc"[n % 3] / f"{n}.png")
    file = generated(Normed(), tmp_path, (3, 8, 8))
    run = shipped(file, folder, tmp_path / "run", replace_head=3, batch_size=8)
    for picture in sorted(folder.rglob("*.png"))[:3]:
        need_same(run, picture)
    session = onnxruntime.InferenceSession(run / "tuned.onnx")
    assert (session.get_inputs()[0].shape, session.get_outputs()[0].shape) == ([3, 8, 8], [3])


def test_a_size_is_chosen_without_a_batch(tmp_path: Path) -> None:
    for n, side in enumerate((9, 12, 12)):
        (tmp_path / "photos" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(n).integers(0, 256, (side, 8, 3), np.uint8)
        Picture.fromarray(pixels).save(tmp_path / "photos" / "ab"[n % 2] / f"{n}.png")
    torch.manual_seed(0)
    axes = {"x": {1: "height"}}
    network, names = Image().eval(), {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes}
    torch.onnx.export(network, (torch.zeros(3, 8, 8),), tmp_path / "net.onnx", dynamo=False, **names)
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py")
    model = open_model(tmp_path / "net.py")
    assert open_data(tmp_path / "photos", model, Settings(val=0)).size == "12x8"


class Steps(nn.Module):
    """Lines [1, 1, 8, w] to scores [w / 2, 1, 40]: the batch is the second axis, as recurrent layers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, (8, 2), stride=(8, 2))
        self.fc = nn.Linear(16, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().squeeze(2).permute(2, 0, 1))


def steps(folder: Path) -> tuple[nn.Module, Path]:
    """Return the network, and its module."""
    torch.manual_seed(0)
    own, names = Steps().eval(), {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {3: "width"}}}
    torch.onnx.export(own, (torch.zeros(1, 1, 8, 32),), folder / "net.onnx", dynamo=False, **names)
    onnxgen.generate(folder / "net.onnx", folder / "net.py")
    return own, folder / "net.py"


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    """The task is found, and the loss is that of torch over the scores of all lines."""
    own, _ = steps(tmp_path)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 1, 8, 24)).astype(np.float32))
    words = ["ab", "c", "abcd", "dd"]
    data = {"x": x.numpy(), "text": np.array(words, dtype=object)}
    model = open_model(tmp_path / "net.py")
    found = evaluate(model, data, device="cpu", workers=0)
    logs = torch.cat([own(row[None]) for row in x], 1).log_softmax(2)
    flat, lengths = (
        torch.tensor([" abcd".index(c) for word in words for c in word]),
        torch.tensor(list(map(len, words))),
    )
    each = nn.functional.ctc_loss(logs, flat, torch.full((4,), 12), lengths, 0, "none")
    assert found["loss"] == pytest.approx((each / lengths).mean().item(), rel=1e-5)
    made = predict(model, data, device="cpu", workers=0)
    assert isinstance(made, Tensor)
    torch.testing.assert_close(made, torch.cat([own(row[None]) for row in x], 1).detach())


def test_numbers_beside_a_sample(tmp_path: Path) -> None:
    """A recurrent state of its own shape and a rate, which all samples share, are no batch."""
    torch.manual_seed(0)
    network = Recurrent().eval()
    example = torch.zeros(1, 5), torch.zeros(2, 1, 4), torch.tensor(1.0)
    names = {"input_names": ["x", "state", "rate"], "output_names": ["y", "next"]}
    torch.onnx.export(network, example, tmp_path / "net.onnx", opset_version=17, dynamo=False, **names)
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py")
    rng = np.random.default_rng(0)
    x, state = rng.normal(size=(24, 5)).astype(np.float32), rng.normal(size=(24, 2, 1, 4)).astype(np.float32)
    y = rng.normal(size=(24, 2)).astype(np.float32)
    session, given = onnxruntime.InferenceSession(tmp_path / "net.onnx"), {**QUIET, "val": 0.0, "max_steps": 1}
    for const, states in (({"rate": 2.0, "state": 0.5}, np.full_like(state, 0.5)), ({"rate": 2.0}, state)):
        columns = {"x": x, "y": y} if "state" in const else {"x": x, "state": state, "y": y}
        found = predict(tmp_path / "net.py", columns, const=const, device="cpu", workers=0, batch_size=7)
        feeds = ({"x": a[None], "state": b, "rate": np.array(2, np.float32)} for a, b in zip(x, states))
        wanted = np.concatenate([session.run(["y"], feed)[0] for feed in feeds])
        np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-6)
        told = fit(tmp_path / "net.py", columns, const=const, out=tmp_path / str(len(const)), batch_size=24, **given)
        assert told.history[0]["train_loss"] == pytest.approx(float(((wanted - y) ** 2).mean()), abs=1e-6)


class Recurrent(nn.Module):
    """x [1, 5], a state [2, 1, 4] and a number to y [1, 2] and the next state."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.next = nn.Linear(9, 2), nn.Linear(9, 4)

    def forward(self, x: Tensor, state: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat((x.reshape(1, 5) * rate, state[1].reshape(1, 4)), 1)
        return self.fc(both), torch.stack((state[1], self.next(both)))


@pytest.mark.parametrize("head", [None, 5])
def test_a_run_reads_lines_one_by_one(head: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with another number of classes, after which nothing but the task says that it reads."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 1, 8, 24)).astype(np.float32))
    data = {"x": x.numpy(), "text": np.array(["ab", "c", "abcd", "dd"], dtype=object)}
    file, given = steps(tmp_path)[1], {"task": "ctc", "lr": 0.1, "max_steps": 40, "show": "lines"}
    run = shipped(file, data, tmp_path / "run", replace_head=head, **given)
    assert f"free the batch of the file: onnxgen net.onnx -o {file} --dynamic-batch)\n" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(run / "tuned.onnx")
    logits = [session.run(None, {"x": line[None].numpy()})[0][:, 0] for line in x]
    found = load(run, device="cpu")
    learned = torch.from_numpy(np.stack(logits, 1))
    torch.testing.assert_close(predict(run, {"x": x.numpy()}, device="cpu", workers=0), learned, atol=1e-4, rtol=1e-4)
    best = [torch.unique_consecutive(torch.from_numpy(line.argmax(1))).tolist() for line in logits]
    read = ["".join("_abcd"[i] for i in line if 0 < i < 5) for line in best]
    assert [one.label for one in found.predict({"x": x.numpy()})] == read and any(read)
    right = np.mean([a == b for a, b in zip(read, data["text"])])
    assert found.evaluate(data, part="train")["exact_match"] == pytest.approx(right)
