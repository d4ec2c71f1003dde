"""The blocks of docs/USES.md run, one after the other, and give what the page says.

Those for other runtimes run where these are installed: `pip install executorch`, `pip install coremltools`.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from onnxgen.pipeline import generate
from tests.conftest import ROOT
from tests.real import imported

TOOLS = ("executorch", "coremltools")  # what the page uses where it is installed
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "USES.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's code leaves behind."""
    shutil.copy(ROOT / "samples/mnist/mnist.onnx", tmp_path)
    generate(tmp_path / "mnist.onnx", tmp_path / "model.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    space: dict[str, Any] = {}
    torch.manual_seed(0)
    for block in BLOCKS:
        if any(tool in block and importlib.util.find_spec(tool) is None for tool in TOOLS):
            continue
        exec(compile(block, "docs/USES.md", "exec"), space)
    sys.modules.pop("model", None)
    return space


def test_the_page_does_what_it_says(ran: dict[str, Any], tmp_path: Path) -> None:
    model, images, labels = ran["model"], ran["images"], ran["labels"]

    def loss(x: torch.Tensor) -> float:
        return float(torch.nn.functional.cross_entropy(model(x), labels).detach())

    assert loss(ran["adversarial"]) > loss(images), "a step along the gradient's sign makes the loss larger"
    for name, gradients in ran["per_sample"].items():
        whole = torch.nn.functional.cross_entropy(model(images), labels, reduction="sum")
        (expected,) = torch.autograd.grad(whole, model.get_parameter(name))
        torch.testing.assert_close(gradients.sum(0), expected, rtol=1e-3, atol=1e-5)
    step = 1e-6 * torch.randn(images[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    double = model.double()
    moved = double((images[0].double() + step)[None]) - double((images[0].double() - step)[None])
    told = 2 * (ran["jacobian"].double() * step).sum((1, 2, 3))
    torch.testing.assert_close(told, moved[0], rtol=1e-3, atol=1e-3 * float(moved.detach().abs().max()))
    assert ran["heat"].shape[0] == 4 and (ran["heat"] >= 0).all() and ran["heat"].any()


def test_the_part_is_a_module_of_its_own(ran: dict[str, Any], tmp_path: Path) -> None:
    generate(tmp_path / "backbone.onnx", tmp_path / "backbone.py")
    session = onnxruntime.InferenceSession(tmp_path / "backbone.onnx")
    x = np.random.default_rng(0).random((2, 1, 28, 28), np.float32)
    (expected,) = session.run(None, {session.get_inputs()[0].name: x})
    network = imported(tmp_path / "backbone.py").Backbone.from_pretrained().eval()
    np.testing.assert_allclose(network(torch.from_numpy(x)).detach(), expected, 1e-4, 1e-5)


@pytest.mark.parametrize("tool, file", [("executorch", "model.pte"), ("coremltools", "model.mlpackage")])
def test_another_runtime(tool: str, file: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The page's own code compares what ExecuTorch computes."""
    pytest.importorskip(tool)
    request.getfixturevalue("ran")
    assert (tmp_path / file).exists()
