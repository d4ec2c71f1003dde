"""What comes after a detector: choosing among its boxes."""

from __future__ import annotations

import ast

from onnxgen.code.quote import OMIT, literal, quote, unless
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder


@op("NonMaxSuppression")
def non_max_suppression(
    b: Builder,
    boxes: Arg,
    scores: Arg,
    max_output_boxes_per_class: Arg | None = None,
    iou_threshold: Arg | None = None,
    score_threshold: Arg | None = None,
    *,
    center_point_box: int = 0,
) -> ast.expr:
    """The boxes that overlap no better one of their class; without a number of boxes there are none."""
    return b.call(
        "select_boxes",
        boxes,
        scores,
        most=OMIT if max_output_boxes_per_class is None else max_output_boxes_per_class.as_int(),
        iou_threshold=_number(iou_threshold, 0.0),
        score_threshold=_number(score_threshold, None),
        centered=unless(bool(center_point_box), False),
    )


def _number(x: Arg | None, default: float | None) -> object:
    """A threshold as a Python number; left out where it is the default."""
    if x is None or (default is not None and x.scalar == default):
        return OMIT
    return literal(x.scalar) if x.scalar is not None else quote("x.item()", x=x)
