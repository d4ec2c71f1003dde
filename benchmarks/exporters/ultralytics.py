"""Ultralytics: YOLO v3 to 26 and RT-DETR, narrowed, for its tasks, by the options of its export.

The networks are built of the yaml files that the package ships, so nothing is downloaded. Where torchvision does not
load (its wheels need the torch that they were built for, with CUDA), a stand-in takes its place: it has one function,
nms, which raises. Nothing but `nms=True` asks for it; networks for rotated boxes bring an NMS of their own.

Untrained networks this deep give the same numbers whatever they see, so that rounding decides what they choose. So
their norms have the statistics of a few pictures of noise, as training would leave them.
"""

from __future__ import annotations

import os
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.exporters.sources import scratch

REQUIREMENTS = ["torch==2.13.0", "ultralytics", "onnx", "onnxruntime", "onnxslim"]
SCALE = [0.33, 0.125, 1024]  # depth, width, and the most channels, for those networks that have scales
TASKS = ("", "-seg", "-pose", "-obb", "-cls")
# by a file's name: the yaml file in the package
NETS = {
    "v3_tiny": "yolov3-tiny", "v5": "yolov5", "v6": "yolov6", "v8_ghost": "yolov8-ghost", "v8_p2": "yolov8-p2",
    "v8_world": "yolov8-worldv2", "v8_rtdetr": "yolov8-rtdetr", "v9": "yolov9t", "v10": "yolov10n", "11": "yolo11",
    "11_seg": "yolo11-seg", "11_pose": "yolo11-pose", "11_obb": "yolo11-obb", "11_cls": "yolo11-cls", "12": "yolo12",
    "12_seg": "yolo12-seg", "12_cls": "yolo12-cls", "26_sem": "yolo26-sem", "26_depth": "yolo26-depth",
    "rtdetr": "rtdetr-l", "rtdetr_resnet": "rtdetr-resnet50",
}  # fmt: skip
NETS |= {f"v8{task}".replace("-", "_"): f"yolov8{task}" for task in TASKS}
NETS |= {f"26{task}".replace("-", "_"): f"yolo26{task}" for task in TASKS}
DECODER = ["nc", 64, 20, 4, 4, 2]  # of RT-DETR: width, queries, points, heads and layers
WIDE = {"12": 0.25, "12_seg": 0.25, "12_cls": 0.25, "v8_world": 0.25}  # whose heads of attention are of fixed widths
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "v8_unsimplified": ("v8", {"simplify": False}),
    "v8_dynamic": ("v8", {"dynamic": True}),
    "v8_batch2": ("v8", {"batch": 2}),
    "v8_oblong": ("v8", {"imgsz": (64, 96)}),
    "v8_opset12": ("v8", {"opset": 12}),
    "v8_half": ("v8", {"half": True}),
    "v8_int8": ("v8", {"quantize": 8}),
    "11_seg_int8": ("11_seg", {"quantize": 8}),
    "v8_nms": ("v8", {"nms": True, "conf": 0.01}),
    "v8_obb_nms": ("v8_obb", {"nms": True, "conf": 0.01}),
    "v8_seg_dynamic": ("v8_seg", {"dynamic": True}),
    "v8_cls_dynamic": ("v8_cls", {"dynamic": True}),
    "11_pose_dynamic": ("11_pose", {"dynamic": True, "simplify": False}),
    "11_obb_nms_dynamic": ("11_obb", {"nms": True, "conf": 0.01, "dynamic": True, "batch": 2}),
    "12_dynamic": ("12", {"dynamic": True}),
    "26_dynamic": ("26", {"dynamic": True}),
    "26_half": ("26", {"half": True}),
    "26_seg_dynamic": ("26_seg", {"dynamic": True}),
    # nms=False is the head that needs none: of 300 boxes, the best
    "26_best": ("26", {"nms": False, "imgsz": 160}),
    "26_best_dynamic": ("26", {"nms": False, "dynamic": True}),
    "26_seg_best": ("26_seg", {"nms": False}),
    "26_pose_best": ("26_pose", {"nms": False}),
    "26_obb_best": ("26_obb", {"nms": False}),
    "v10_best": ("v10", {"nms": False}),
    "rtdetr_dynamic": ("rtdetr", {"dynamic": True}),
}


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each network with the export's own defaults, and some with its options."""
    for name in NETS:
        yield name, partial(_export, name, {})
    for name, (net, options) in OPTIONS.items():
        yield name, partial(_export, net, options)


