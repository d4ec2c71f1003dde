"""Small networks that carry states from step to step, and what they listen to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import Tensor, nn

RATE, CHUNK, CONTEXT = 8000, 40, 8


class Listener(nn.Module):
    """stream [batch, 48], state [2, batch, 6] and sr [] to a probability [batch, 1] and the next state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.fc = nn.LSTMCell(CHUNK + CONTEXT, 6), nn.Linear(6, 1)

    def forward(self, stream: Tensor, state: Tensor, sr: Tensor) -> tuple[Tensor, Tensor]:
        h, c = self.cell(stream * (sr / RATE), (state[0], state[1]))
        return torch.sigmoid(self.fc(torch.relu(h))), torch.stack([h, c])


class Reader(nn.Module):
    """x [batch, 5], h and c [batch, 6] to scores of 3 classes, hn and cn."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.fc = nn.LSTMCell(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, c = self.cell(x, (h, c))
        return self.fc(h), h, c


def export(network: nn.Module, path: Path, batch: bool = True) -> Path:
    """Write a network as an ONNX file. Without a free `batch` it takes one sample."""
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.4)
    listens = isinstance(network, Listener)
    inputs = ["stream", "state", "sr"] if listens else ["x", "h", "c"]
    outputs = ["speaks", "stateN"] if listens else ["scores", "hn", "cn"]
    n = 2 if batch else 1
    given = (torch.rand(n, 48), torch.rand(2, n, 6), torch.tensor(RATE)) if listens else ()
    given = given or (torch.rand(n, 5), torch.rand(n, 6), torch.rand(n, 6))
    axes = {name: {1 if name in ("state", "stateN") else 0: "batch"} for name in (*inputs, *outputs) if name != "sr"}
    options: dict[str, Any] = {"dynamic_axes": axes if batch else None, "opset_version": 17, "dynamo": False}
    torch.onnx.export(network.eval(), given, path, input_names=inputs, output_names=outputs, **options)
    return path


def calls(folder: Path, sounds: int = 10) -> None:
    """Write sounds of several lengths, and a table that says in which chunks one is loud."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    with (folder / "labels.jsonl").open("w") as table:
        for number in range(sounds):
            steps = int(rng.integers(5, 12))
            loud = rng.random(steps) < 0.5
            wave = rng.uniform(-1, 1, steps * CHUNK) * np.repeat(np.where(loud, 0.9, 0.1), CHUNK)
            wave = wave[: len(wave) - int(rng.integers(CHUNK))]
            soundfile.write(folder / f"{number}.wav", wave, RATE, subtype="PCM_16")
            print(json.dumps({"sound": f"{number}.wav", "speaks": loud.astype(int).tolist()}), file=table)
