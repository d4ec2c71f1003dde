"""The commands build a network without first weights; what has data keeps its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

from onnxgen import generate
from onnxgen.runtime.checkpoint import SkipInit
from tests.support import forked
from tests.support.reader_models import model, value


def test_no_compiler_for_an_embedding(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    nodes = [onnx.helper.make_node("Gather", ["embed.weight", "ids"], ["y"])]
    ids = value("ids", ["N"], onnx.TensorProto.INT64)
    onnx.save(model(nodes, [numpy_helper.from_array(table, "embed.weight")], [ids]), tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    code = """
import sys
for name in [name for name in sys.modules if name.startswith("torch._dynamo")]:
    del sys.modules[name]  # others have imported the compiler: who needs it now imports it again
import pathlib, torch, net
from onnxgen.runtime.load import from_pretrained
made = from_pretrained(net, pathlib.Path("net.py"))
assert isinstance(made.embed, torch.nn.Embedding)
print(made(torch.tensor([3, 4])).sum().item(), "torch._dynamo" in sys.modules)
"""
    done = forked.run(["-c", code], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    total, imported = done.stdout.split()
    assert abs(float(total) - table[3:5].sum()) < 1e-5 and imported == "False"


def test_what_has_data_gets_values() -> None:
    with SkipInit():
        real = nn.Embedding(3, 4)
        with torch.device("meta"):
            empty, linear = nn.Embedding(3, 4), nn.Linear(4, 4)
            filled = nn.init.constant_(torch.empty(2, device="cpu"), 7.0)
    assert empty.weight.is_meta and linear.weight.is_meta
    assert float(real.weight.detach().std()) > 0 and filled.tolist() == [7.0, 7.0]
