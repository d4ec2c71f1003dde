"""The gallery of real networks: what is in the ONNX file, and the classes that come out.

    python -m docs.gallery [FOLDER]      default: ../shared/models

The files are public ones under a free licence; they are not part of the repository. FOLDER holds them and a
`manifest.json` that says where each is from.
"""

from __future__ import annotations

import ast
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxgen.options import Options
from onnxgen.pipeline import build

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "GALLERY.md"
FOLDER = ROOT.parent / "shared" / "models"
LINES = 60  # of the classes of one network
NETWORKS = {
    "burn/mnist.onnx": "A small CNN",
    "ort/java/testdata/cnn_mnist_pytorch.onnx": "A CNN by an early PyTorch",
    "ort/winml/test/collateral/models/mnist.onnx": "A CNN by CNTK",
    "tract/keras-tract-tf2/example.onnx": "A Keras network",
    "ort/nhwc_conv_clip_relu.onnx": "A convolution in channels-last order",
    "mujoco/go1_policy.onnx": "A policy that makes a robot dog walk",
    "dtln/model_1.onnx": "Noise suppression with two LSTMs",
    "silero/silero_vad_op18_ifless.onnx": "Voice detection with a recurrent state",
    "yunet/yunet_n_320_320.onnx": "A face detector",
    "ultraface/version-RFB-320_simplified.onnx": "A face detector with dilated branches",
    "ppocr/cls-model.onnx": "A MobileNet by PaddlePaddle",
    "ort/transformers_test/gpt2_megatron.onnx": "A GPT-2 with past keys and values",
}
HEAD = """# Gallery

Twelve real networks: the operators of the file, and the classes that onnxgen writes. A command makes this page from the
files: `python -m docs.gallery`. Long networks are cut.
"""


def page(folder: Path) -> str:
    """The page, in Markdown."""
    known = {entry["file"]: entry for entry in json.loads((folder / "manifest.json").read_text(encoding="utf-8"))}
    parts = [_network(folder, known[name], title) for name, title in NETWORKS.items()]
    return "\n".join([HEAD, *parts])


def _network(folder: Path, entry: dict[str, Any], title: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generated = build(folder / entry["file"], Options(), Path("model.py"))
    operators = ", ".join(
        f"{count} {name}" for name, count in sorted(entry["ops"].items(), key=lambda i: (-i[1], i[0]))
    )
    lines = "\n\n\n".join(_classes(generated.source)).split("\n")
    cut = [f"# {len(lines) - LINES} more lines"] if len(lines) > LINES else []
    return "\n".join(
        [
            f"## {title}",
            "",
            f"`{entry['path']}` of `{entry['repo']}`, written by {entry['exporter']}.",
            f"{entry['nodes']} nodes: {operators}.",
            "",
            "```python",
            *lines[:LINES],
            *cut,
            "```",
            "",
        ]
    )


def _classes(source: str) -> Iterator[str]:
    """The text of each class without the method that loads the weights."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and any(isinstance(base, ast.Attribute) for base in node.bases):
            loads = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "from_pretrained"]
            end = loads[0].decorator_list[0].lineno - 1 if loads else node.end_lineno
            yield "\n".join(lines[node.lineno - 1 : end]).rstrip()


if __name__ == "__main__":
    PAGE.write_text(page(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER), encoding="utf-8")
