"""Modules generated with each option that the way back has to know of: trained, written back, run in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import onnxgen
from onnxgen.export.changes import DTYPE, LEFT_OUT
from onnxgen.export.job import Verification
from onnxgen.export.report import BACK
from onnxgen.options import Options
from onnxgen.verify.convert import to_numpy
from tests.export.trained import blank, stepped
from tests.support.exported import exported
from tests.support.real import imported

IMAGE = (2, 3, 8, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 4, 3, groups=2), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)
        for norm in (self.norm1, self.norm2):
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
            nn.init.uniform_(norm.running_mean, -0.5, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        return self.head(torch.relu(self.norm2(self.conv2(x))).mean((2, 3)))


CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "flat": {"flat": True},
    "embed": {"embed": True},
    "sharded": {"shard_size": 500},
    "restored": {"restore_batchnorm": True},
    "restored_dynamic_batch": {"restore_batchnorm": True, "dynamic_batch": True},
    "restored_flat_embedded": {"restore_batchnorm": True, "flat": True, "embed": True},
    "dynamic_batch": {"dynamic_batch": True},
    "dynamic_batch_embedded": {"dynamic_batch": True, "embed": True},
    "double": {"dtype": "float64"},
    "half": {"dtype": "float16"},
    "bfloat": {"dtype": "bfloat16"},
    "dropout": {"dropout": {"*": 0.1}},
    "fixed": {"input_shapes": {"i0": (3, -1, 8, 8)}},
}
AXES = {"restored": {0: "n"}, "fixed": {0: "n", 2: "h", 3: "w"}}  # others have a fixed batch


@pytest.mark.parametrize("case", CASES)
def test_trained_and_back(case: str, tmp_path: Path) -> None:
    proto = exported(Net().eval(), [torch.randn(IMAGE)], "legacy-13", {0: AXES[case]} if case in AXES else None)
    assert not any(n.op_type == "BatchNormalization" for n in proto.graph.node), "evaluation folds them"
    onnx.save(proto, tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py", Options(**CASES[case]))
    model: nn.Module = imported(tmp_path / "model.py").Model.from_pretrained()
    batch = 3 if case == "fixed" else 2
    dtype = next(model.parameters()).dtype
    x = torch.randn(batch, *IMAGE[1:], generator=torch.Generator().manual_seed(1))
    stepped(model, x.to(dtype))
    if "dtype" in CASES[case]:
        _in_its_own_type(model, proto, tmp_path)
    how = {"weights": model, "out": tmp_path / "out.onnx", "same_graph": "dtype" in CASES[case]}
    report = onnxgen.export(tmp_path / "model.py", **how)
    assert report.method == BACK and report.changed and len(report.added) == (8 if "restored" in case else 0)
    assert bool(report.lossy) == (dtype in (torch.float16, torch.bfloat16))
    shape = [
        d.dim_param or d.dim_value for d in onnx.load(tmp_path / "out.onnx").graph.input[0].type.tensor_type.shape.dim
    ]
    assert shape == {"fixed": [3, 3, 8, 8], "restored": ["n", *IMAGE[1:]]}.get(
        case, ["batch" if "dynamic" in case else 2, *IMAGE[1:]]
    )
    with torch.no_grad():
        expected = model.eval()(x.to(dtype)).float().numpy()
    (got,) = ort.InferenceSession(tmp_path / "out.onnx").run(None, {"i0": x.numpy()})
    (old,) = ort.InferenceSession(tmp_path / "m.onnx").run(None, {"i0": x.numpy()})
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 5e-2}.get(dtype, 1e-4)
    np.testing.assert_allclose(got, expected, tolerance, tolerance)
    assert np.abs(got - old).max() > tolerance, "training did change something"
    made = onnx.load(tmp_path / "out.onnx")
    norms = [n for n in made.graph.node if n.op_type == "BatchNormalization"]
    assert len(norms) == (2 if "restored" in case else 0)
    if not report.lossy:  # the original's own graph, if that is wanted
        onnxgen.export(tmp_path / "model.py", weights=model, out=tmp_path / "out.onnx", same_graph=True)
        (again,) = ort.InferenceSession(tmp_path / "out.onnx").run(None, {"i0": x[: IMAGE[0]].numpy()})
        np.testing.assert_allclose(again, got[: IMAGE[0]], 1e-4, 1e-4)
        assert blank(onnx.load(tmp_path / "out.onnx")) == blank(onnx.load(tmp_path / "m.onnx"))
    if "restored" in case:
        others = [n.op_type for n in made.graph.node if n not in norms]
        assert others == [n.op_type for n in proto.graph.node]
        return
    if "dynamic" in case or case == "fixed":  # what they change
        for found, before in zip((*made.graph.input, *made.graph.output), (*proto.graph.input, *proto.graph.output)):
            found.type.CopyFrom(before.type)
    assert blank(made) == blank(proto)


def _in_its_own_type(model: nn.Module, proto: onnx.ModelProto, folder: Path) -> None:
    """The file that is exported has the module's type throughout; where an operator doesn't take it there are casts."""
    report = onnxgen.export(folder / "model.py", weights=model, out=folder / "typed.onnx")
    made = onnx.load(folder / "typed.onnx")
    onnx.checker.check_model(made, full_check=True)
    kind = onnx.helper.np_dtype_to_tensor_dtype(to_numpy(next(model.parameters())).dtype)
    assert report.method == BACK and report.changed and not report.lossy
    assert {tensor.data_type for tensor in made.graph.initializer} == {kind}
    assert {v.type.tensor_type.elem_type for v in (*made.graph.input, *made.graph.output)} == {kind}
    kept = [n.op_type for n in made.graph.node if n.op_type != "Cast"]
    assert kept == [n.op_type for n in proto.graph.node]
    assert len(kept) == len(made.graph.node) or kind == onnx.TensorProto.BFLOAT16
    verified = onnxgen.verify(folder / "typed.onnx", module=model)
    assert not verified.differs, verified.problems()


def test_external_data_in_another_type(tmp_path: Path) -> None:
    """It goes to a file beside the new one, as it does in the original's type."""
    proto = exported(Net().eval(), [torch.randn(IMAGE)], "legacy-13")
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py", Options(dtype="float16"))
    report = onnxgen.export(tmp_path / "model.py", out=tmp_path / "out.onnx")
    assert report.method == BACK and report.wrote == [tmp_path / "out.onnx", tmp_path / "out.onnx.data"]
    assert {tensor.data_type for tensor in onnx.load(tmp_path / "out.onnx").graph.initializer} == {
        onnx.TensorProto.FLOAT16
    }


