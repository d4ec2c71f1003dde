"""Trains a detector that came as an ONNX file, whose graph decodes boxes, and writes it back into that graph.

python samples/detection/tune.py --out build     # half a minute on one core
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

import onnxgen
from onnxgen.heads.reading import find_tail
from onnxgen.reader import read
from onnxgen.training import open_model
from onnxgen.training.goals.detection.decoder import Decoder
from onnxgen.training.goals.detection.loss import DetectionLoss
from onnxgen.training.goals.detection.metrics import MeanAveragePrecision

sys.path.insert(0, str(Path(__file__).resolve().parent))
from make_onnx import draw, make


def main(out: Path, steps: int, batch: int = 32) -> None:
    out.mkdir(parents=True, exist_ok=True)
    make(out / "shapes.onnx")
    tail = find_tail(read(out / "shapes.onnx", onnxgen.Options()))
    options = onnxgen.Options(outputs=tail.maps, restore_batchnorm=True)
    onnxgen.generate(out / "shapes.onnx", out / "shapes.py", options)
    model, loss = open_model(out / "shapes.py"), DetectionLoss(Decoder(tail))
    images, boxes = draw(1500, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps, pct_start=0.1)
    generator, begun = torch.Generator().manual_seed(0), time.process_time()
    model.train()
    for step in range(steps):
        chosen = torch.randint(len(images), (batch,), generator=generator)
        optimizer.zero_grad()
        value = loss.loss(model(images[chosen]), {"boxes": boxes[chosen]})
        value.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {value.item():.3f}, {time.process_time() - begun:.0f} s", flush=True)
    metric, (images, boxes) = MeanAveragePrecision(loss.decoder), draw(300, seed=1)
    with torch.no_grad():
        for start in range(0, len(images), 50):
            metric.update(model.eval()(images[start : start + 50]), {"boxes": boxes[start : start + 50]})
    print(", ".join(f"{name} {float(figure):.3f}" for name, figure in metric.compute().items()))
    report = onnxgen.export(out / "shapes.py", weights=model, out=out / "tuned.onnx", force=True)
    print(f"{report.method}: {len(report.changed)} tensors changed, verified: {report.verified.agrees}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    main(given.out, given.steps)
