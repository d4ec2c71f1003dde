"""What the samples of training share: where data lies, commands that are shown and run, what onnxruntime computes."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
Row = tuple[str, ...]


def check_data(parser: argparse.ArgumentParser, folder: Path) -> None:
    """End with a message if a folder has no idx files."""
    if not list(folder.glob("train-images-idx3-ubyte*")):
        parser.error(
            f"no idx files (train-images-idx3-ubyte.gz and three more) in {folder}: give their folder with --data"
        )


def onnxgen(*arguments: str | Path) -> None:
    """Show a command and run it; the script ends where it fails, with its code."""
    words = [str(a) for a in arguments]
    print(f"\n$ onnxgen {shlex.join(words)}", flush=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-m", "onnxgen", *words], env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        sys.exit(done.returncode)


def run_onnx(path: Path, images: np.ndarray, batch: int = 500) -> np.ndarray:
    """The first output of an ONNX file with one input, computed by onnxruntime; a row an image."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    parts = [session.run(None, {name: images[i : i + batch]})[0] for i in range(0, len(images), batch)]
    return np.concatenate(parts)


def run_torch(model: Path, weights: Path | None, images: np.ndarray, batch: int = 500) -> np.ndarray:
    """What a generated module computes with a checkpoint (None: the weights that it came with); a row an image."""
    import torch

    from onnxgen.training import open_model

    network = open_model(model, weights).eval()
    with torch.inference_mode():
        return torch.cat([network(x) for x in torch.from_numpy(images).split(batch)]).numpy()


def compare(name: str, onnx: Path, model: Path, weights: Path | None, images: np.ndarray, labels: np.ndarray) -> Row:
    """A row of the table of accuracies: the module in PyTorch, the file in onnxruntime, where they say the same."""
    torch_says, onnx_says = run_torch(model, weights, images).argmax(1), run_onnx(onnx, images).argmax(1)
    accuracies = (f"{(said == labels).mean():.2%}" for said in (torch_says, onnx_says))
    return (name, *accuracies, f"{(torch_says == onnx_says).sum():,} of {len(labels):,}")


COMPARED = ("network", "PyTorch", "onnxruntime", "same class")


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table, its columns aligned."""
    cells = [[str(c) for c in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
