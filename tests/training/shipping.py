"""Trains, exports, and asks the exported file with the program that never imports onnxgen: `samples/deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.cli import run as cli
from onnxgen.training import fit, load
from onnxgen.training.runs.answers import Answer
from onnxgen.training.runs.contract import LIKELY_BOX
from samples.deploy import predict as deployed
from tests.zoo.export import quiet

QUIET: dict[str, Any] = {"workers": 0, "show": "nothing", "max_steps": 2, "device": "cpu", "val": 0.0}
RNG = np.random.default_rng(0)


def shipped(module: Path, data: Any, out: Path, **settings: Any) -> Path:
    """Train, export, and return the run's folder."""
    fit(module, data, out=out, **{**QUIET, **settings})
    assert cli(["export", str(out), "-o", str(out / "tuned.onnx"), "--quiet"]) == 0
    return out


def session_of(run: Path) -> Any:
    return onnxruntime.InferenceSession(run / "tuned.onnx", providers=["CPUExecutionProvider"])


def need_same(run: Path, path: Path, score: float = LIKELY_BOX) -> list[dict[str, Any]]:
    """Compare what the program says of a file with what `predict` says. Returns the former."""
    found = list(deployed.predict(session_of(run), str(path), score))
    wanted = load(run, device="cpu").predict(path, min_score=score)
    assert len(found) == len(wanted) > 0
    for mine, theirs in zip(found, wanted):
        assert mine.keys() == theirs.answers.keys()
        for name, answer in theirs.answers.items():
            _need_alike(mine[name], answer)
    return found


def _need_alike(mine: Any, theirs: Answer) -> None:
    if theirs.boxes is not None:  # those of nearly equal scores may be in another order
        names = sorted({box.label for box in theirs.boxes})
        one, other = (
            np.array([(names.index(label), 10 * score, *corners) for label, score, *corners in boxes])
            for boxes in (mine, [(box.label, box.score, *box.corners) for box in theirs.boxes])
        )
        apart = np.abs(one[:, None] - other).max(2)
        assert len(one) == len(other) == len({*apart.argmin(1)}) and apart.min(1).max() < 1e-4
    elif theirs.probabilities:
        label, probabilities = mine
        assert label == theirs.label or tuple(label) == theirs.label
        assert probabilities == pytest.approx(theirs.probabilities, rel=1e-5, abs=1e-5)
    elif isinstance(theirs.label, str):
        assert mine == theirs.label
    elif theirs.is_image:
        assert mine.dtype == np.uint8 and mine.shape == theirs.value.shape
        assert np.abs(mine.astype(int) - theirs.value).max() <= 1, "a value between two bytes may be rounded either way"
        assert (mine == theirs.value).mean() > 0.99
    else:
        np.testing.assert_allclose(mine, theirs.value, rtol=1e-5, atol=1e-5)


def network(folder: Path, net: nn.Module, *examples: Tensor, names: str = "x", output: str = "y") -> Path:
    """Export a network with a free batch, and generate its module."""
    torch.manual_seed(0)
    inputs, outputs = names.split(), output.split()
    with quiet():
        torch.onnx.export(
            net.eval(), examples, folder / "net.onnx", input_names=inputs, output_names=outputs, dynamo=False,
            dynamic_axes={name: {0: "batch"} for name in (*inputs, *outputs)}, opset_version=17,
        )  # fmt: skip
    generate(folder / "net.onnx", folder / "net.py", force=True)
    return folder / "net.py"


def rows(path: Path, names: str, lines: list[str]) -> Path:
    path.write_text("\n".join([names, *lines]) + "\n", encoding="utf-8")
    return path


def shot(path: Path, size: tuple[int, int] = (30, 26)) -> Path:
    Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    return path


def with_entry(path: Path, key: str, value: str) -> Path:
    model = onnx.load(path)
    model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)
    return path


def entries(run: Path) -> dict[str, str]:
    return dict(session_of(run).get_modelmeta().custom_metadata_map)
