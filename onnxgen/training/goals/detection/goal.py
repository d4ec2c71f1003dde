"""`--task detection`: the raw maps of a detector are trained; the graph behind them stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, counted
from onnxgen.record.tail import Tail
from onnxgen.record.usual import YOLOX
from onnxgen.training.data.arrays import column_of
from onnxgen.training.data.samples import Batch
from onnxgen.training.goals.detection.boxes import suppress
from onnxgen.training.goals.detection.decoder import Decoder
from onnxgen.training.goals.detection.head import tail_of_model
from onnxgen.training.goals.detection.loss import DetectionLoss
from onnxgen.training.goals.detection.metrics import REPORTED, MeanAveragePrecision
from onnxgen.training.goals.detection.part import detector_of
from onnxgen.training.goals.detection.targets import COLUMN, refuse_wrong
from onnxgen.training.goals.goal import Goal, Outputs, Scores, Shown
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
        from onnxgen.export.decoded import decoded_boxes  # imported here: it reads graphs

        head: dict[str, Any] = {"places": self.places, "tail": self.tail.record()}
        head["found"] = {} if self.whole is None else decoded_boxes(*self.whole, self.tail.classes)
        return Target(self.places[0], COLUMN, COLUMN, BOXES, "", self.tail.classes, 1, self.names, head=head)

    def scores(self) -> Scores:
        metric = MeanAveragePrecision(self.decoder)
        return Scores({"map": metric}, lambda outputs, batch: (self.maps(outputs), batch), REPORTED)

    def shown(self, outputs: Outputs, batch: Batch, place: int, names: Sequence[str]) -> Shown:
        decoded = self.decoder([found[place : place + 1] for found in self.maps(outputs)])
        kept = suppress(decoded.boxes[0], decoded.scores[0], least_score=SURE)
        found = decoded.boxes[0][kept[:, 0]] / torch.tensor([*decoded.size, *decoded.size])
        rows = batch[COLUMN][place]
        rows = rows[rows[:, 0] >= 0]
        named = [[names[int(n)] if int(n) < len(names) else str(int(n)) for n in c] for c in (rows[:, 0], kept[:, 1])]
        truth, said = (", ".join(sorted(part)) or "nothing" for part in named)
        return Shown(truth, said, boxes=(rows[:, 1:], found))


def make(found: Situation) -> list[Goal]:
    """Return the goal of a network whose outputs are the raw maps of a detector.

    Raises:
        OnnxgenError: the ONNX file is not there or is no detector that can be read, the outputs are not its raw maps,
            or a box can't be learned.
    """
    detector = detector_of(found.model)
    detector.refuse_whole()
    if left := [name for name in detector.tail.maps if name not in found.names]:
        what = f"the model returns {counted(len(found.names), 'output')}, without the raw map {legible(left[0])!r}"
        raise OnnxgenError(what, help="let forward return all of its raw maps, in their order")
    places = tuple(found.names.index(name) for name in detector.tail.maps)
    tail = tail_of_model(detector.tail, [found.outputs[place].shape for place in places])
    boxes = column_of(found.samples, COLUMN)
    if boxes is not None:
        refuse_wrong(boxes, tail.classes)
    said = [f"the raw maps of a detector are trained: {len(tail.levels)} scales, {tail.classes} classes"]
    said += [f"assumed: {tail.assumed}"] if tail.assumed else []
    said += YOLOX.left(found.settings) if tail.kind == "offsets" else []
    names = found.settings.classes or found.samples.fields[COLUMN].classes
    if len(names) > tail.classes:
        what = f"--classes has {counted(len(names), 'name')}, but the model has {counted(tail.classes, 'class')}"
        raise OnnxgenError(what, help=f"--replace-head {len(names)}")
    return [Detection(tail, places, names, said=tuple(said), whole=(detector.onnx, detector.tail))]
