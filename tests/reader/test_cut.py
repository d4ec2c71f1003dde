"""`--inputs` and `--outputs`: a part of a network, held to the same part of the file."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open

import onnxgen
from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.reader.protos import taken
from tests.conftest import ROOT, shared_models
from tests.export.trained import stepped
from tests.support.reader_models import RELU, Write, model, node, refusal, write
from tests.support.real import imported

__all__ = ["write"]  # a fixture

MNIST = ROOT / "samples/mnist/mnist.onnx"
FEATURES, HIDDEN = "/Relu_1_output_0", "/fc1/Gemm_output_0"
SMALL = 500_000  # bytes of a file


def drawn(graph: onnx.GraphProto, seed: str) -> Options | None:
    """A part between two values, or up to one; None if the graph has too few."""
    random = Random(seed)
    made = {name: node for node in graph.node if node.op_type != "Constant" for name in node.output if name}
    if len(made) < 4:
        return None
    end = random.choice(sorted(made))
    above, todo = set[str](), [end]
    while todo:
        new = {name for name in taken(made[todo.pop()]) if name in made} - above
        above |= new
        todo.extend(new)
    begins = [random.choice(sorted(above))] if above and random.random() < 0.7 else []
    return Options(inputs=begins, outputs=[end])


@pytest.mark.parametrize("entry", shared_models("net", "graph")[::5])
def test_a_drawn_part(entry: dict[str, Any], tmp_path: Path) -> None:
    path = entry["path"]
    if path.stat().st_size > SMALL:
        pytest.skip("it is large")
    options = drawn(onnx.load(path).graph, entry["file"])
    if options is None:
        pytest.skip("it is too small to be cut")
    try:
        onnxgen.generate(path, tmp_path / "model.py")
    except OnnxgenError:
        pytest.skip("the whole file is refused")
    onnxgen.generate(path, tmp_path / "part.py", options)
    report = onnxgen.verify(path, tmp_path / "part.py", runs=2)
    assert not report.differs, report.problems()


def test_a_trained_part_goes_back_into_the_whole_file(tmp_path: Path) -> None:
    onnxgen.generate(MNIST, tmp_path / "part.py", Options(inputs=[FEATURES], outputs=[HIDDEN, "log_probabilities"]))
    model = imported(tmp_path / "part.py").Model.from_pretrained()
    assert set(dict(model.named_children())) == {"conv3", "norm1", "fc1", "dropout", "fc2", "norm2"}
    features = torch.rand(4, 16, 24, 24)
    stepped(model, features)
    report = onnxgen.export(tmp_path / "part.py", MNIST, model, tmp_path / "out.onnx")
    assert report.method == "written back" and not any(name.startswith(("conv1", "conv2")) for name in report.changed)
    whole = onnx.load(tmp_path / "out.onnx")
    assert [n.name for n in whole.graph.node] == [n.name for n in onnx.load(MNIST).graph.node]
    whole.graph.output.extend([onnx.ValueInfoProto(name=FEATURES)])
    session = onnxruntime.InferenceSession(whole.SerializeToString())
    image = np.random.default_rng(0).random((2, 1, 28, 28), np.float32)
    expected, middle = session.run(None, {"image": image})
    with torch.no_grad():
        np.testing.assert_allclose(model(torch.from_numpy(middle))[1].numpy(), expected, 1e-4, 1e-5)


NO_SENSE = [
    (["--outputs", "/fc1/Gemm_output"], "is not a value of the graph -> did you mean /fc1/Gemm_output_0"),
    (["--outputs", "fc1.weight"], "fc1.weight is stored in the file"),
    (["--outputs", HIDDEN, "--outputs", HIDDEN], "is named twice"),
    (["--inputs", HIDDEN, "--outputs", FEATURES], f"no output depends on {HIDDEN}"),
]


def test_names_that_make_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, why in NO_SENSE:
        assert run([str(MNIST), "-o", str(tmp_path / "m.py"), *options]) == 2
        said = capsys.readouterr().err
        assert why in said and said.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_name_of_the_file_is_shown_safely(write: Write) -> None:
    name = "a\n\x1b[31mb"
    path = write(model([node("Abs", outputs=[name]), node("Neg", [name], ["z"]), RELU], outputs=["y", "z"]))
    said = refusal(path, Options(inputs=(name,), outputs=("y",)))
    assert "no output depends on a" in said and "\n" not in said and "\x1b" not in said


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is verified later is the part, as the sidecar says."""
    module = tmp_path / "m.py"
    assert run([str(MNIST), "-o", str(module), "--outputs", HIDDEN, "--verify"]) == 0
    with safe_open(module.with_suffix(".safetensors"), "numpy") as stored:  # of a file that stays, as its key does
        assert json.loads(stored.metadata()["cut"]) == {"inputs": [], "outputs": [HIDDEN]}
    assert run(["verify", str(MNIST), str(module), "--locate"]) == 0
    assert run(["export", str(module), "--onnx", str(MNIST), "-o", str(tmp_path / "o.onnx")]) == 0
    assert "equal, to" in capsys.readouterr().out
    text = module.read_text(encoding="utf-8").replace("F.relu(self.conv2(x))", "F.gelu(self.conv2(x))")
    module.write_text(text, encoding="utf-8")
    assert run(["verify", str(MNIST), str(module), "--locate"]) == 1
    assert "/Relu_1" in capsys.readouterr().out