def test_sharded_weights_by_their_index(tmp_path: Path) -> None:
    onnx.save(exported(Net().eval(), [torch.randn(IMAGE)], "legacy-13"), tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "other.py", Options(shard_size=500))
    index = tmp_path / "other.safetensors.index.json"
    assert index.is_file()
    for shard in tmp_path.glob("other-*.safetensors"):
        save_file({key: value + 0.01 for key, value in load_file(shard).items()}, shard)
    report = onnxgen.export(tmp_path / "model.py", weights=index, out=tmp_path / "out.onnx")
    assert report.method == BACK and len(report.changed) == report.tensors == len(
        load_file(tmp_path / "model.safetensors")
    )


def test_weights_that_were_saved_in_half_precision(tmp_path: Path) -> None:
    onnx.save(exported(Net().eval(), [torch.randn(IMAGE)], "legacy-13"), tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    state = {key: value.half() for key, value in load_file(tmp_path / "model.safetensors").items()}
    save_file(state, tmp_path / "half.safetensors")
    report = onnxgen.export(tmp_path / "model.py", weights=tmp_path / "half.safetensors", out=tmp_path / "out.onnx")
    assert report.method == BACK and set(report.changed) <= set(report.lossy) and len(report.lossy) == report.tensors
    kinds = {t.name: t.data_type for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert kinds == {t.name: t.data_type for t in onnx.load(tmp_path / "m.onnx").graph.initializer}


def test_a_compiled_module(tmp_path: Path) -> None:
    """What `torch.compile` puts around the network is looked through."""
    onnx.save(exported(Net().eval(), [torch.randn(IMAGE)], "legacy-13"), tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    model = torch.compile(imported(tmp_path / "model.py").Model.from_pretrained(), backend="eager")
    report = onnxgen.export(tmp_path / "model.py", weights=model, out=tmp_path / "out.onnx")
    assert report.method == BACK and not report.changed


def test_an_attempt_that_no_oracle_runs_leaves_nothing_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file in the module's type is refused, as by an onnxruntime without its kernels: the original types remain."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y)
        <float[4] b = {0.5, 0.25, -1, 2}> { m = MatMul (x, w)  a = Add (m, b)  y = Relu (a) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py", Options(dtype="float16"))
    model: nn.Module = imported(tmp_path / "model.py").Model.from_pretrained()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5
    tried: list[int] = []
    compare = Verification.compare

    def refusing(self: Verification, made: Path, *more: Any) -> Any:
        tried.append(onnx.load(made).graph.initializer[0].data_type)
        if tried[-1] == onnx.TensorProto.FLOAT16:
            raise onnxgen.OnnxgenError("no kernels")
        return compare(self, made, *more)

    monkeypatch.setattr(Verification, "compare", refusing)
    report = onnxgen.export(tmp_path / "model.py", weights=model, out=tmp_path / "out.onnx")
    assert tried == [onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT]
    assert report.method == BACK and report.tensors == 2 and sorted(report.changed) == ["b", "w"]
    assert report.notes.count(LEFT_OUT[DTYPE]) == 1 and len(set(report.notes)) == len(report.notes)
    (y,) = ort.InferenceSession(tmp_path / "out.onnx").run(None, {"x": np.ones((1, 4), np.float32)})
    np.testing.assert_array_equal(y, [[4, 3.75, 2.5, 5.5]])
