"""Trains a detector that came as an ONNX file, whose graph decodes boxes, and writes it back into that graph.

python samples/detection/tune.py --out build     # a minute on one core
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from PIL import Image

import onnxgen
from onnxgen.heads.reading import find_tail
from onnxgen.reader import read
from onnxgen.training import fit
from onnxgen.training.goals.detection.boxes import Decoder

sys.path.insert(0, str(Path(__file__).resolve().parent))
from make_onnx import CLASSES, draw, make


def write(folder: Path, part: str, count: int, seed: int) -> None:
    """Write drawn images with YOLO's labels."""
    images, boxes = draw(count, seed)
    for name in ("images", "labels"):
        (folder / name / part).mkdir(parents=True, exist_ok=True)
    for number, (image, rows) in enumerate(zip(images, boxes)):
        pixels = (image.permute(1, 2, 0) * 255).round().byte().numpy()
        Image.fromarray(pixels).save(folder / "images" / part / f"{number:04}.png")
        real = rows[rows[:, 0] >= 0].tolist()
        lines = [f"{c:.0f} {(x1 + x2) / 2} {(y1 + y2) / 2} {x2 - x1} {y2 - y1}\n" for c, x1, y1, x2, y2 in real]
        (folder / "labels" / part / f"{number:04}.txt").write_text("".join(lines))


def main(out: Path, epochs: int, count: int) -> None:
    data = out / "data"
    write(data, "train", count, seed=0)
    write(data, "val", count // 5, seed=1)
    (data / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames: [{', '.join(CLASSES)}]\n")
    make(out / "shapes.onnx")
    tail = find_tail(read(out / "shapes.onnx", onnxgen.Options()))
    # On the command line: onnxgen shapes.onnx --task detection --restore-batchnorm
    options = onnxgen.Options(task="detection", restore_batchnorm=True)
    onnxgen.generate(out / "shapes.onnx", out / "shapes.py", options)
    settings = {"batch_size": 32, "lr": 4e-3, "schedule": "OneCycleLR", "normalize": "0,1"}
    found = fit(out / "shapes.py", data, epochs=epochs, out=out / "run", **settings)
    best = found.history[found.best_epoch]
    print(f"mAP {best['val_map']:.3f}, at an IoU of 0.5 {best['val_map50']:.3f}")
    report = onnxgen.export(out / "shapes.py", weights=found.model, out=out / "tuned.onnx", force=True)
    print(f"{report.method}: {len(report.changed)} tensors changed")
    images, _ = draw(20, seed=2)
    whole = onnxruntime.InferenceSession(out / "tuned.onnx").run(None, {"images": images.numpy()})[0]
    with torch.no_grad():
        boxes = Decoder(tail)(found.model(images)).boxes
    print(f"boxes in onnxruntime differ by {np.abs(whole[:, :4].swapaxes(1, 2) - boxes.numpy()).max():.0e} pixels")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--count", type=int, default=1500)
    given = parser.parse_args()
    main(given.out, given.epochs, given.count)
