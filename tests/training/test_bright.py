"""Images that are stored as floats from 0 to 255: told, or refused where values from 0 to 1 are meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgen.errors import OnnxgenError
from onnxgen.training import fit
from onnxgen.training.data import open_data
from onnxgen.training.settings import Settings
from tests.training.small import network

CPU: dict[str, Any] = {"device": "cpu", "workers": 0, "show": "nothing", "epochs": 1}


def images(highest: float, lowest: float = 0.0) -> dict[str, Any]:
    drawn = np.random.default_rng(0).uniform(lowest, highest, (24, 1, 8, 8)).astype(np.float32)
    return {"x": drawn, "y": np.arange(24) % 3}


def notes(folder: Path, data: dict[str, Any], **given: Any) -> list[str]:
    model = network(folder, x=("float32", ["n", 1, 8, 8]))
    return [note for note in open_data(data, model, Settings(**given)).notes if "fed as it is stored" in note]


@pytest.mark.parametrize(("highest", "white"), [(255.0, "255"), (200.0, "255"), (60000.0, "65535")])
def test_bright_floats_are_told(highest: float, white: str, tmp_path: Path) -> None:
    (note,) = notes(tmp_path, images(highest))
    assert note.startswith(f"x is fed as it is stored, floats up to {white}: images would be scaled if they were uint8")


@pytest.mark.parametrize(("highest", "lowest"), [(1.0, 0.0), (3.0, -3.0), (255.0, -255.0), (1e6, 0.0)])
def test_other_floats_are_not(highest: float, lowest: float, tmp_path: Path) -> None:
    assert notes(tmp_path, images(highest, lowest)) == []


def test_rows_of_numbers_are_no_images(tmp_path: Path) -> None:
    model = network(tmp_path, x=("float32", ["n", 5]))
    rows = np.random.default_rng(0).uniform(0, 255, (24, 5)).astype(np.float32)
    found = open_data({"x": rows, "y": np.arange(24) % 3}, model, Settings()).notes
    assert not any("fed as it is stored" in note for note in found)


@pytest.mark.parametrize("given", [{"normalize": "0.5,0.25"}, {"augment": "light"}])
def test_bright_floats_are_not_scaled_as_if_they_were_dark(given: dict[str, str], tmp_path: Path) -> None:
    network(tmp_path, x=("float32", ["n", 1, 8, 8]))
    with pytest.raises(OnnxgenError, match="column 'x' holds images as floats up to 255, which are taken for 0 to 1"):
        fit(tmp_path / "small.py", images(255), out=tmp_path / "run", **given, **CPU)
    fit(tmp_path / "small.py", images(1), out=tmp_path / "run", **given, **CPU)
