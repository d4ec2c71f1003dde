"""`--task detection`: the raw maps of a detector are trained; the graph behind them stays as it is.

The metric is mean average precision, as COCO defines it. faster-coco-eval computes it;
torchmetrics' class needs torchvision.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric

from onnxgen.common.names import legible
from onnxgen.common.paths import installing
from onnxgen.errors import OnnxgenError, counted
from onnxgen.record.tail import Tail
from onnxgen.training.data.arrays import column_of
from onnxgen.training.data.letterbox import INNER, WHOLE
from onnxgen.training.data.presets import PRESETS
from onnxgen.training.data.samples import Batch
from onnxgen.training.goals.detection.boxes import Decoder, suppress
from onnxgen.training.goals.detection.head import detector_of, tail_of_model
from onnxgen.training.goals.detection.loss import COLUMN, DetectionLoss, refuse_wrong
from onnxgen.training.goals.goal import Goal, Outputs, Scores, Shown
from onnxgen.training.runs.contract import BEST_SCORE
from onnxgen.training.runs.record import BOXES, Target

if TYPE_CHECKING:
    from onnxgen.training.tasks.card import Situation


SURE = 0.3  # boxes with at least this score are drawn in the report


@dataclass(frozen=True)
class Detection(Goal):
    """The loss of a detector's raw maps, and its mean average precision.

    Attributes:
        tail: what the raw maps mean.
        places: the index of each raw map among the outputs.
        names: of the classes.
        whole: the detector's ONNX file, and its own head; None if it is not known.
    """

    tail: Tail
    places: tuple[int, ...]
    names: tuple[str, ...] = ()
    name: str = ""
    classes: int = 0
    monitor: str = "map"
    columns: tuple[str, ...] = (COLUMN,)
    said: tuple[str, ...] = ()
    whole: tuple[Path, Tail] | None = None

    @property
    def decoder(self) -> Decoder:
        return Decoder(self.tail)

    def maps(self, outputs: Outputs) -> list[Tensor]:
        """Return the raw maps among the outputs."""
        return [outputs[place].float() for place in self.places]

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        return DetectionLoss(self.decoder).loss(self.maps(outputs), batch, training)

    def weight(self, batch: Batch) -> Tensor | int:
        return DetectionLoss(self.decoder).count(batch)

    def target(self) -> Target:
        from onnxgen.export.decoding import decoded_boxes  # imported here: it reads graphs

        head: dict[str, Any] = {"places": self.places, "tail": self.tail.record()}
        head["found"] = {} if self.whole is None else decoded_boxes(*self.whole, self.tail.classes)
        return Target(self.places[0], COLUMN, COLUMN, BOXES, "", self.tail.classes, 1, self.names, head=head)

    def scores(self) -> Scores:
        metric = MeanAveragePrecision(self.decoder)
        return Scores({"map": metric}, lambda outputs, batch: (self.maps(outputs), batch), REPORTED)

    def shown(self, outputs: Outputs, batch: Batch, place: int, names: Sequence[str]) -> Shown:
        decoded = self.decoder([boxes[place : place + 1] for boxes in self.maps(outputs)])
        kept = suppress(decoded.boxes[0], decoded.scores[0], least_score=SURE)
        boxes = decoded.boxes[0][kept[:, 0]] / torch.tensor([*decoded.size, *decoded.size])
        rows = batch[COLUMN][place]
        rows = rows[rows[:, 0] >= 0]
        named = [[names[int(n)] if int(n) < len(names) else str(int(n)) for n in c] for c in (rows[:, 0], kept[:, 1])]
        truth, answer = (", ".join(sorted(part)) or "nothing" for part in named)
        return Shown(truth, answer, boxes=(rows[:, 1:], boxes))


def make(situation: Situation) -> list[Goal]:
    """Return the goal of a network whose outputs are the raw maps of a detector.

    Raises `OnnxgenError` if the ONNX file is not there or is no detector that can be read, the outputs are not its raw
    maps, or a box can't be learned.
    """
    detector = detector_of(situation.model)
    detector.refuse_whole()
    if left := [name for name in detector.tail.maps if name not in situation.names]:
        what = f"the model returns {counted(len(situation.names), 'output')}, without the raw map {legible(left[0])!r}"
        raise OnnxgenError(what, help="let forward return all of its raw maps, in their order")
    places = tuple(situation.names.index(name) for name in detector.tail.maps)
    tail = tail_of_model(detector.tail, [situation.outputs[place].shape for place in places])
    boxes = column_of(situation.samples, COLUMN)
    if boxes is not None:
        refuse_wrong(boxes, tail.classes)
    notes = [f"the raw maps of a detector are trained: {len(tail.levels)} scales, {tail.classes} classes"]
    notes += [f"assumed: {tail.assumed}"] if tail.assumed else []
    if tail.kind == "offsets":
        notes += PRESETS["yolox"].advised("its boxes are offsets as YOLOX's", situation.settings)
    names = situation.settings.classes or situation.samples.fields[COLUMN].classes
    if len(names) > tail.classes:
        what = f"--classes has {counted(len(names), 'name')}, but the model has {counted(tail.classes, 'class')}"
        raise OnnxgenError(what, help=f"--replace-head {len(names)}")
    return [Detection(tail, places, names, said=tuple(notes), whole=(detector.onnx, detector.tail))]


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

    def __init__(self, decoder: Decoder) -> None:
        """Raises `OnnxgenError` if faster-coco-eval is not installed."""
        super().__init__()
        if importlib.util.find_spec(PACKAGE) is None:
            raise OnnxgenError("mAP needs faster-coco-eval", help=installing("detection"))
        self.decoder = decoder
        for name in ("found", "truth", "found_counts", "truth_counts"):
            self.add_state(name, default=[], dist_reduce_fx="cat")
        self.add_state("best", default=torch.zeros(()), dist_reduce_fx="max")

    @torch.no_grad()
    def update(self, outputs: Sequence[Tensor], batch: Mapping[str, Tensor]) -> None:
        """Take a batch: the raw maps of the head, and the column of targets. Boxes end at the edges of their image."""
        decoded = self.decoder(outputs)
        scores, targets = decoded.scores, batch[COLUMN]
        size = targets.new_tensor([*decoded.size, *decoded.size])
        self.best = torch.maximum(self.best, scores.max().to(self.best))
        edges = batch.get(INNER, WHOLE.expand(len(targets), 4)).to(size) * size
        for boxes, score, target, edge in zip(decoded.boxes, scores, targets, edges):
            points, classes = suppress(boxes, score).unbind(1)
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
        figures = average_precision(rows[0], rows[1], images)
        return {**{name: torch.tensor(figures[key]) for name, key in FIGURES.items()}, BEST_SCORE: self.best}


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
    numbers = boxes.cpu().tolist()
    return [Row(image, int(box[0]), (*box[1:5],), *box[5:]) for image, box in zip(images, numbers)]


def average_precision(predictions: Sequence[Row], truth: Sequence[Row], images: int) -> dict[str, float]:
    """Return COCO's figures of boxes: "AP_all", "AP_50", "AP_75" and others."""
    labels = sorted({row.label for row in (*predictions, *truth)})
    if not truth:
        return dict.fromkeys(FIGURES.values(), -1.0)
    if not predictions:
        return dict.fromkeys(FIGURES.values(), 0.0)
    coco: Any = importlib.import_module(PACKAGE)
    dataset = {
        "images": [{"id": image} for image in range(images)],
        "categories": [{"id": label, "name": str(label)} for label in labels],
        "annotations": [row.coco(number) for number, row in enumerate(truth)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        right = coco.COCO(dataset)
        evaluation = coco.COCOeval_faster(
            right, right.loadRes([row.coco(n) for n, row in enumerate(predictions)]), "bbox"
        )
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {name: float(value) for name, value in evaluation.stats_as_dict.items()}
