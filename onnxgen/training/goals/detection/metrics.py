"""Mean average precision, as COCO defines it. faster-coco-eval computes it; torchmetrics' class needs torchvision."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from onnxgen.common.paths import installing
from onnxgen.errors import OnnxgenError
from onnxgen.training.data.letterbox import INNER, WHOLE
from onnxgen.training.goals.detection.boxes import suppress
from onnxgen.training.goals.detection.decoder import Decoder
from onnxgen.training.goals.detection.targets import COLUMN
from onnxgen.training.runs.contract import BEST_SCORE, MOST_BOXES, MOST_OVERLAP

FIGURES = {"map": "AP_all", "map50": "AP_50", "map75": "AP_75"}  # names in reports, and COCO's
REPORTED = (*FIGURES, BEST_SCORE)
PACKAGE = "faster_coco_eval"


class MeanAveragePrecision(Metric):
    """The mean average precision of the boxes that are left after suppression.

    `compute` returns "map" (the mean over IoU thresholds from 0.5 to 0.95), "map50" and "map75". They are -1 if no
    image had a box. "best_score" is the highest score of a box.
    """

    higher_is_better = True
    full_state_update = False
    found: list[Tensor]
    truth: list[Tensor]
    found_counts: list[Tensor]
    truth_counts: list[Tensor]
    best: Tensor

    def __init__(
        self, decoder: Decoder, column: str = COLUMN, most_overlap: float = MOST_OVERLAP, most: int = MOST_BOXES
    ) -> None:
        """Args: see `suppress`.

        Raises:
            OnnxgenError: faster-coco-eval is not installed.
        """
        super().__init__()
        if importlib.util.find_spec(PACKAGE) is None:
            raise OnnxgenError("mAP needs faster-coco-eval", help=installing("detection"))
        self.decoder, self.column, self.most_overlap, self.most = decoder, column, most_overlap, most
        for name in ("found", "truth", "found_counts", "truth_counts"):
            self.add_state(name, default=[], dist_reduce_fx="cat")
        self.add_state("best", default=torch.zeros(()), dist_reduce_fx="max")

    @torch.no_grad()
    def update(self, outputs: Sequence[Tensor], batch: Mapping[str, Tensor]) -> None:
        """Take a batch: the raw maps of the head, and the column of targets. Boxes end at the edges of their image."""
        decoded = self.decoder(outputs)
        scores, targets = decoded.scores, batch[self.column]
        size = targets.new_tensor([*decoded.size, *decoded.size])
        self.best = torch.maximum(self.best, scores.max().to(self.best))
        edges = batch.get(INNER, WHOLE.expand(len(targets), 4)).to(size) * size
        for boxes, score, target, edge in zip(decoded.boxes, scores, targets, edges):
            kept = suppress(boxes, score, self.most_overlap, most=self.most)
            points, classes = kept.unbind(1)
            inside = boxes[points].clamp(edge[:2].repeat(2), edge[2:].repeat(2))
            rows = torch.cat((classes[:, None], inside, score[points, classes, None]), 1).double()
            real = target[target[:, 0] >= 0].double()
            self.found.append(rows)
            self.truth.append(torch.cat((real[:, :1], real[:, 1:] * size.double()), 1))
            self.found_counts.append(torch.tensor([len(rows)], device=rows.device))
            self.truth_counts.append(torch.tensor([len(real)], device=rows.device))

    def compute(self) -> dict[str, Tensor]:
        """Return the figures of all batches so far."""
        rows = [_rows(self.found, self.found_counts), _rows(self.truth, self.truth_counts)]
        images = max((row.image for part in rows for row in part), default=-1) + 1
        found = average_precision(rows[0], rows[1], images)
        return {**{name: torch.tensor(found[key]) for name, key in FIGURES.items()}, BEST_SCORE: self.best}


@dataclass(frozen=True)
class Row:
    """A box of an image: corners in pixels, and its score."""

    image: int
    label: int
    corners: tuple[float, float, float, float]
    score: float = 1.0

    def coco(self, number: int) -> dict[str, Any]:
        """Return the box as COCO's files have it."""
        x1, y1, x2, y2 = self.corners
        size = (x2 - x1, y2 - y1)
        box = {"bbox": [x1, y1, *size], "area": size[0] * size[1], "iscrowd": 0, "score": self.score}
        return {"id": number + 1, "image_id": self.image, "category_id": self.label, **box}


def _rows(rows: list[Tensor] | Tensor, counts: list[Tensor] | Tensor) -> list[Row]:
    """Return boxes of which `counts` says how many each image has. After a synchronisation each is one tensor."""
    boxes, per_image = (torch.cat(part) if isinstance(part, list) and part else part for part in (rows, counts))
    if not isinstance(boxes, Tensor) or not isinstance(per_image, Tensor):
        return []
    images = torch.arange(len(per_image)).repeat_interleave(per_image.cpu()).tolist()
    found = boxes.cpu().tolist()
    return [Row(image, int(box[0]), (*box[1:5],), *box[5:]) for image, box in zip(images, found)]


def average_precision(found: Sequence[Row], truth: Sequence[Row], images: int) -> dict[str, float]:
    """Return COCO's figures of boxes: "AP_all", "AP_50", "AP_75" and others."""
    labels = sorted({row.label for row in (*found, *truth)})
    if not truth:
        return dict.fromkeys(FIGURES.values(), -1.0)
    if not found:
        return dict.fromkeys(FIGURES.values(), 0.0)
    coco: Any = importlib.import_module(PACKAGE)
    dataset = {
        "images": [{"id": image} for image in range(images)],
        "categories": [{"id": label, "name": str(label)} for label in labels],
        "annotations": [row.coco(number) for number, row in enumerate(truth)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        right = coco.COCO(dataset)
        evaluation = coco.COCOeval_faster(right, right.loadRes([row.coco(n) for n, row in enumerate(found)]), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {name: float(value) for name, value in evaluation.stats_as_dict.items()}
