"""The task-aligned assigner, on points whose assignment can be seen."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxgen.training.goals.detection.loss import Assignment, assign


def grid(cells: int, stride: float) -> tuple[Tensor, Tensor]:
    """Return the centres of a square map, and their strides."""
    row, column = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
    centres = (torch.stack((column, row), -1).reshape(-1, 2) + 0.5) * stride
    return centres, torch.full((cells**2,), stride)


def squares(centres: Tensor, half: float) -> Tensor:
    return torch.cat((centres - half, centres + half), 1)[None]


def run(targets: list[list[float]], labels: list[int], half: float = 4, **given: int) -> tuple[Assignment, Tensor]:
    centres, strides = grid(8, 4.0)
    scores = torch.full((1, 64, 2), 0.5)
    found = assign(
        scores, squares(centres, half), centres, strides, torch.tensor([labels]), torch.tensor([targets]), **given
    )
    return found, centres


def test_points_in_a_box_learn_it() -> None:
    found, centres = run([[0, 0, 8, 8]], [1])
    assert centres[found.chosen[0]].tolist() == [[2, 2], [6, 2], [2, 6], [6, 6]]
    assert found.index[found.chosen].tolist() == [0] * 4
    # All four predicted squares of 8 x 8 share 6 x 6 with the box: IoU 36 / 92, the centres (2, 2) apart of 10 x 10.
    wanted = 36 / 92 - 8 / 200
    assert torch.allclose(found.quality[found.chosen], torch.tensor(wanted), atol=1e-5)
    assert found.quality[~found.chosen].eq(0).all()


def test_the_best_points_are_taken() -> None:
    found, centres = run([[0, 0, 12, 12]], [0], half=6, top=1)
    assert centres[found.chosen[0]].tolist() == [[6, 6]]
    assert found.quality[found.chosen].item() == torch.tensor(1.0).item()


def test_a_point_between_two_boxes_learns_the_one_that_it_overlaps_most() -> None:
    found, centres = run([[0, 0, 20, 20], [0, 0, 8, 8]], [0, 1])
    at = {tuple(c): i for c, i in zip(centres.tolist(), found.index[0].tolist())}
    assert at[2, 2] == at[6, 6] == 1 and at[14, 14] == 0


def test_a_higher_score_wins_where_overlaps_are_equal() -> None:
    centres, strides = grid(8, 4.0)
    scores = torch.full((1, 64, 2), 0.1)
    scores[0, 9, 1] = 0.9  # at (6, 6)
    labels, targets = torch.tensor([[1]]), torch.tensor([[[0.0, 0, 8, 8]]])
    found = assign(scores, squares(centres, 4), centres, strides, labels, targets, top=1)
    assert found.chosen.nonzero().tolist() == [[0, 9]]


def test_a_box_between_the_centres_is_learned_too() -> None:
    found, centres = run([[3.2, 3.2, 4.6, 4.6]], [0])
    assert [4, 4] not in centres.tolist() and found.chosen.any()
    assert (centres[found.chosen[0]] - 4).abs().max() <= 2


def test_rows_that_are_no_box_are_left_out() -> None:
    found, _ = run([[0, 0, 8, 8], [-1, -1, -1, -1]], [1, -1])
    assert set(found.index.flatten().tolist()) == {-1, 0}
    found, _ = run([[-1, -1, -1, -1]], [-1])
    assert not found.chosen.any()
    centres, strides = grid(8, 4.0)
    none = assign(
        torch.rand(1, 64, 2), squares(centres, 4), centres, strides, torch.zeros(1, 0).long(), torch.zeros(1, 0, 4)
    )
    assert not none.chosen.any() and none.quality.shape == (1, 64)
