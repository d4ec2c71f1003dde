"""Networks of the zoo: exported by PyTorch, generated, trained a few steps, written back, run in onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

import onnxgen
from onnxgen.export.report import BACK
from tests.export.trained import blank, stepped
from tests.support.real import imported
from tests.zoo import ZOO
from tests.zoo.export import Case, export

WHOLE = bool(os.environ.get("ONNXGEN_WHOLE_ZOO"))
LARGE = {"resnet50", "efficientnet", "convnext", *(name for name in ZOO if name.startswith("hf_"))}
DYNAMO = {(False, "resnet18"), (False, "vit"), (False, "lstm_tagger"), (True, "resnet18")}
SHARING = {"encoder", "encoder_prenorm"}  # whose equal biases both exporters store once


def cases() -> Iterator[Any]:
    """By default each network in evaluation, and every other small one in training mode; of dynamo's exports, which
    take seconds, three in evaluation and one in training mode."""
    for number, name in enumerate(ZOO):
        for exporter, opset in (("legacy", 17), ("dynamo", 18)):
            for training in (False, True):
                case = Case(exporter, opset, training)
                if exporter == "dynamo":
                    skipped = (training, name) not in DYNAMO
                else:
                    skipped = training and (name in LARGE or number % 2 == 1)
                marks = pytest.mark.skipif(skipped and not WHOLE, reason="only with ONNXGEN_WHOLE_ZOO=1")
                yield pytest.param(name, case, id=f"{name}-{case}", marks=marks)


@pytest.mark.parametrize(("name", "case"), list(cases()))
def test_trained_and_back(name: str, case: Case, tmp_path: Path) -> None:
    entry, path, out = ZOO[name], tmp_path / "m.onnx", tmp_path / "out.onnx"
    if (refusal := entry.refusal(case)) is not None:
        pytest.skip(f"the exporter refuses: {refusal}")
    export(entry, path, case.exporter, case.opset, case.training)
    onnxgen.generate(path, tmp_path / "model.py")
    model: nn.Module = imported(tmp_path / "model.py").Model.from_pretrained()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stepped(model, *entry.inputs(4))
    report = onnxgen.export(tmp_path / "model.py", weights=model, out=out)
    assert report.method == BACK and report.changed
    assert report.verified is not None and report.verified.mode == ("training" if _trains(path) else "eval")
    assert all(run.oracle == "onnxruntime" for run in report.verified.runs)
    assert bool(report.added) <= (name in SHARING)
    if not report.added:
        assert blank(onnx.load(out)) == blank(onnx.load(path))
    if not case.training:
        inputs = entry.inputs(3)
        with torch.no_grad():
            found = model(*inputs)
        feeds = {name: x.numpy() for name, x in zip(entry.input_names, inputs, strict=True)}
        for ours, theirs in zip(
            found if isinstance(found, tuple) else (found,), ort.InferenceSession(out).run(None, feeds), strict=True
        ):
            scale = max(float(np.abs(theirs).max()), 1.0)
            np.testing.assert_allclose(ours.numpy(), theirs, 1e-3, 1e-5 * scale)


def _trains(path: Path) -> bool:
    """Whether a file records training mode."""
    nodes = onnx.load(path).graph.node
    norms = (a.i for n in nodes if n.op_type == "BatchNormalization" for a in n.attribute if a.name == "training_mode")
    return any(norms) or any(n.op_type == "Dropout" for n in nodes)
