"""Pictures of runs that are quick to make: matplotlib takes four times as long as the small trainings of these tests.

What `plots` asks of a figure is noted: the calls and what they are given. The first figure of each kind is made as
always, with its curves, cells and names; those are of one kind whose calls differ in finite values, in plain texts, and
in how many there are. In place of drawing it, a few pixels stand for all that was asked, so equal figures give equal
files and others do not. What could fail while it is drawn is drawn: formulas, values that are not finite, and scales
that are not linear.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from onnxgen.training.report import plots

SIDE = 8

_plain: dict[frozenset[str], bool] = {}  # of the kinds of figures that were made: whether drawing them can't fail


class Asked:
    """A figure, or what was asked of it: notes what it is asked, and returns another of its kind for each answer."""

    def __init__(self, steps: list[tuple[str, int, Any]], place: int) -> None:
        self._steps, self._place = steps, place

    def _next(self, kind: str, given: Any) -> Any:
        self._steps.append((kind, self._place, given))
        return Asked(self._steps, len(self._steps) - 1)

    def __getattr__(self, name: str) -> Any:
        return self._next("attribute", name)

    def __getitem__(self, key: Any) -> Any:
        return self._next("item", key)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._next("call", (given, named))

    def __repr__(self) -> str:
        return f"<{self._place}>"

    def savefig(self, file: io.BytesIO, **given: Any) -> None:
        kind = _kinds(self._steps)
        if kind in _plain and _plain[kind]:
            file.write(sketch(self._steps))
            return
        figure = made(self._steps)
        _plain[kind] = plain(figure)
        if _plain[kind]:
            file.write(sketch(self._steps))
        else:
            figure.savefig(file, **given)


def _kinds(steps: list[tuple[str, int, Any]]) -> frozenset[str]:
    """What was called of which part, with which kinds of values: however often, and with however many of them."""
    names, found = ["figure"], {f"figure {_kind(steps[0][2])}"}
    for step, place, given in steps[1:]:
        names.append(f"{names[place]}.{given}" if step != "call" else f"{names[place]}()")
        if step == "call":
            counts = {len(value) for value in given[0] if isinstance(value, (list, range))}
            found.add(f"{names[place]} {_kind(given)} {len(counts)}")
    return frozenset(found)


def _kind(value: Any) -> Any:
    """A value without what matplotlib would only draw elsewhere: finite numbers, and texts that are no formulas."""
    if isinstance(value, dict):
        return [(key, _kind(inner)) for key, inner in value.items()]
    if isinstance(value, tuple):
        return [*map(_kind, value)]
    if isinstance(value, (list, range)):
        return sorted({repr(_kind(f" {inner}" if isinstance(inner, str) else inner)) for inner in value})
    if isinstance(value, np.ndarray):
        return value.ndim, value.size > 0, value.dtype, bool(np.isfinite(value).all())
    if isinstance(value, (bool, float, int)):
        return type(value), bool(np.isfinite(value))
    if isinstance(value, str):
        return value if value.isidentifier() else (value.isprintable(), value.isascii(), value if "$" in value else "")
    return type(value)


def made(steps: list[tuple[str, int, Any]]) -> Figure:
    """Make the figure that was asked for: the first step tells its size."""
    found: list[Any] = []

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: of(inner) for key, inner in value.items()}
        if isinstance(value, tuple):
            return tuple(map(of, value))
        return found[value._place] if isinstance(value, Asked) else value

    for kind, place, given in steps:
        if kind == "figure":
            found += [_figure(*given)[0]]
        elif kind == "attribute":
            found.append(getattr(found[place], given))
        elif kind == "item":
            found.append(found[place][given])
        else:
            words, named = of(given)
            found.append(found[place](*words, **named))
    figure = found[0]
    assert isinstance(figure, Figure)
    return figure


_figure: Callable[[float, float], tuple[Figure, Axes]] = plots._figure


def noting(width: float, height: float) -> tuple[Any, Any]:
    figure = Asked([("figure", 0, (width, height))], 0)
    return figure, figure.axes[0]


def _texts(axes: Axes) -> list[Any]:
    legend = axes.get_legend()
    return [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *(legend.get_texts() if legend else ())]


def _arrays(axes: Axes) -> list[np.ndarray[Any, Any]]:
    lines = [np.asarray(line.get_xydata(), float) for line in axes.lines]
    return lines + [np.ma.getdata(image.get_array()).astype(float) for image in axes.images]


def plain(figure: Figure) -> bool:
    """Whether drawing it can't fail: straight scales, finite values, and texts that are no formulas."""
    return all(
        {axes.get_xscale(), axes.get_yscale()} == {"linear"}
        and all(np.isfinite(array).all() for array in _arrays(axes))
        and not any("$" in text.get_text() and text.get_parse_math() for text in _texts(axes))
        for axes in figure.axes
    )


def sketch(steps: list[tuple[str, int, Any]]) -> bytes:
    """A PNG of a few pixels, which are a digest of what was asked."""
    found = hashlib.sha256()
    for step in steps:
        found.update(repr(_exact(step)).encode())
    colors = np.frombuffer(found.digest() * (SIDE * SIDE * 3 // 32), np.uint8).reshape(SIDE, SIDE, 3)
    file = io.BytesIO()
    Image.fromarray(colors).save(file, format="png")
    return file.getvalue()


def _exact(value: Any) -> Any:
    """A value whose `repr` tells it from all others, at any place in memory."""
    if isinstance(value, dict):
        return {key: _exact(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(_exact, value)]
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if value is None or isinstance(value, (bool, float, int, str, range, Asked)):
        return value
    return type(value), [pair for pair in vars(value).items() if isinstance(pair[1], (bool, float, int, str))]


@contextmanager
def sketched() -> Iterator[None]:
    """Within it, plain figures are not drawn."""
    with patch.object(plots, "_figure", noting):
        yield
