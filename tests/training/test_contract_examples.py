"""docs/EXPORT.md shows an example of each kind of input and output: it is what an export writes."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

import pytest

from onnxgen.training.data.preprocessing import Column
from onnxgen.training.runs.contract import CHOSEN, contract
from onnxgen.training.runs.record import Carried, Image, Input, Record, Steps, Target
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "EXPORT.md").read_text(encoding="utf-8")
IMAGE = Image(3, 640, 640, "CHW", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 255.0, (114, 114, 114))
AGE, CITY = Column(40.0, 41.5, 12.25), Column("Rome", categories=("Oslo", "Rome"), onehot=True)
SETTINGS: dict[str, Any] = {
    "max_length": 128,
    "const": {"rate": 16000.0},
    "table": {"inputs": {"features": ("age", "city")}, "columns": {"age": asdict(AGE), "city": asdict(CITY)}},
}
INPUTS = (
    Input("images", "image", "float32", (3, 640, 640), IMAGE),
    Input("features", "features", "float32", (3,), columns=("age", "city")),
    Input("waveform", "audio", "float32", (16000,), rate=16000),
    Input("input_ids", "review", "int64", (128,), columns=("review",), role="input_ids"),
    Input("x", "x", "float32", (5, 4)),
    Input("stream", "call", "float32", (80000,), rate=16000, steps=Steps(0, 512, 64)),
)
FOUND = {
    "boxes": {"output": "output0", "axis": 1, "first": 0, "count": 4, "apply": ""},
    "scores": {"output": "output0", "axis": 1, "first": 4, "count": 2, "apply": ""},
    "objects": None,
    "layout": "centres",
    "shares": False,
}
TARGETS = (
    Target(0, "logits", "label", "cross_entropy", "", 2, 1, ("cat", "dog")),
    Target(1, "tags", "tags", "binary_cross_entropy_with_logits", "", 2, 1, ("red", "round")),
    Target(2, "text", "text", "ctc_loss", "softmax", 0, 2, ("a", "b", "c")),
    Target(3, "heatmap", "keypoints", "heatmaps", "", 0, 1, ()),
    Target(4, "image", "clean", "image", "", 0, 1, (), scale="0.5/0.5/0.5,0.5/0.5/0.5"),
    Target(5, "output0", "boxes", "boxes", "", 2, 1, ("car", "bus"), head={"found": FOUND}),
    Target(6, "last_hidden_state", "pair", "vectors", "", 0, 0, (), head={"pooling": "mean", "mask": "attention_mask"}),
    Target(7, "price", "price", "mse_loss", "", 0, 1, ()),
)
EMPTY: dict[str, Any] = {"versions": {}, "data": "", "parts": {}, "origin": "", "code": "", "onnx": "", "sha256": ""}


@pytest.mark.parametrize("part", ["inputs", "outputs"])
def test_the_page_shows_what_is_written(part: str) -> None:
    states = (Carried("state", "stateN", "float32", (2, 128), 1),)
    facts: dict[str, Any] = {"inputs": INPUTS, "targets": TARGETS, "settings": SETTINGS, "states": states, **EMPTY}
    record = Record("run", "Model", "model.py", **facts)
    wanted = json.loads(json.dumps(contract(record)))[part]
    section = PAGE.split(f"### {part.capitalize()}\n")[1].split("\n### ")[0]
    shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", section, re.DOTALL)]
    assert [one for found in shown for one in found] == wanted
    rows = {*re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)} - {"kind"} - {*FOUND, *CHOSEN, "grid", "names"}
    assert {entry["kind"] for entry in wanted} - {"boxes"} == rows - {"boxes"}, "one for each kind of the table"
