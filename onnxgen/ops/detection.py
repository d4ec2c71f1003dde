"""Choosing among the boxes of a detector."""

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
    """Keep the boxes that overlap no better one of their class; none without a maximum number of boxes."""
    return b.call(
        "select_boxes",
        boxes,
        scores,
        most=OMIT if max_output_boxes_per_class is None else max_output_boxes_per_class.as_int(),
        iou_threshold=OMIT if iou_threshold is None or iou_threshold.scalar == 0 else _number(iou_threshold),
        score_threshold=OMIT if score_threshold is None else _number(score_threshold),
        centered=unless(bool(center_point_box), False),
    )


def _number(x: Arg) -> ast.expr:
    return literal(x.scalar) if x.scalar is not None else quote("x.item()", x=x)
