"""LoRA over the integers of a quantised file. Oracles: the floats, onnx.reference and onnxruntime."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from onnxgen import generate
from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.training import Settings, fit, open_model
from onnxgen.training.finetune import packed
from onnxgen.training.finetune.adapters import add_adapter, merge
from onnxgen.training.finetune.packed import Packed, pack, packed_layers, unpack
from onnxgen.training.prepare import prepare
from tests.training.test_fit_options import CPU
from tests.training.test_lora import scores

pytest.importorskip("peft", reason="peft is not installed: adapters were not trained")
MICROSOFT = "com.microsoft"


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.005, 0.02, shape).astype(np.float32)


def integers(name: str, kind: str, *shape: int, low: int = -8, high: int = 8) -> onnx.TensorProto:
    values = np.random.default_rng(len(name)).integers(low, high, shape)
    return helper.make_tensor(name, getattr(TensorProto, kind), shape, values.flatten().tolist())


def packed_bytes(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(1).integers(0, 256, shape, np.uint8), name)


def floats(name: str, values: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


def write(nodes: list[onnx.NodeProto], stored: list[onnx.TensorProto], x: list[Any], y: list[Any]) -> None:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (("x", x), ("scores", y))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), "net.onnx")
    generate("net.onnx", "net.py", Options(quantized="float"), force=True)


def nbits(**more: Any) -> None:
    """[n, 40] -> [n, 3]: two MatMulNBits, one with zero points and a last block that is not whole, and a plain head."""
    first = {"K": 40, "N": 32, "bits": 4, "block_size": 16, **more}
    second = {"K": 32, "N": 32, "bits": 4, "block_size": 32, **more}
    node = helper.make_node
    nodes = [
        node("MatMulNBits", ["x", "a.weight_Q4", "a.s", "a.z"], ["a"], domain=MICROSOFT, **first),
        node("Tanh", ["a"], ["b"]),
        node("MatMulNBits", ["b", "c.weight_Q4", "c.s", "", "", "c.bias"], ["c"], domain=MICROSOFT, **second),
        node("Tanh", ["c"], ["d"]),
        node("Gemm", ["d", "head.weight", "head.bias"], ["scores"], transB=1),
    ]
    stored = [
        packed_bytes("a.weight_Q4", 32, 3, 8), floats("a.s", drawn(96)), packed_bytes("a.z", 64),
        packed_bytes("c.weight_Q4", 32, 1, 16), floats("c.s", drawn(32)), floats("c.bias", drawn(32)),
        floats("head.weight", drawn(3, 32, seed=3) * 20), floats("head.bias", [0, 0.1, 0.2]),
    ]  # fmt: skip
    write(nodes, stored, ["n", 40], ["n", 3])


def linear() -> None:
    """[n, 2, 4, 4] -> [n, 3]: integers of Conv, Gemm and MatMul, by channel, by block, and with one scale."""
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["cw", "cs"], ["cf"], axis=0),
        node("Conv", ["x", "cf", "cb"], ["c"], pads=[1, 1, 1, 1]),
        node("Flatten", ["c"], ["f"]),
        node("DequantizeLinear", ["gw", "gs"], ["gf"], axis=0),
        node("Gemm", ["f", "gf", "gb"], ["g"], transB=1),
        node("Tanh", ["g"], ["t"]),
        node("DequantizeLinear", ["mw", "ms", "mz"], ["mf"], axis=0, block_size=8),
        node("MatMul", ["t", "mf"], ["m"]),
        node("Tanh", ["m"], ["u"]),
        node("DequantizeLinear", ["hw", "hs", "hz"], ["hf"]),
        node("MatMul", ["u", "hf"], ["scores"]),
    ]
    stored = [
        integers("cw", "INT8", 4, 2, 3, 3, low=-127, high=128), floats("cs", drawn(4)), floats("cb", drawn(4)),
        integers("gw", "INT8", 32, 64, low=-127, high=128), floats("gs", drawn(32) / 5), floats("gb", drawn(32)),
        integers("mw", "INT4", 32, 24), floats("ms", drawn(4, 24) * 5), integers("mz", "INT4", 4, 24, low=-2, high=3),
        integers("hw", "UINT8", 24, 3, low=0, high=256), floats("hs", 0.01),
        helper.make_tensor("hz", TensorProto.UINT8, (), [128]),
    ]  # fmt: skip
    write(nodes, stored, ["n", 2, 4, 4], ["n", 3])


NETS = {"nbits": (nbits, (40,), 2), "linear": (linear, (2, 4, 4), 4)}


@pytest.fixture(params=sorted(NETS))
def net(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int]:
    """Samples for `net.onnx` in the working directory, of which `net.py` was generated, and its number of weights."""
    monkeypatch.chdir(tmp_path)
    make, shape, count = NETS[request.param]
    make()
    return np.random.default_rng(2).normal(size=(48, *shape)).astype(np.float32), count


def passes(model: nn.Module, x: Any) -> tuple[Tensor, Tensor]:
    """The results, and the gradient of the input."""
    given = torch.from_numpy(x).requires_grad_()
    result = model(given)
    return result.detach(), torch.autograd.grad(result.square().sum(), given)[0]


def test_integers_compute_what_their_floats_do(net: tuple[Any, int]) -> None:
    x, count = net
    plain, model = open_model("net.py"), open_model("net.py")
    (note,) = pack(model, Path("net.py"))
    assert note.startswith(f"{count} weights stay integers of net.onnx")
    layers = dict(packed_layers(model))
    assert len(layers) == count
    for path, layer in layers.items():
        assert torch.equal(layer.floats(), plain.get_submodule(path).weight)
        assert not any(b.is_floating_point() and b.numel() for b in layer.buffers())
    copies = model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for made, expected in ((passes(one, x), passes(plain, x)) for one in copies):
        torch.testing.assert_close(made, expected)
    halved = {path: layer.floats().bfloat16() for path, layer in layers.items()}
    for path, layer in packed_layers(model.bfloat16()):
        assert torch.equal(layer.floats(), halved[path])  # scales were not rounded
    for part in copies[1:]:
        unpack(part)
        assert str(part) == str(plain) and list(part.state_dict()) == list(plain.state_dict())
        assert all(torch.equal(value, part.state_dict()[key]) for key, value in plain.state_dict().items())


@pytest.mark.parametrize("hooked", [True, False])
def test_no_floats_are_kept_for_the_backward_pass(
    net: tuple[Any, int], hooked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, count = net
    model = open_model("net.py")
    pack(model, Path("net.py"))
    made: list[StorageWeakRef] = []
    original = Packed.floats

    def floats_of(layer: Packed) -> Tensor:
        found = original(layer)
        made.append(StorageWeakRef(found.untyped_storage()))
        return found

    monkeypatch.setattr(Packed, "floats", floats_of)
    if not hooked:  # that this test can see them
        monkeypatch.setattr(packed, "saved_tensors_hooks", lambda *_: nullcontext())
    result = model(torch.from_numpy(x).requires_grad_())
    alive = [one for one in made if not one.expired()]
    assert len(made) == count and len(alive) == (0 if hooked else count)
    result.sum().backward()
    assert len(made) == (2 if hooked else 1) * count


def test_an_adapter_is_trained_beside_integers_and_exported_beside_them(
    net: tuple[Any, int], capsys: pytest.CaptureFixture[str]
) -> None:
    x, count = net
    before = Path("net.onnx").read_bytes()
    y = np.random.default_rng(3).normal(size=(48, 3)).astype(np.float32)
    data = {"x": x, "y": y}
    given = {"lora": 2, "target": "y", "epochs": 2, "lr": 0.02, "val": 0, **CPU}  # of noise no epoch is best
    result = fit("net.py", data, out=Path("run"), **given)
    assert len(dict(packed_layers(result.model))) == count
    with torch.no_grad():
        expected = open_model("run")(torch.from_numpy(x)).numpy()
        torch.testing.assert_close(result.model(torch.from_numpy(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert cli(["export", "run", "-o", "merged.onnx"]) == 0
    assert f"{count} trained tensors rounded to the file's integers: that changes outputs" in capsys.readouterr().out
    off, all_of_it = (abs(exact(name, x) - expected).mean() for name in ("merged.onnx", "net.onnx"))
    assert off < 0.7 * all_of_it
    assert cli(["export", "run", "-o", "base.onnx", "--adapter"]) == 0
    assert f"{count} tensors of integers keep their bytes" in capsys.readouterr().out
    assert Path("net.onnx").read_bytes() == before
    kept = {t.name: t.SerializeToString() for t in onnx.load("base.onnx").graph.initializer}
    assert all(kept[t.name] == t.SerializeToString() for t in onnx.load("net.onnx").graph.initializer)
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(exact("base.onnx", x), exact("net.onnx", x), **close)
    np.testing.assert_allclose(exact("base.onnx", x, "base.onnx_adapter"), expected, **close)
    assert abs(exact("net.onnx", x) - expected).max() > 0.02
    Path("net.onnx").rename("away.onnx")  # the same run over floats
    floats_ = fit("net.py", data, out=Path("floats"), **given)
    assert not any(packed_layers(floats_.model))
    for one, other in zip(result.history, floats_.history, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)


def exact(file: str, x: Any, adapter: str = "") -> Any:
    """What onnxruntime computes without its products of 8 bits."""
    options, session = onnxruntime.RunOptions(), onnxruntime.SessionOptions()
    session.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session.log_severity_level = 3
    if adapter:
        loaded = onnxruntime.LoraAdapter()
        loaded.Load(adapter)
        options.add_active_adapter(loaded)
    return onnxruntime.InferenceSession(file, session).run(None, {"x": x}, run_options=options)[0]


LINEAR = {
    "blocks that do not fit": ("INT4", (10, 6), (3, 6), {"axis": 0, "block_size": 4}, True),
    "blocks of the last axis": ("UINT4", (6, 8), (6, 2), {"axis": 1, "block_size": 4}, True),
    "an odd number of halves": ("INT4", (3, 5), (5,), {"axis": 1}, False),
    "sixteen bits": ("INT16", (4, 6), (4,), {"axis": 0}, True),
    "one scale": ("UINT8", (4, 6), (), {}, True),
}


@pytest.mark.parametrize("name", LINEAR)
def test_floats_are_those_of_dequantize_linear(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind, shape, by, how, zero = LINEAR[name]
    low = 0 if kind.startswith("U") else -8
    stored = [integers("w_quantized", kind, *shape, low=low, high=low + 16), floats("s", drawn(*by))]
    stored += [integers("zero", kind, *by, low=low + 5, high=low + 9)] if zero else []
    given = [tensor.name for tensor in stored]
    dequantize = helper.make_node("DequantizeLinear", given, ["w"], **how)
    write([dequantize, helper.make_node("MatMul", ["x", "w"], ["scores"])], stored, ["n", shape[0]], ["n", shape[1]])
    model = open_model("net.py")
    pack(model, Path("net.py"))
    ((_, layer),) = packed_layers(model)
    x = np.eye(shape[0], dtype=np.float32)
    expected = ReferenceEvaluator("net.onnx").run(None, {"x": x})[0]
    np.testing.assert_array_equal(layer.floats().T, expected)


@pytest.mark.parametrize("kind", [0, 1])
def test_floats_are_those_of_matmul_bnb4(kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"K": 16, "N": 8, "block_size": 16, "quant_type": kind}
    node = helper.make_node("MatMulBnb4", ["x", "w_Bnb4", "s"], ["scores"], domain=MICROSOFT, **sizes)
    write([node], [packed_bytes("w_Bnb4", 64), floats("s", drawn(8))], ["n", 16], ["n", 8])
    model = open_model("net.py")
    pack(model, Path("net.py"))
    ((_, layer),) = packed_layers(model)
    np.testing.assert_allclose(layer.floats().T, scores("net.onnx", np.eye(16, dtype=np.float32)), rtol=1e-6)


def test_trained_weights_and_a_new_head_are_no_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    linear()
    trained = open_model("net.py")
    with torch.no_grad():
        trained.fc1.weight[0, 0] += 1
    with safe_open("net.safetensors", "pt") as file:
        metadata = file.metadata()
    save_file(trained.state_dict(), "net.safetensors", metadata)
    model = open_model("net.py")
    notes = pack(model, Path("net.py"), ("fc3",))
    assert {path for path, _ in packed_layers(model)} == {"conv", "fc2"}
    assert notes[1] == "1 quantised tensor are kept as floats: fc1.weight"
    torch.testing.assert_close(model.state_dict()["fc1.weight"], trained.fc1.weight)


def test_integers_that_are_read_outside_their_layer_get_no_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nbits()
    model = open_model("net.py")
    pack(model, Path("net.py"))
    first, second = (path for path, _ in packed_layers(model))
    layer = model.get_submodule(first)
    layer.register_forward_hook(lambda module, given, result: result + 0 * module.weight.sum())
    adapter = add_adapter(model, 2, example=torch.zeros(2, 40))
    assert second in adapter.layers and first not in adapter.layers
    merge(model)
    assert not any(packed_layers(model))


def test_what_has_no_layers_or_no_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    nbits(accuracy_level=4)
    generate("net.onnx", "kept.py", force=True)
    x = np.random.default_rng(2).normal(size=(48, 40)).astype(np.float32)
    data = {"x": x, "label": np.arange(48) % 3}
    notes = prepare(Path("kept.py"), data, Settings(lora=2, device="cpu")).notes
    assert "a, c hold integers and get no adapter: generate again with --quantized float" in notes
    notes = prepare(Path("kept.py"), data, Settings(device="cpu")).notes
    assert "a, c hold integers and their weights are not trained: generate again with --quantized float" in notes
    assert fit("kept.py", data, epochs=1, out=Path("biases"), **CPU).history  # integers are no weights of the best file
    fit("net.py", data, lora=2, dora=True, lr=0.05, epochs=1, out=Path("dora"), **CPU)
    monkeypatch.setattr("onnxgen.export.adapter.NARROW", 2)
    assert cli(["export", "dora", "--adapter", "-o", "base.onnx"]) == 2
    assert "has no low rank, as after --dora" in capsys.readouterr().err
    with pytest.raises(OnnxgenError, match="lora and the strategy fsdp exclude each other"):
        fit("net.py", data, lora=2, strategy="fsdp", devices=2, **CPU)
    fit("net.py", data, lora=2, lr=0.05, epochs=1, out=Path("lora"), **CPU)
    assert cli(["export", "lora", "--adapter", "-o", "base.onnx", "-q"]) == 0  # its products of 8 bits are left out
    with torch.no_grad():
        expected = open_model("lora")(torch.from_numpy(x)).numpy()
    assert abs(scores("base.onnx", x, "base.onnx_adapter") - expected).max() < 0.02


def test_products_of_integers_have_no_place_for_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    node = helper.make_node
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        node("MatMulInteger", ["q", "w_quantized", "qz"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["qs", "ws"], ["s"]),
        node("Mul", ["f", "s"], ["scores"]),
    ]
    stored = [integers("w_quantized", "INT8", 16, 12, low=-127, high=128), floats("ws", 0.01)]
    write(nodes, stored, ["n", 16], ["n", 12])
    x = np.random.default_rng(2).normal(size=(32, 16)).astype(np.float32)
    fit("net.py", {"x": x, "label": np.arange(32) % 12}, lora=1, lr=0.05, epochs=1, out=Path("run"), **CPU)
    assert cli(["export", "run", "--adapter", "-o", "base.onnx"]) == 2
    assert "MatMulInteger computes with the integers w_quantized" in capsys.readouterr().err


assert ml_dtypes  # onnx reads integers of four bits with it