def _export(name: str, options: dict[str, Any], path: Path) -> None:
    os.environ |= {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
    with scratch() as folder:
        os.environ["YOLO_CONFIG_DIR"] = str(folder)
        _torchvision()
        import torch
        from ultralytics import RTDETR, YOLO, YOLOWorld

        torch.manual_seed(0)
        source = folder / f"{path.stem}_net.yaml"
        _narrowed(name, source)
        made = (RTDETR if "rtdetr" in name else YOLOWorld if "world" in name else YOLO)(str(source))
        _see_noise(made.model)
        if options.get("quantize"):
            options = {**options, "data": str(_pictures(folder))}
        before = Path.cwd()
        os.chdir(folder)  # it writes beside itself
        try:
            written = made.export(**{"format": "onnx", "imgsz": 64, **options})
        finally:
            os.chdir(before)
        shutil.move(folder / written, path)


def _see_noise(network: Any) -> None:
    """Give the BatchNorms their statistics; all else stays as for inference."""
    import torch

    norms = [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    before = norms[0].momentum
    network.eval()
    for norm in norms:
        norm.train().momentum = None  # the mean of what it sees, from the first picture on
    with torch.no_grad():
        network(torch.randn(16, 3, 64, 64))
    for norm in norms:
        norm.eval().momentum = before


def _narrowed(name: str, path: Path) -> None:
    """The yaml file of the package with few classes, channels, layers and queries."""
    import ultralytics
    from ultralytics.utils import YAML

    shipped = Path(ultralytics.__file__).parent / "cfg" / "models"
    net = YAML.load(next(shipped.rglob(f"{NETS[name]}.yaml")))
    net["nc"] = net["nc"] if "world" in name else 5  # its words are fixed
    if "width_multiple" in net:
        net["width_multiple"] = SCALE[1]
    elif "scales" in net and not name.startswith("rtdetr"):
        net["scales"] = {"n": [SCALE[0], WIDE.get(name, SCALE[1]), SCALE[2]]}
    for layer in net["backbone"] + net["head"]:
        if layer[2] == "RTDETRDecoder":
            layer[3] = DECODER
        elif name.startswith("rtdetr"):
            layer[3] = [_eighth(each) for each in layer[3]]
    YAML.save(path, net)


def _pictures(folder: Path) -> Path:
    """Four pictures of noise with a box each, to calibrate by."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for each in ("images", "labels"):
        (folder / "data" / each).mkdir(parents=True)
    for i in range(4):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(folder / "data" / "images" / f"{i}.png")
        (folder / "data" / "labels" / f"{i}.txt").write_text("0 0.3 0.3 0.7 0.3 0.7 0.7 0.3 0.7\n", encoding="utf-8")
    names = "".join(f"  {i}: '{i}'\n" for i in range(5))
    text = f"path: {folder / 'data'}\ntrain: images\nval: images\nnames:\n{names}"
    (folder / "data.yaml").write_text(text, encoding="utf-8")
    return folder / "data.yaml"


def _eighth(number: Any) -> Any:
    return number // 8 if isinstance(number, int) and number >= 32 else number


def _torchvision() -> None:
    """Put the stand-in in its place, unless torchvision itself can be imported."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for each in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
            del sys.modules[each]
        whole, ops = types.ModuleType("torchvision"), types.ModuleType("torchvision.ops")
        whole.ops, ops.nms = ops, _no_nms  # type: ignore[attr-defined]
        sys.modules |= {"torchvision": whole, "torchvision.ops": ops}


def _no_nms(*given: Any) -> Any:
    raise RuntimeError("torchvision's nms does not load with this torch")
