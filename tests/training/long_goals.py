"""Two processes (gloo) train and measure tasks as one process with the global batch does."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.training.distributed_run import train
from tests.training.processes import finish
from tests.training.test_goals_tasks import Corners, Sequences, module

WORDS = np.array(["cab", "ba", "d", "cc"] * 10)
SAME: dict[str, Any] = {"optimizer": "sgd", "lr": 0.02, "epochs": 2, "normalize": "none", "workers": 0, "device": "cpu"}


def task(name: str, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return a module, data, and the settings of a task. The validation part has an odd number of samples."""
    random = np.random.default_rng(0)
    if name == "ctc":
        path = module(Sequences(False), torch.zeros(2, 6, 4), "scores", folder, 1)
        return path, {"x": random.normal(size=(40, 6, 4)).astype(np.float32), "y": WORDS}, {"task": "ctc"}
    if name == "embedding":
        path = module(nn.Sequential(nn.Linear(6, 4)), torch.zeros(2, 6), "vector", folder)
        return path, {"x": random.normal(size=(40, 6)).astype(np.float32), "y": WORDS}, {"task": "embedding"}
    x = random.normal(size=(40, 1, 16, 12)).astype(np.float32)
    path = module(Corners(), torch.zeros(2, 1, 16, 12), "maps", folder)
    if name == "keypoints":
        return path, {"x": x, "keypoints": random.random((40, 2, 2), np.float32)}, {"task": "keypoints"}
    return path, {"x": x, "y": (x[:, 0] > 0).astype(np.int64)}, {}


@pytest.mark.parametrize("name", ["ctc", "embedding", "keypoints", "maps"])
def test_two_processes_measure_what_one_does(name: str, tmp_path: Path) -> None:
    path, columns, given = task(name, tmp_path)
    parts = {f"{c}_{part}": v[rows] for c, v in columns.items() for part, rows in
             (("train", slice(0, 24)), ("val", slice(24, 39)))}  # fmt: skip
    np.savez(tmp_path / "data.npz", **parts)
    rows, outs = [], []
    for devices in (1, 2):
        out = tmp_path / str(devices)
        out.mkdir()
        settings = {**SAME, **given, "batch_size": 8 // devices, "devices": devices}
        if devices == 1:
            train(path, tmp_path / "data.npz", out, settings)
        else:
            run = (sys.executable, "-m", "tests.training.distributed_run")
            finish([*run, str(path), str(tmp_path / "data.npz"), str(out), json.dumps(settings)], tmp_path)
        with open(out / "metrics.csv", newline="") as file:
            rows.append([{k: float(v) for k, v in row.items() if k != "seconds" and v} for row in csv.DictReader(file)])
        outs.append(load_file(out / "end.safetensors"))
    for one, two in zip(*rows, strict=True):
        measured = [key for key in one if key.startswith(("val_", "train_"))]
        assert measured and {k: two[k] for k in measured} == {k: pytest.approx(one[k], rel=1e-3) for k in measured}
    for key, tensor in outs[0].items():
        torch.testing.assert_close(outs[1][key], tensor, atol=1e-5, rtol=1e-4)
