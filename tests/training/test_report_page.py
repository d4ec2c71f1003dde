"""The report's page: figures of each class, settings, and how wide its pictures are."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import precision_recall_fscore_support
from torch import nn

from onnxgen.cli import run as cli
from onnxgen.training.fit import fit
from onnxgen.training.report.page import by_class
from onnxgen.training.report.plots import curves, overlaid


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_each_class(seed: int) -> None:
    draw = np.random.default_rng(seed)
    true, said = draw.integers(0, 5, 200), draw.integers(0, 6, 200)
    said[::2] = true[::2]
    counts = torch.zeros(7, 7, dtype=torch.int64)
    for one, two in zip(true, said):
        counts[one, two] += 1
    names = [f"class {n}" for n in range(7)]
    found = by_class(counts, names)
    wanted = precision_recall_fscore_support(true, said, labels=range(6), zero_division=0)
    rows = {f"class {n}": (int(of), f"{p:.1%}", f"{r:.1%}", f"{f:.1%}") for n, (p, r, f, of) in enumerate(zip(*wanted))}
    assert {name: tuple(rest) for name, *rest in found} == rows, "class 6 does not occur"
    f1 = [float(row[4][:-1]) for row in found]
    assert f1 == sorted(f1) and found[0][0] == "class 5"
    assert by_class(counts, ()) == [(name.split()[1], *rest) for name, *rest in found]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of a classifier of tables."""
    folder = tmp_path_factory.mktemp("runs")
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    given: dict[str, Any] = {"epochs": 2, "workers": 0, "show": "nothing"}
    for name, rate in (("one", 0.1), ("two", 0.01)):
        data = {"x": x, "label": np.where(x[:, 0] > 0, "high", "low")}
        fit(nn.Linear(3, 2), data, out=folder / name, lr=rate, **given)
    return folder


def test_a_report(runs: Path) -> None:
    text = (runs / "one" / "report.html").read_text()
    table = text[text.index("<h2>Classes") : text.index("<h2>Epochs")]
    assert {*re.findall(r"<tr><td>(\w+)</td>", table)} == {"high", "low"}
    settings = text[text.index("<h2>Settings") :]
    assert re.search(r"<th>lr</th><td>0.1</td>", settings)
    assert "<th>weights</th>" not in settings and not re.search(r"<td>\s*</td></tr>", settings), "no blank rows"
    curve = re.search(r'<img [^>]*alt="loss over the epochs"[^>]*>', text)
    assert curve is not None and 'class="wide"' in curve[0] and "img.wide { width: 100%; }" in text


def test_plots_are_as_wide_as_the_page() -> None:
    """Each is 62 em of 15 pixels less its padding, so that none is enlarged."""
    rows: list[dict[str, float]] = [{"epoch": n, "train_loss": 1 / n, "val_loss": 2 / n} for n in (1, 2)]
    for png in (curves(rows, "loss", "val_loss"), overlaid({"a": rows, "b": rows}, "val_loss")):
        assert png is not None and Image.open(io.BytesIO(png)).width >= 62 * 15


def test_the_page_of_runs_is_no_wider_than_its_window(runs: Path) -> None:
    """Texts of a table may be broken anywhere, and pictures have the page's width: 80 em of 15 pixels."""
    assert cli(["runs", str(runs), "--html", str(runs / "runs.html"), "--quiet"]) == 0
    text = (runs / "runs.html").read_text()
    assert "overflow-wrap: anywhere" in text and "max-width: 80em" in text and "img { width: 100%;" in text
    assert not re.search(r"<img[^>]* width=", text)
