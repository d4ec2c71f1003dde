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
import onnx
import onnxruntime
import pytest
import torch

from onnxgen.cli import run
from onnxgen.pipeline import generate
from tests.conftest import ROOT

TOOLS = ("executorch", "coremltools")  # what the page uses where it is installed
PAGE = (ROOT / "docs" / "USES.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's code leaves behind."""
    shutil.copy(ROOT / "samples/mnist/mnist.onnx", tmp_path)
    generate(tmp_path / "mnist.onnx", tmp_path / "model.py")
    (command,) = re.findall(r"^onnxgen (.*)", PAGE, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(command.split()) == 0
    for name in ("model", "backbone"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    space: dict[str, Any] = {}
    torch.manual_seed(0)
    for block in BLOCKS:
        if any(tool in block and importlib.util.find_spec(tool) is None for tool in TOOLS):
            continue
        exec(compile(block, "docs/USES.md", "exec"), space)
    for name in ("model", "backbone"):
        sys.modules.pop(name, None)
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


def test_the_part_computes_what_the_file_does(ran: dict[str, Any], tmp_path: Path) -> None:
    file = onnx.load(tmp_path / "mnist.onnx")
    file.graph.output.append(onnx.ValueInfoProto(name="/fc1/Gemm_output_0"))
    session = onnxruntime.InferenceSession(file.SerializeToString())
    expected = session.run(["/fc1/Gemm_output_0"], {"image": ran["images"].numpy()})[0]
    np.testing.assert_allclose(ran["features"].detach(), expected, 1e-4, 1e-5)


@pytest.mark.parametrize("tool, file", [("executorch", "model.pte"), ("coremltools", "model.mlpackage")])
def test_another_runtime(tool: str, file: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The page's own code compares what ExecuTorch computes."""
    pytest.importorskip(tool)
    request.getfixturevalue("ran")
    assert (tmp_path / file).exists()
