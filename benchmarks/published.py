"""Make the table of networks that no library of `benchmarks.architectures` has (`onnxgen/identify/published.txt`).

    python -m benchmarks.published OUT [--deployed FOLDER]

The detectors are built from the definitions of `ultralytics`, if that is installed; only their backbone and neck are in
the table, because their heads depend on the number of classes and on what an export decodes. The others are learned
from files that packages of PyPI contain (`samples/deployed`): FOLDER has a folder for each package.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.tracing import steps_of_module
from onnxgen.errors import OnnxgenError
from onnxgen.identify.reading import steps_of
from onnxgen.identify.steps import FEWEST_LAYERS, Network, digest, layers, weights_digest
from onnxgen.identify.table import Entry, written

DEPTHS_OF_A_FILE = (0, 1, 2)
DEPTH_OF_A_HEAD = 4  # boxes of these detectors: three convolutions, and the expectation of a distribution
SCALES = {
    "yolov3{}": ("", "-tiny", "-spp"),
    "yolov5{}": "nsmlx",
    "yolov5{}-p6": "nsmlx",
    "yolov6{}": "nsmlx",
    "yolov8{}": "nsmlx",
    "yolov8{}-p2": "nsmlx",
    "yolov8{}-p6": "nsmlx",
    "yolov8{}-cls": "nsmlx",
    "yolov8{}-seg": "nsmlx",
    "yolov8{}-pose": "nsmlx",
    "yolov9{}": "tsmce",
    "yolov10{}": "nsmblx",
    "yolo11{}": "nsmlx",
    "yolo11{}-seg": "nsmlx",
    "yolo11{}-pose": "nsmlx",
    "yolo11{}-cls": "nsmlx",
    "yolo12{}": "nsmlx",
}
FILES = {  # name, and the files of packages that are this network
    "PP-OCR_mobile_v2.0_direction_classifier": ["rapidocr-onnxruntime/ch_ppocr_mobile_v2.0_cls_infer.onnx"],
    "PP-OCRv4_mobile_recogniser": ["rapidocr-onnxruntime/ch_PP-OCRv4_rec_infer.onnx"],
    "PP-OCRv4_mobile_detector": ["rapidocr-onnxruntime/ch_PP-OCRv4_det_infer.onnx"],
    "Basic_Pitch": ["basic-pitch/nmp.onnx"],
    "Silero_VAD": [
        "silero-vad/silero_vad.onnx",
        "silero-vad/silero_vad_16k_sequence.onnx",
        "silero-vad/silero_vad_op18_ifless.onnx",
        "silero-vad/silero_vad_openvino_16k.onnx",
        "silero-vad/silero_vad_half.onnx",
        "silero-vad/silero_vad_16k_op15.onnx",
    ],
    "AECMOS": [
        "speechmos/Run_1663915512_Stage_0.onnx",
        "speechmos/Run_1663829550_Stage_0.onnx",
        "speechmos/Run_1668423760_Stage_0.onnx",
    ],
    "DNSMOS_P.835": [
        "speechmos/sig_bak_ovr.onnx",
        "speechmos/sig_bak_ovr_2.onnx",
        "speechmos/sig.onnx",
        "speechmos/bak_ovr.onnx",
    ],
    "DNSMOS_P.808": ["speechmos/model_v8.onnx"],
    "PLCMOS_v2": ["speechmos/plcmos_v2.onnx"],
    "ddddocr_recogniser": ["ddddocr/common.onnx"],
    "ddddocr_recogniser_(old)": ["ddddocr/common_old.onnx"],
    "ddddocr_detector": ["ddddocr/common_det.onnx"],
}


def rows(network: Network, name: str, depths: tuple[int, ...]) -> Iterator[Entry]:
    """Yield a row for each body of a network, without a head of so many layers."""
    for depth in depths:
        body = network.body(depth)
        if layers(body) >= FEWEST_LAYERS:
            yield Entry(digest(body), weights_digest(body), layers(body), "published", (name,))


def detectors() -> Iterator[Entry]:
    from ultralytics.nn.tasks import ClassificationModel, DetectionModel, PoseModel, SegmentationModel

    kinds = {"cls": ClassificationModel, "seg": SegmentationModel, "pose": PoseModel}
    for family, scales in SCALES.items():
        for scale in scales:
            name = family.format(scale)
            kind = name.rpartition("-")[2]
            model = kinds.get(kind, DetectionModel)(f"{name}.yaml", verbose=False).eval()
            for part in model.modules():
                if hasattr(part, "export"):
                    part.export, part.format = True, "onnx"
            network = steps_of_module(model, torch.zeros(1, 3, 128, 128))
            written_as = name.replace("yolov", "YOLOv").replace("yolo1", "YOLO1")
            yield from rows(network, written_as, (1,) if kind == "cls" else (DEPTH_OF_A_HEAD,))


def files(folder: Path) -> Iterator[Entry]:
    for name, parts in FILES.items():
        for part in parts:
            try:
                yield from rows(steps_of(folder / part).network, name, DEPTHS_OF_A_FILE)
            except OnnxgenError as error:
                print(f"{part}: {error}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--deployed", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    entries = list(detectors()) + (list(files(given.deployed)) if given.deployed else [])
    unique = list(dict.fromkeys(entries))
    given.out.write_text(
        written(unique, [f"ultralytics {importlib.metadata.version('ultralytics')}"]), encoding="utf-8"
    )
    print(f"{len(unique)} bodies of {len({entry.names for entry in unique})} networks", file=sys.stderr)


if __name__ == "__main__":
    main()
