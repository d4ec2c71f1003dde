"""Outputs that somebody added to `forward` by hand: their names, their targets, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.training import fit, load, open_model, signature_of
from tests.training.small import network

RETURN = "        return self.fc("
CPU: dict[str, Any] = {"device": "cpu", "workers": 0, "show": "nothing", "epochs": 1, "val": 0.25}
WAYS = {
    "behind": ("made, doubled", ["made", "doubled"]),
    "in front": ("doubled, made", ["doubled", "made"]),
    "without a name": ("made, made * 2", ["made", "output1"]),
    "the graph's own behind": ("doubled, ORIGINAL", ["doubled", "scores"]),
    "the graph's own in front": ("ORIGINAL, doubled", ["scores", "doubled"]),
    "twice": ("ORIGINAL, doubled, doubled", ["scores", "doubled", "output2"]),
}


def edited(folder: Path, returned: str) -> Path:
    """A network x [n, 5] -> scores [n, 3] whose `forward` returns more."""
    network(folder, x=("float32", ["n", 5]))
    path = folder / "small.py"
    text = path.read_text()
    line = next(line for line in text.splitlines() if line.startswith("        return ") and "Tensor" not in line)
    original = line.removeprefix("        return ")
    more = f"        made = {original}\n        doubled = made * 2\n"
    path.write_text(text.replace(line, f"{more}        return {returned.replace('ORIGINAL', original)}"))
    return path


def data(**targets: Any) -> dict[str, Any]:
    return {"x": np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32), **targets}


@pytest.mark.parametrize("way", WAYS)
def test_outputs_are_called_as_what_is_returned(way: str, tmp_path: Path) -> None:
    returned, names = WAYS[way]
    found = signature_of(open_model(edited(tmp_path, returned))).outputs
    assert [port.name for port in found] == names
    assert [port.dims for port in found] == [("n", 3) if name == "scores" else None for name in names]


def test_each_output_is_trained_towards_its_target(tmp_path: Path) -> None:
    path = edited(tmp_path, "doubled, ORIGINAL")
    rng, labels = np.random.default_rng(1), np.arange(24) % 3
    given = data(wide=rng.normal(size=(24, 3)).astype(np.float32), label=labels)
    target = {"doubled": "wide", "scores": "label"}
    result = fit(path, given, target=target, out=tmp_path / "run", lr=1e-9, **CPU)
    model, x = open_model(path).eval(), torch.tensor(given["x"])
    wide, scores = model(x)
    losses = F.mse_loss(wide, torch.tensor(given["wide"]), reduction="none").mean(1)
    losses = torch.stack([losses, F.cross_entropy(scores, torch.tensor(labels), reduction="none")]).sum(0)
    row = result.history[0]
    assert row["train_loss"] * 18 + row["val_loss"] * 6 == pytest.approx(losses.sum().item(), rel=1e-4)
    (one, *_) = load(tmp_path / "run").predict({"x": given["x"][:2]})
    assert list(one.answers) == ["doubled", "scores"]
    np.testing.assert_allclose(one.answers["doubled"].value, wide[0].detach().numpy(), atol=1e-5)


def test_an_output_without_a_target_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The graph's own output gets the data's target, wherever it is returned."""
    path = edited(tmp_path, "doubled, ORIGINAL")
    np.savez(tmp_path / "data.npz", **data(label=np.arange(24) % 3))
    words = ["train", str(path), "--data", str(tmp_path / "data.npz"), "--epochs", "1", "--out", str(tmp_path / "run")]
    assert run([*words, "--device", "cpu"]) == 0
    note = "note: not trained, since no column is its target: output doubled -> --target doubled=COLUMN"
    assert note in capsys.readouterr().out
    (target,) = json.loads((tmp_path / "run" / "run.json").read_text())["targets"]
    assert (target["output"], target["name"], target["loss"]) == (1, "scores", "cross_entropy")
    np.savez(tmp_path / "new.npz", **data())
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "new.npz")]) == 0
    assert run(["evaluate", str(tmp_path / "run")]) == 0


def test_a_target_of_an_unknown_output_names_those_that_there_are(tmp_path: Path) -> None:
    path = edited(tmp_path, "made, doubled")
    with pytest.raises(OnnxgenError, match="no output 'double' .it has made, doubled"):
        fit(path, data(y=np.zeros((24, 3), np.float32)), target={"double": "y"}, out=tmp_path / "run", **CPU)
