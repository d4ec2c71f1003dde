"""Pictures of runs that are quick to make: matplotlib takes four times as long as the small trainings of these tests.

A figure is made as always, with its curves, cells and names. In place of drawing it, a few pixels stand for all that is
on it, so equal figures give equal files and others do not. What could fail while it is drawn is drawn: formulas, values
that are not finite, and scales that are not linear.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator
from PIL import Image

SIDE = 8


def _texts(axes: Axes) -> list[Any]:
    legend = axes.get_legend()
    return [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *(legend.get_texts() if legend else ())]


def _ticks(axes: Axes) -> list[str]:
    """What is written at the ticks that were given."""
    given = [axis for axis in (axes.xaxis, axes.yaxis) if isinstance(axis.get_major_locator(), FixedLocator)]
    return [name for axis in given for name in axis.get_major_formatter().format_ticks(axis.get_major_locator()())]


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


def content(figure: Figure) -> bytes:
    """A digest of what is on a figure."""
    found = hashlib.sha256(repr(figure.get_size_inches().tolist()).encode())
    for axes in figure.axes:
        for array in _arrays(axes):
            found.update(repr(array.shape).encode() + array.tobytes())
        for line in axes.lines:
            found.update(repr((line.get_color(), line.get_marker(), line.get_linestyle(), line.get_label())).encode())
        for text in _texts(axes):
            found.update(repr((text.get_text(), text.get_position(), text.get_color())).encode())
        found.update(repr(_ticks(axes)).encode())
    return found.digest()


def sketch(figure: Figure) -> bytes:
    """A PNG of a few pixels."""
    colors = np.frombuffer(content(figure) * (SIDE * SIDE * 3 // 32), np.uint8).reshape(SIDE, SIDE, 3)
    file = io.BytesIO()
    Image.fromarray(colors).save(file, format="png")
    return file.getvalue()


@contextmanager
def sketched() -> Iterator[None]:
    """Within it, plain figures are not drawn."""
    drawn: Callable[..., None] = Figure.savefig

    def savefig(figure: Figure, file: Any, **given: Any) -> None:
        if plain(figure) and isinstance(file, io.BytesIO):
            file.write(sketch(figure))
        else:
            drawn(figure, file, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield
