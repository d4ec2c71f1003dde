"""Trains detectors with onnxgen, one also by hand, and writes them back: python -m benchmarks.detection [NAME ...]

Names: shapes (the sample's own network, by hand and generated, three seeds), yolov8 (a narrow one of tests/zoo, from
fresh weights), yunet and ultraface (published weights, in ONNXGEN_SHARED; on drawn balls), bits (a file with unchanged
weights computes the same bits). Prints mAP at an IoU of 0.5, and over 0.5 to 0.95, of the validation part.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from onnxgen import Options, export, generate
from onnxgen.heads.reading import find_tail
from onnxgen.reader import read
from onnxgen.training import fit
from onnxgen.training.goals.detection.boxes import Decoder
from onnxgen.training.goals.detection.goal import MeanAveragePrecision
from onnxgen.training.goals.detection.loss import DetectionLoss
from samples.detection.make_onnx import Shapes, draw, make
from samples.detection.tune import write
from tests.conftest import SHARED
from tests.heads import small
from tests.zoo import detectors

SEEDS = (0, 1, 2)
COUNT, EPOCHS, RATE, BATCH = 600, 8, 4e-3, 32  # of the shapes
REAL = {  # file, height and width, normalisation as published
    "yunet": ("yunet/yunet_n_320_320.onnx", (320, 320), "none"),
    "ultraface": ("ultraface/version-RFB-320_simplified.onnx", (240, 320), "0.498,0.502"),
}
Figures = dict[str, float]


def maps_of(network: Shapes, images: Tensor) -> list[Tensor]:
    """Return the raw maps of the sample's network: boxes and classes of each level."""
    fine = network.fine(network.stem(images))
    head = network.detect
    pairs = zip((fine, network.coarse(fine)), head.box, head.classes)
    return [layer(x) for x, box, classes in pairs for layer in (box, classes)]


