"""Files after a head swap, compared with the original node by node, and with the module in onnxruntime."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn

import onnxgen
from onnxgen.export import ExportReport
from onnxgen.export.report import BACK
from onnxgen.surgery.ports import example_for, outputs
from onnxgen.training import open_model, replace_head


def swapped(folder: Path, classes: int, name: str = "model", **options: Any) -> tuple[nn.Module, ExportReport]:
    """Replace the head of `<name>.py`, generated from m.onnx, and export to out.onnx. The new head is random."""
    model = open_model(folder / f"{name}.py").eval()
    before = {key: value.shape for key, value in model.state_dict().items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        replace_head(model, classes, init=lambda rows: nn.init.normal_(rows, std=0.3), **options)
        for key, value in model.state_dict().items():  # biases of new classes are zeros, and gains are ones
            if value.shape != before[key]:
                value += 0.1 * torch.rand(value.shape).to(value.dtype)
    return model, onnxgen.export(folder / f"{name}.py", folder / "m.onnx", model, folder / "out.onnx")


def assert_only_the_head_differs(folder: Path, report: ExportReport, rewired: Collection[str] = ()) -> None:
    """Nodes, initializers and all else but what `report` names have their very bytes; `rewired`: outputs of nodes."""
    assert report.method == BACK and report.verified is not None and report.verified.agrees
    new, old = onnx.load(folder / "out.onnx"), onnx.load(folder / "m.onnx")
    named = {*report.resized, *report.changed, *rewired}
    for model in (new, old):
        drop = [n for n in model.graph.node if named & set(n.output)]
        assert all(n.op_type == "Constant" or set(n.output) & set(rewired) for n in drop)
        for node in drop:
            model.graph.node.remove(node)
    assert [n.SerializeToString() for n in new.graph.node] == [n.SerializeToString() for n in old.graph.node]
    kept = [{t.name: t.SerializeToString() for t in m.graph.initializer if t.name not in named} for m in (new, old)]
    assert kept[0] == kept[1]
    for field in ("input", "output", "value_info"):
        pairs = zip(getattr(new.graph, field), getattr(old.graph, field), strict=True)
        for ours, theirs in pairs:
            for dim, before in zip(ours.type.tensor_type.shape.dim, theirs.type.tensor_type.shape.dim, strict=True):
                before.CopyFrom(dim)
            assert ours == theirs
    for model in (new, old):
        del model.graph.node[:], model.graph.initializer[:]
    assert new.SerializeToString() == old.SerializeToString()


def assert_computes_the_same(folder: Path, model: nn.Module, classes: int, output: int = 0) -> None:
    """The file declares the number of classes and gives the module's scores, to 1e-5."""
    path = folder / "out.onnx"
    onnx.checker.check_model(path, full_check=True)
    example = example_for(model)
    with torch.no_grad():
        wanted = outputs(model(*example))
    session = ort.InferenceSession(path)
    feeds = {port.name: x.numpy() for port, x in zip(session.get_inputs(), example, strict=True)}
    got = session.run(None, feeds)
    assert classes in session.get_outputs()[output].shape
    for ours, theirs in zip(wanted, got, strict=True):
        assert tuple(ours.shape) == theirs.shape
        scale = max(float(np.abs(theirs).max()), 1.0)
        np.testing.assert_allclose(ours.numpy(), theirs, 1e-5, 1e-5 * scale)
