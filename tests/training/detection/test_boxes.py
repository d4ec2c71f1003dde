"""Boxes: conversions, overlaps by hand-computed numbers, and suppression compared with onnxruntime's."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from onnxgen.training.goals.detection.boxes import overlap, suppress, to_centres, to_corners


def test_corners_and_centres() -> None:
    corners = torch.tensor([[2.0, 4.0, 8.0, 6.0]])
    assert to_centres(corners).tolist() == [[5, 5, 6, 2]]
    assert torch.equal(to_corners(to_centres(corners)), corners)


def test_overlaps_by_hand() -> None:
    """4 x 2 and 2 x 4 share 2 x 2: the union is 12, the enclosing box 4 x 4, the centres are (1, 1) apart."""
    first, second = torch.tensor([0.0, 0.0, 4.0, 2.0]), torch.tensor([0.0, 0.0, 2.0, 4.0])
    assert overlap(first, second).item() == pytest.approx(4 / 12)
    assert overlap(first, second, "giou").item() == pytest.approx(4 / 12 - 4 / 16)
    ratio = 4 / math.pi**2 * (math.atan(2) - math.atan(0.5)) ** 2
    wanted = 4 / 12 - 2 / 32 - ratio**2 / (1 - 4 / 12 + ratio)
    assert overlap(first, second, "ciou").item() == pytest.approx(wanted, abs=1e-6)


def test_overlaps_of_equal_and_distant_boxes() -> None:
    box, far = torch.tensor([1.0, 1.0, 3.0, 3.0]), torch.tensor([5.0, 1.0, 7.0, 3.0])
    for kind in ("iou", "giou", "ciou"):
        assert overlap(box, box, kind).item() == pytest.approx(1, abs=1e-6)
    assert overlap(box, far).item() == 0
    assert overlap(box, far, "giou").item() == pytest.approx(-(12 - 8) / 12)
    assert overlap(box, far, "ciou").item() == pytest.approx(-16 / 40)  # the aspect ratios are equal
    assert overlap(box[None], torch.stack((box, far))[:, None]).shape == (2, 1)
    with pytest.raises(ValueError, match="iou, giou, ciou"):
        overlap(box, far, "diou")


def test_a_gradient_pulls_distant_boxes_together() -> None:
    box = torch.tensor([1.0, 1.0, 3.0, 3.0], requires_grad=True)
    overlap(box, torch.tensor([5.0, 1.0, 7.0, 3.0]), "ciou").backward()
    assert box.grad is not None and box.grad[0] + box.grad[2] > 0 and box.grad.isfinite().all()


def test_empty_boxes_have_finite_overlaps_and_gradients() -> None:
    box = torch.zeros(4, requires_grad=True)
    for kind in ("iou", "giou", "ciou"):
        found = overlap(box, torch.zeros(4), kind)
        found.backward()
        assert found.isfinite()
    assert box.grad is not None and box.grad.isfinite().all()


def by_onnxruntime(boxes: Tensor, scores: Tensor, most_overlap: float, least: float, most: int) -> set[tuple[int, int]]:
    names = ("boxes", "scores", "most", "overlap", "least")
    node = onnx.helper.make_node("NonMaxSuppression", names, ["kept"])
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, *[onnx.TensorProto.FLOAT] * 2)
    given = [onnx.helper.make_tensor_value_info(n, k, None) for n, k in zip(names, kinds)]
    end = onnx.helper.make_tensor_value_info("kept", onnx.TensorProto.INT64, None)
    graph = onnx.helper.make_graph([node], "nms", given, [end])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"most": np.array([most]), "overlap": np.array([most_overlap], np.float32)}
    feeds |= {"boxes": boxes[None].numpy(), "scores": scores.T[None].numpy(), "least": np.array([least], np.float32)}
    return {(int(point), int(label)) for _, label, point in session.run(None, feeds)[0]}


@pytest.mark.parametrize("seed", range(5))
def test_suppression_is_that_of_onnxruntime(seed: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    middle = torch.rand(120, 2, generator=drawn) * 50
    size = torch.rand(120, 2, generator=drawn) * 20 + 5
    boxes, scores = to_corners(torch.cat((middle, size), 1)), torch.rand(120, 3, generator=drawn)
    kept = suppress(boxes, scores, 0.4, 0.2, 1000)
    wanted = by_onnxruntime(boxes, scores, 0.4, 0.2, 1000)
    assert {(p, c) for p, c in kept.tolist()} == wanted and 10 < len(wanted) < 200
    values = scores[kept[:, 0], kept[:, 1]]
    assert values.tolist() == sorted(values.tolist(), reverse=True)
    assert torch.equal(suppress(boxes, scores, 0.4, 0.2, 7), kept[:7])


@pytest.mark.parametrize("seed", range(2))
def test_suppression_across_classes_is_that_of_one_class(seed: int) -> None:
    """A box of any class drops others: the same as if each point had its best class alone, and all were one class."""
    drawn = torch.Generator().manual_seed(seed)
    middle, size = torch.rand(120, 2, generator=drawn) * 50, torch.rand(120, 2, generator=drawn) * 20 + 5
    boxes, scores = to_corners(torch.cat((middle, size), 1)), torch.rand(120, 3, generator=drawn)
    best, classes = scores.max(1)
    kept = suppress(boxes, scores, 0.4, 0.2, 1000, across=True)
    assert {p for p, _ in kept.tolist()} == {p for p, _ in by_onnxruntime(boxes, best[:, None], 0.4, 0.2, 1000)}
    assert kept[:, 1].tolist() == classes[kept[:, 0]].tolist() and 5 < len(kept) < 100


def test_suppression_of_nothing() -> None:
    assert suppress(torch.zeros(3, 4), torch.zeros(3, 2)).shape == (0, 2)
