"""What the options that change a network do in one generation, and in a file that records training mode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from onnxgen import Options, verify
from onnxgen.pipeline import generate
from tests.support.real import Run, assert_way_back, imported
from tests.zoo import ZOO
from tests.zoo.export import export


def fixed(name: str, size: int, path: Path, training: bool = False) -> None:
    """Export a network for one batch size alone."""
    entry = replace(ZOO[name], dynamic={}, inputs=lambda batch=2: ZOO[name].inputs(size))
    export(entry, path, "legacy", 17, training)


@pytest.mark.parametrize("flat", [False, True])
def test_all_of_them(flat: bool, tmp_path: Path) -> None:
    fixed("cnn", 1, tmp_path / "m.onnx")
    dropout = {"bn1": 0.1, "fc1": 0.2}
    options = Options(dynamic_batch=True, restore_batchnorm=True, dropout=dropout, flat=flat)
    generated = generate(tmp_path / "m.onnx", tmp_path / "model.py", options)
    report = verify(tmp_path / "m.onnx", tmp_path / "model.py", options=options, integrity=True)
    assert report.agrees and [run.sizes for run in report.runs] == [{"batch": n} for n in (2, 3, 1)]
    module = imported(tmp_path / "model.py")
    model = module.Model.from_pretrained()
    kinds = [type(m) for m in model.modules()]
    assert kinds.count(nn.BatchNorm2d) == 2 and kinds.count(nn.Dropout) == 2
    assert assert_way_back(Run(generated, module, model), tmp_path / "m.onnx")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    nn.functional.nll_loss(model(torch.randn(6, 3, 16, 16)), torch.arange(6)).backward()
    optimizer.step()
    assert all(p.grad is not None and bool(torch.isfinite(p).all()) for p in model.parameters())
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_free_batch_in_training_mode(tmp_path: Path) -> None:
    """BatchNorm then mixes the samples of a batch by intent: held to the file's own batch, and said."""
    fixed("cnn", 4, tmp_path / "m.onnx", training=True)
    options = Options(dynamic_batch=True)
    generated = generate(tmp_path / "m.onnx", tmp_path / "model.py", options)
    assert "BatchNorm records training mode" in "".join(generated.report.notes)
    report = verify(tmp_path / "m.onnx", tmp_path / "model.py", options=options)
    assert (
        report.agrees
        and report.mode == "training"
        and "only the batch of the file is compared" in "".join(report.notes)
    )
    model = imported(tmp_path / "model.py").Model.from_pretrained().eval()
    images = torch.randn(5, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(images), torch.cat([model(image[None]) for image in images]))