def by_hand(seed: int, file: Path) -> Figures:
    """Train the sample's network with a loop, and the loss and the schedule of the other run."""
    torch.manual_seed(0)
    network = Shapes()
    decoder = Decoder(find_tail(read(file, Options())))
    images, boxes = draw(COUNT, seed=0)
    torch.manual_seed(seed)
    steps = EPOCHS * -(-COUNT // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    loss, best = DetectionLoss(decoder), {"map": 0.0, "map50": 0.0}
    for _ in range(EPOCHS):
        network.train()
        for rows in torch.randperm(COUNT).split(BATCH):
            optimizer.zero_grad()
            loss.loss(maps_of(network, images[rows]), {"boxes": boxes[rows]}).backward()
            optimizer.step()
            schedule.step()
        best = max(best, evaluated(network.eval(), decoder), key=lambda found: found["map"])
    return best


@torch.no_grad()
def evaluated(network: Shapes, decoder: Decoder) -> Figures:
    images, boxes = draw(COUNT // 5, seed=1)
    metric = MeanAveragePrecision(decoder)
    metric.update(maps_of(network, images), {"boxes": boxes})
    return {name: value.item() for name, value in metric.compute().items()}


def by_onnxgen(module: Path, data: Path, out: Path, **given: Any) -> tuple[Figures, Any]:
    result = fit(module, data, out=out, device="cpu", workers=0, show="nothing", **given)
    row = result.history[result.best_epoch]
    return {name: row[f"val_{name}"] for name in ("map", "map50")}, result


def shapes(folder: Path) -> Iterator[str]:
    file, data = folder / "shapes.onnx", folder / "shapes"
    make(file)
    for part, count, seed in (("train", COUNT, 0), ("val", COUNT // 5, 1)):
        write(data, part, count, seed)
    (data / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [circle, square, triangle]\n")
    generate(file, folder / "shapes.py", Options(task="detection", restore_batchnorm=True))
    given = {"epochs": EPOCHS, "lr": RATE, "batch_size": BATCH, "schedule": "OneCycleLR", "normalize": "0,1"}
    for seed in SEEDS:
        begun = time.process_time()
        found, _ = by_onnxgen(folder / "shapes.py", data, folder / f"run{seed}", seed=seed, **given)
        middle = time.process_time()
        hand = by_hand(seed, file)
        yield row(f"shapes, seed {seed}, onnxgen", found, middle - begun)
        yield row(f"shapes, seed {seed}, by hand", hand, time.process_time() - middle)


def balls(folder: Path, size: tuple[int, int], count: int = 80) -> None:
    """Write pictures with one to three balls, with YOLO's labels."""
    drawn = np.random.default_rng(0)
    height, width = size
    for number in range(count + count // 4):
        part = "train" if number < count else "val"
        image = Image.fromarray(drawn.integers(0, 80, (height, width, 3), np.uint8))
        pen, lines = ImageDraw.Draw(image), []
        for _ in range(drawn.integers(1, 4)):
            half = int(drawn.integers(12, 48))
            x, y = (int(drawn.integers(half, side - half)) for side in (width, height))
            pen.ellipse((x - half, y - half, x + half, y + half), tuple(drawn.integers(120, 256, 3).tolist()))
            lines.append(f"0 {x / width} {y / height} {2 * half / width} {2 * half / height}\n")
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True, exist_ok=True)
        image.save(folder / "images" / part / f"{number:03}.png")
        (folder / "labels" / part / f"{number:03}.txt").write_text("".join(lines))
    (folder / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [ball]\n")


def real(name: str, folder: Path) -> Iterator[str]:
    source, size, normalize = REAL[name]
    file = folder / f"{name}.onnx"
    file.write_bytes((SHARED / "models" / source).read_bytes())
    balls(folder / name, size)
    generate(file, folder / f"{name}.py", Options(task="detection", dynamic_batch=True))
    yield from trained(name, folder, folder / name, epochs=6, batch_size=8, lr=1e-3, normalize=normalize)


def zoo(folder: Path) -> Iterator[str]:
    torch.manual_seed(0)
    small.export(detectors.yolov8(), folder / "yolov8.onnx", size=(64, 64))
    write(folder / "drawn", "train", COUNT, 0)
    write(folder / "drawn", "val", COUNT // 5, 1)
    generate(folder / "yolov8.onnx", folder / "yolov8.py", Options(task="detection", restore_batchnorm=True))
    given = {"epochs": 4 * EPOCHS, "batch_size": BATCH, "lr": 5e-3, "schedule": "OneCycleLR", "normalize": "0,1"}
    yield from trained("yolov8", folder, folder / "drawn", **given)


def trained(name: str, folder: Path, data: Path, **given: Any) -> Iterator[str]:
    begun = time.process_time()
    found, result = by_onnxgen(folder / f"{name}.py", data, folder / f"run-{name}", **given)
    export(folder / f"{name}.py", weights=result.model, out=folder / f"{name}-tuned.onnx", force=True)
    yield row(f"{name}, onnxgen", found, time.process_time() - begun)


def bits(folder: Path) -> Iterator[str]:
    """Cut, write the same weights back, and compare every output with the original's."""
    make(folder / "shapes.onnx")
    for name in ("yolov8", "yolov5", "yolov10", "yolo11"):
        torch.manual_seed(0)
        small.export(getattr(detectors, name)(), folder / f"{name}.onnx", size=(64, 64))
    for name, (source, *_) in REAL.items() if SHARED.is_dir() else ():
        (folder / f"{name}.onnx").write_bytes((SHARED / "models" / source).read_bytes())
    for file in sorted(folder.glob("*.onnx")):
        module, out = file.with_suffix(".py"), folder / "again" / file.name
        out.parent.mkdir(exist_ok=True)
        generate(file, module, Options(task="detection"))
        export(module, out=out)
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 3
        first, second = (onnxruntime.InferenceSession(path, quiet) for path in (file, out))
        given = first.get_inputs()[0]
        shape = [size if isinstance(size, int) else 2 for size in given.shape]
        x = {given.name: np.random.default_rng(0).random(shape, np.float32)}
        same = [a.tobytes() == b.tobytes() for a, b in zip(first.run(None, x), second.run(None, x))]
        yield f"| {file.stem} | {sum(same)} of {len(same)} outputs equal in every bit | | |"


def row(name: str, found: Figures, seconds: float) -> str:
    return f"| {name} | {found['map50']:.3f} | {found['map']:.3f} | {seconds:.0f} |"


def main() -> None:
    print("| detector | mAP50 | mAP | s |\n|---|---|---|---|", flush=True)
    for name in sys.argv[1:] or ("shapes", "yolov8", *REAL, "bits"):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            made = {"shapes": shapes, "yolov8": zoo, "bits": bits}
            for line in made[name](folder) if name in made else real(name, folder):
                print(line, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
