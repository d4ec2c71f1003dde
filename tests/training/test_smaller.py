"""`--train-size`: images of a training step have another size, and those of validation and prediction their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.training import fit, load
from onnxgen.training.prepare import prepare
from onnxgen.training.settings import Settings
from onnxgen.training.smaller import Smaller
from tests.training.small import network

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (8, 16, 24, 3), np.uint8), RNG.integers(0, 3, 8)
GIVEN = Settings(val=0.25, normalize="none", batch_size=2, workers=0, lr=0.01)


def test_images_are_resized_in_each_order_of_axes() -> None:
    x, label = torch.rand(2, 3, 16, 24), torch.ones(2)
    wanted = F.interpolate(x, (8, 12), mode="bilinear", antialias=True)
    layouts = {"CHW": (x, wanted), "HWC": (x.permute(0, 2, 3, 1), wanted.permute(0, 2, 3, 1)), "HW": (x[:, 0],) * 2}
    for axes, (given, expected) in layouts.items():
        made = Smaller({"x": axes}, (8, 12))({"x": given, "label": label})
        assert made["label"] is label
        torch.testing.assert_close(made["x"], wanted[:, 0] if axes == "HW" else expected)


def test_a_run_trains_small_and_validates_large(tmp_path: Path) -> None:
    """The weights are those of a loop by hand over resized images; the record and predictions are of the whole size."""
    model = network(tmp_path, image=("float32", ("batch", 3, 16, 24)))
    by_hand = network(tmp_path, image=("float32", ("batch", 3, 16, 24)))
    seen: list[tuple[bool, tuple[int, ...], Tensor]] = []
    model.register_forward_pre_hook(lambda m, args: seen.append((m.training, tuple(args[0].shape), args[0].clone())))
    settings = {"optimizer": "sgd", "max_steps": 3, "train_size": "8x12", "out": tmp_path / "run", "show": "nothing"}
    fit(model, (X, Y), settings=GIVEN, **settings)
    trained = [x for training, _, x in seen if training]
    assert [x.shape for x in trained] == [(2, 3, 8, 12)] * 3
    assert {shape[2:] for training, shape, _ in seen if not training} == {(16, 24), (8, 12)}, "(8, 12): the trial"
    whole = torch.from_numpy(X).permute(0, 3, 1, 2).float()
    small = F.interpolate(whole, (8, 12), mode="bilinear", antialias=True)
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.01)
    for x in trained:
        rows = [int((small - image).abs().flatten(1).sum(1).argmin()) for image in x]
        torch.testing.assert_close(x, small[rows])
        optimizer.zero_grad()
        F.cross_entropy(by_hand(small[rows]), torch.from_numpy(Y)[rows]).backward()
        optimizer.step()
    for name, tensor in by_hand.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-5)
    run = load(tmp_path / "run")
    assert run.record.inputs[0].shape == (3, 16, 24)
    (made,) = run.predict(X[:1])
    scores = model.eval()(whole[:1]).softmax(1)[0]
    assert [*made.probabilities.values()] == pytest.approx(scores.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("size", "data", "message"),
    [
        ("8x8", (X, Y), "train_size 8x8 has other proportions than the network's 16x24 -> train_size='8x12'"),
        ("8", (X, Y), "size '8' is not HEIGHTxWIDTH"),
        ("8x12", (X.astype(np.float32).transpose(0, 3, 1, 2), Y), "the data has no images that are fed as such"),
    ],
)
def test_what_can_t_be_is_refused(tmp_path: Path, size: str, data: tuple[object, ...], message: str) -> None:
    model = network(tmp_path, image=("float32", ("batch", 3, 16, 24)))
    with pytest.raises(OnnxgenError, match=message):
        fit(model, data, settings=GIVEN, train_size=size, out=tmp_path / "run", show="nothing")


def test_a_network_that_runs_at_no_other_size_is_refused(tmp_path: Path) -> None:
    model = network(tmp_path, image=("float32", ("batch", 3, 16, 24)))
    model.register_forward_pre_hook(lambda m, args: (args[0].reshape(-1, 3, 16, 24),))
    with pytest.raises(OnnxgenError, match="can't be trained on images of 8x12: .*leave --train-size out"):
        prepare(model, (X[:3], Y[:3]), Settings(val=0, normalize="none", train_size="8x12"))
