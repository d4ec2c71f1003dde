"""Small networks with data of their kind, and a run of some: what a command is asked about."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import soundfile
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import onnxgen
from onnxgen.heads.reading import find_tail
from onnxgen.reader import read
from onnxgen.training import fit
from samples.tasks.scenes import draw_scenes, write_coco, write_masks, write_voc, write_yolo
from tests.heads.small import Small, export, yolox
from tests.training.small import network
from tests.training.texts import SENTENCES, size, tokenizer

QUIET: dict[str, Any] = {"show": "nothing", "workers": 0, "device": "cpu", "loggers": "none", "epochs": 1}
NAMES = "abc"


def _table(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [[*(f"{v:.3f}" for v in rng.normal(size=4)), NAMES[n % 3]] for n in range(40)]
    with open(folder / "d.csv", "w", newline="") as file:
        csv.writer(file).writerows([[*"pqrs", "target"], *rows])
    network(folder, x=("float32", ["n", 4]))
    np.savez(folder / "d.npz", x=rng.normal(size=(40, 4)).astype(np.float32), y=np.arange(40) % 3)


def _images(folder: Path) -> None:
    rng, listed = np.random.default_rng(0), list[tuple[str, str]]()
    for n in range(18):
        file = folder / "d" / NAMES[n % 3] / f"{n}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(file)
        listed.append((f"d/{NAMES[n % 3]}/{n}.png", NAMES[n % 3]))
    (folder / "list.csv").write_text("file,label\n" + "".join(f"{file},{name}\n" for file, name in listed))
    (folder / "list.jsonl").write_text("".join(json.dumps({"image": f, "label": n}) + "\n" for f, n in listed))
    network(folder, x=("float32", ["n", 3, 8, 8]))


def _sounds(folder: Path) -> None:
    rng, listed = np.random.default_rng(0), list[str]()
    for n in range(12):
        file = folder / "d" / NAMES[n % 3] / f"{n}.wav"
        file.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(file, rng.uniform(-0.9, 0.9, 96).astype(np.float32), 800, subtype="PCM_16")
        listed.append(f"d/{NAMES[n % 3]}/{n}.wav,{NAMES[n % 3]}\n")
    (folder / "list.csv").write_text("sound,label\n" + "".join(listed))
    network(folder, x=("float32", ["n", 96]))


def _texts(folder: Path) -> None:
    file = tokenizer(folder)
    texts = [(SENTENCES[n % len(SENTENCES)], NAMES[n % 3]) for n in range(18)]
    with open(folder / "d.csv", "w", newline="") as opened:
        csv.writer(opened).writerows([("text", "label"), *texts])
    (folder / "d.jsonl").write_text("".join(json.dumps({"text": t, "label": n}) + "\n" for t, n in texts))
    network(folder, ids=("int64", ["n", "t"]), rows=size(file))


def _masks(folder: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {"conv.weight": rng.normal(size=(4, 3, 1, 1)), "conv.bias": rng.normal(size=4)}
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["scores"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 4, "h", "w"])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "small.onnx"
    )
    onnxgen.generate(folder / "small.onnx", folder / "small.py", force=True)
    write_masks(folder / "d", {"train": draw_scenes(6, height=16, width=24), "val": draw_scenes(3, 1, 16, 24)})


def _boxes(folder: Path) -> None:
    torch.manual_seed(0)
    export(Small((4, 1, 3), yolox), folder / "small.onnx")
    tail = find_tail(read(folder / "small.onnx", onnxgen.Options()))
    options = onnxgen.Options(outputs=tail.maps, dynamic_batch=True)
    onnxgen.generate(folder / "small.onnx", folder / "small.py", options)
    parts = {"train": draw_scenes(6, seed=0), "val": draw_scenes(3, seed=1)}
    for name, write in (("d", write_yolo), ("coco", write_coco), ("voc", write_voc)):
        write(folder / name, parts)


MAKE: dict[str, Callable[[Path], None]] = {
    "table": _table,
    "images": _images,
    "sounds": _sounds,
    "texts": _texts,
    "masks": _masks,
    "boxes": _boxes,
}
DATA = {  # what `--data` may name, in the folder of each world
    "table": ("d.csv", "d.npz"),
    "images": ("d", "list.csv", "list.jsonl"),
    "sounds": ("d", "list.csv"),
    "texts": ("d.csv", "d.jsonl"),
    "masks": ("d",),
    "boxes": ("d", "coco", "voc"),
}
GIVEN = {"boxes": ("--task", "detection", "--normalize", "0,1"), "texts": ("--tokenizer", "tokenizer.json")}


def made(folder: Path) -> Path:
    """Make all worlds in a folder: `small.onnx`, `small.py`, data, and `run`, which is trained. Returns the folder."""
    for name, make in MAKE.items():
        (folder / name).mkdir()
        make(folder / name)
        if name != "boxes":
            given = {"tokenizer": folder / name / "tokenizer.json"} if name == "texts" else {}
            fit(folder / name / "small.py", folder / name / DATA[name][0], out=folder / name / "run", **QUIET, **given)
    return folder
