"""The pictures that stand for drawn ones: each change of a figure changes them, and what may fail is drawn."""

from __future__ import annotations

import math

import pytest
import torch
from matplotlib.axes import Axes

from onnxgen.training.report import plots
from onnxgen.training.report.plots import confusion_matrix, curves, overlaid, rates_tried
from tests.training import sketches

ROWS = [{"epoch": 1.0, "train_loss": 0.5, "val_loss": 0.6}, {"epoch": 2.0, "train_loss": 0.4, "val_loss": 0.5}]
COUNTS = torch.tensor([[5, 1], [0, 7]])
SMALL = 1000  # bytes; a drawn picture has more


def loss(part: str, value: float) -> bytes:
    return curves([ROWS[0], {**ROWS[1], part: value}], "loss", "val_loss") or b""


def test_equal_figures_give_equal_pictures_and_others_do_not() -> None:
    made = [
        *(loss(part, value) for part in ("train_loss", "val_loss") for value in (0.5, 0.6, 0.60001)),
        *(overlaid({name: ROWS}, "val_loss") or b"" for name in ("a", "b")),
        confusion_matrix(COUNTS, ["a", "b"], "test"),
        confusion_matrix(COUNTS, ["a", "c"], "test"),
        confusion_matrix(COUNTS, ["a", "b"], "val"),
        confusion_matrix(COUNTS * 2, ["a", "b"], "test"),  # the same shares
        confusion_matrix(COUNTS.T, ["a", "b"], "test"),
    ]
    assert len({*made}) == len(made) and all(one.startswith(b"\x89PNG") and len(one) < SMALL for one in made)
    assert confusion_matrix(COUNTS, ["a", "b"], "test") in made and loss("val_loss", 0.6) in made


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_drawn(value: float) -> None:
    assert len(loss("train_loss", value)) > SMALL


def test_scales_and_formulas_are_drawn() -> None:
    assert len(rates_tried([0.1, 1.0], [1.0, 2.0], 0.5)) > SMALL
    assert len(overlaid({"run": ROWS}, "val_loss") or b"") < SMALL < len(overlaid({"a $b$": ROWS}, "val_loss") or b"")
    assert len(confusion_matrix(COUNTS, ["$a", "b"], "test")) < SMALL, "names of classes are no formulas"
    with pytest.raises(ValueError, match="nothing"):
        overlaid({r"$\nothing$": ROWS}, "val_loss")


def test_the_first_figure_of_each_kind_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What matplotlib refuses is no picture; of figures that differ in numbers alone, one is made."""
    monkeypatch.setattr(sketches, "_plain", {})
    made, plot = [], Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda *given, **named: made.append(given) or plot(*given, **named))
    for value in (0.5, 0.6):
        loss("val_loss", value)
        assert len(made) == 3, "two curves and a star, of the first alone"
    curves(ROWS * 2, "loss", "val_loss")
    assert len(made) == 3, "another number of points"
    overlaid({"a": ROWS}, "val_loss")
    assert len(made) == 3 + 1, "another kind"
    monkeypatch.setattr(sketches, "_plain", {})
    monkeypatch.delattr(Axes, "imshow")
    with pytest.raises(AttributeError, match="imshow"):
        confusion_matrix(COUNTS, ["a", "b"], "test")


def test_axes_say_what_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(plots, "_figure", lambda *size: made.append(sketches._figure(*size)) or made[-1])
    curves(ROWS, "loss", "val_loss")
    rates_tried([0.1, 1.0], [1.0, 2.0], None)
    overlaid({"run": ROWS}, "val_loss")
    confusion_matrix(COUNTS, ["a", "b"], "test")
    named = [(axes.get_xlabel(), axes.get_ylabel() or axes.get_title()) for _, axes in made]
    assert len(made) == 4 and all(x and y for x, y in named), named
    assert named[1] == ("learning rate", "mean training loss")
