"""The decoder and the loss: by hand, by torch, and by what training does to it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from onnxgen.errors import OnnxgenError
from onnxgen.record.tail import Tail, tail_of
from onnxgen.training.goals.detection.boxes import Decoder
from onnxgen.training.goals.detection.loss import DetectionLoss, class_loss, distribution_loss
from tests.training.detection import heads

HEADS = (heads.distances, heads.yolov5, heads.priors)
TARGETS = torch.tensor([[[1, 0.1, 0.2, 0.6, 0.7], [0, 0.5, 0.5, 1.0, 0.9]], [[1, 0.0, 0.0, 0.4, 0.4], [-1] * 5]])


def test_a_record_is_read_again() -> None:
    for make in HEADS:
        assert tail_of(json.loads(json.dumps(make().record()))) == make()


def test_zeros_decode_to_the_points_themselves() -> None:
    zeros = [m.detach() * 0 for m in heads.maps(heads.yolov5())]
    found = Decoder(heads.yolov5())(zeros)
    assert found.boxes[0, :2].tolist() == [[1, 0, 7, 8], [-4, -2, 12, 10]]  # anchors of 6 x 8 and 16 x 12 around (4, 4)
    assert found.centres[:4].tolist() == [[4, 4], [4, 4], [12, 4], [12, 4]] and found.scores.eq(0.25).all()
    zeros = [m.detach() * 0 for m in heads.maps(heads.distances(bins=4))]
    found = Decoder(heads.distances(bins=4))(zeros)  # the expectation of 0, 1, 2, 3 is 1.5 strides
    assert found.boxes[0, 0].tolist() == [4 - 12, 4 - 12, 4 + 12, 4 + 12] and found.size == (32, 32)
    assert found.boxes[0, 16].tolist() == [8 - 24, 8 - 24, 8 + 24, 8 + 24]  # the first of the second level


def test_the_logits_of_a_softmax_have_its_probabilities() -> None:
    maps = heads.maps(heads.priors())
    wanted = maps[1].unflatten(1, (2, 3)).softmax(2)[:, :, 1:].permute(0, 3, 4, 1, 2).reshape(2, -1, 2)
    assert torch.allclose(Decoder(heads.priors())(maps).scores, wanted, atol=1e-6)


def test_another_size_of_the_image_is_decoded() -> None:
    tail = heads.distances()
    maps = [torch.zeros(1, m.shape[1], m.shape[2] * 2, m.shape[3] * 3) for m in heads.maps(tail)]
    found = Decoder(tail)(maps)
    assert found.size == (96, 64) and found.centres.amax(0).tolist() == [92, 60]


def test_maps_of_another_network_are_refused() -> None:
    with pytest.raises(OnnxgenError, match="4 raw maps, but the network has 1 outputs"):
        Decoder(heads.distances())([torch.zeros(1, 4, 4, 4)])
    with pytest.raises(OnnxgenError, match=r"is \[1, 4, 4, 4\], not \[batch, 16, height, width\]"):
        Decoder(heads.yolov5())([torch.zeros(1, 4, 4, 4)])


def test_the_focal_loss_by_hand() -> None:
    """-alpha (1 - p) ** 2 log(p) of a positive with p = 0.8, and -(1 - alpha) p ** 2 log(1 - p) of a negative."""
    logits = torch.logit(torch.tensor([0.8, 0.3], dtype=torch.float64))
    wanted = -0.25 * 0.2**2 * torch.tensor(0.8).log() - 0.75 * 0.3**2 * torch.tensor(0.7).log()
    assert class_loss(logits, torch.tensor([1.0, 0.0]).double(), True).item() == pytest.approx(wanted.item())


def test_the_loss_of_bins_by_torch() -> None:
    """A distance of 1.25 is the mean of the cross entropies to bins 1 and 2, with weights of 0.75 and 0.25."""
    bins = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    flat = bins.flatten(0, 1)
    near, far = (F.cross_entropy(flat, torch.full((8,), b), reduction="none").reshape(2, 4) for b in (1, 2))
    wanted = (0.75 * near + 0.25 * far).mean(1)
    assert torch.allclose(distribution_loss(bins, torch.full((2, 4), 1.25)), wanted)
    assert distribution_loss(bins, torch.full((2, 4), 99.0)).isfinite().all()


@pytest.mark.parametrize("make", HEADS)
@pytest.mark.parametrize("focal", [False, True])
def test_a_few_steps_learn_the_targets(make: Callable[[], Tail], focal: bool) -> None:
    """Raw maps that are trained themselves decode to the targets, and the scores of other points fall."""
    torch.manual_seed(0)
    tail = make()
    maps, loss = heads.maps(tail), DetectionLoss(Decoder(tail), focal=focal)
    optimizer = torch.optim.Adam(maps, 0.1)
    first = loss.loss(maps, {"boxes": TARGETS}).item()
    for _ in range(120):
        optimizer.zero_grad()
        value = loss.loss(maps, {"boxes": TARGETS})
        value.backward()
        optimizer.step()
    assert value.item() < 0.6 * first  # soft targets leave an entropy
    found = loss.decoder(maps)
    for image, box in ((0, 0), (0, 1), (1, 0)):
        scores = found.scores[image, :, int(TARGETS[image, box, 0])]
        near = found.boxes[image] - TARGETS[image, box, 1:] * 32
        best = near.abs().amax(1).argmin()
        assert near[best].abs().max() < 1.5 and scores[best] > 0.4


@pytest.mark.parametrize("make", HEADS)
def test_parts_of_a_batch_add_up(make: Callable[[], Tail]) -> None:
    maps, loss = heads.maps(make()), DetectionLoss(Decoder(make()))
    whole = loss.loss(maps, {"boxes": TARGETS})
    assert loss.count({"boxes": TARGETS}) == 5  # three boxes and two images
    parts = [{"boxes": TARGETS[i : i + 1]} for i in range(2)]
    summed = sum(loss.loss([m[i : i + 1] for m in maps], p) * loss.count(p) / 5 for i, p in enumerate(parts))
    assert torch.allclose(whole, torch.as_tensor(summed), rtol=1e-5)


@pytest.mark.parametrize("make", HEADS)
@pytest.mark.parametrize("most", [0, 2])
def test_images_without_a_box_teach_the_background(make: Callable[[], Tail], most: int) -> None:
    maps, loss = heads.maps(make()), DetectionLoss(Decoder(make()))
    value = loss.loss(maps, {"boxes": torch.full((2, most, 5), -1.0)})
    value.backward()
    assert value.isfinite() and value > 0
    assert any(m.grad is not None and m.grad.any() for m in maps)
