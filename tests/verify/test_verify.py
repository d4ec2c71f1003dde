"""verify and load: what agrees, what must not, and that nothing is left behind.

The oracle's side is a small ONNX file made here, the other side a PyTorch module written by hand (right or wrong on
purpose), or a file generated from it.
"""

from __future__ import annotations

import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper as h
from torch import Tensor, nn

from onnxgen import OnnxgenError, Options, VerifyReport, generate, load, verify
from onnxgen.verify import oracle as oracle_module
from onnxgen.verify.check import Check
from onnxgen.verify.compare import Tolerance, compare
from onnxgen.verify.convert import to_numpy, to_torch
from onnxgen.verify.oracle import Onnxruntime, Reference, Refused
from tests.conftest import ROOT

VI = h.make_tensor_value_info


def save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int = 17, **stored: np.ndarray[Any, Any]
) -> Path:
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = h.make_graph(nodes, "g", inputs, outputs, tensors)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=10), path)
    return path


class Says(nn.Module):
    """A module that computes what it is told to."""

    def __init__(self, function: Callable[..., Any], **parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


W = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    """`relu(x @ w + 1)` with a dynamic batch."""
    nodes = [h.make_node("MatMul", ["x", "w"], ["a"]), h.make_node("Add", ["a", "b"], ["c"])]
    nodes.append(h.make_node("Relu", ["c"], ["y"]))
    b = np.ones(3, np.float32)
    return save(tmp_path / "linear.onnx", nodes, [VI("x", T.FLOAT, ["n", 4])], [VI("y", T.FLOAT, ["n", 3])], w=W, b=b)


def right(change: Callable[[Tensor], Any] = lambda y: y) -> nn.Module:
    weights = {"w": torch.from_numpy(W.copy()), "b": torch.ones(3)}
    return Says(lambda m, x: change((x @ m.w + m.b).relu()), **weights)


def test_equal(linear: Path) -> None:
    report = verify(linear, right())
    assert report.agrees and report and not report.problems()
    assert len(report.runs) == 3 and {r.oracle for r in report.runs} == {"onnxruntime"}
    assert len({r.sizes["n"] for r in report.runs}) == 3  # dynamic: another size in each run
    assert all(o.got == f"float32 [{r.sizes['n']}, 3]" for r in report.runs for o in r.outputs)
    assert (report.gradients.parameters, report.gradients.reached) == (2, 2)
    assert report.mode == "eval"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda y: y + 1e-2, "elements differ"),
        (lambda y: torch.where(y == y.max(), y * 1.01, y), "1 of "),
        (lambda y: y * float("nan"), "elements differ"),
        (lambda y: y.double(), "float64 [2, 3] instead of float32 [2, 3]"),
        (lambda y: y[None], "float32 [1, 2, 3] instead of float32 [2, 3]"),
        (lambda y: (y, y), "returned 2 outputs, the graph has 1"),
        (lambda y: y.tolist, "not a tensor"),
        (lambda y: [y], "instead of float32"),
        (lambda y: None, "none instead of"),
        (lambda y: y.nonsense, "forward raised AttributeError"),
    ],
)
def test_different(linear: Path, change: Callable[[Tensor], Any], said: str) -> None:
    report = verify(linear, right(change))
    assert not report.agrees
    assert any(said in problem for problem in report.problems()), report.problems()


def test_a_tuple_is_no_tensor(linear: Path) -> None:
    report = verify(linear, right(lambda y: (y,)))
    assert not report.agrees and "list of 1: float32 [" in str(report.problems())


def test_tolerance_is_the_users(linear: Path) -> None:
    assert not verify(linear, right(lambda y: y * 1.005)).agrees
    assert verify(linear, right(lambda y: y * 1.005), rtol=1e-2).agrees
    with pytest.raises(OnnxgenError, match="not negative"):
        verify(linear, right(), rtol=-1)


def test_the_same_seed_draws_the_same(linear: Path) -> None:
    first, second, other = (Check(linear, Options(), rtol=1e-3, atol=1e-5).answers(2, s, None) for s in (5, 5, 6))
    for a, b, c in zip(first, second, other, strict=True):
        np.testing.assert_array_equal(a.feeds["x"], b.feeds["x"])
        assert not np.array_equal(a.feeds["x"], c.feeds["x"])


# ---- comparing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "got", "equal"),
    [
        ([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf], True),
        ([np.inf], [-np.inf], False),
        ([np.inf], [3e38], False),
        ([np.nan], [0.0], False),
        ([1.0], [np.nan], False),
        ([1.0], [1.0009], True),
        ([1.0], [1.0012], False),
        ([0.0], [0.9e-5], True),
        ([0.0], [1.1e-5], False),
    ],
)
def test_floats(expected: list[float], got: list[float], equal: bool) -> None:
    difference = compare(np.array(expected, np.float32), np.array(got, np.float32), Tolerance())
    assert (not difference.why) is equal


def test_integers_booleans_and_strings_are_exact() -> None:
    loose = Tolerance(1.0, 1.0)
    for one, two in (([1000], [1001]), ([True], [False]), (["a"], ["b"])):
        a, b = (np.array(v, object if isinstance(v[0], str) else None) for v in (one, two))
        assert compare(a, b, loose).why and not compare(a, a, loose).why
    assert compare(np.array([2**63 - 1]), np.array([2**63 - 2]), loose).why  # beyond what a float64 tells apart
    assert compare(np.array([0, 200], np.uint8), np.array([250, 200], np.uint8), loose).absolute == 250


def test_nested_values() -> None:
    a = np.zeros(2, np.float32)
    assert not compare([a, a], [a, a], Tolerance()).why
    assert "element 1" in compare([a, a], [a, a + 1], Tolerance()).why
    assert (
        compare([a], [a, a], Tolerance()).why
        and compare(None, a, Tolerance()).why
        and compare(a, None, Tolerance()).why
    )
    assert not compare(None, None, Tolerance()).why
    assert not compare(a, a + 1, Tolerance(), values=False).why
    assert compare(a, a.astype(np.float64), Tolerance(), values=False).why


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "uint16", "uint64", "complex64"]
)
def test_round_trip_through_torch(dtype: str) -> None:
    array = np.array([[1, 2], [3, 0]]).astype(getattr(ml_dtypes, dtype, dtype))
    tensor = to_torch(array)
    assert str(tensor.dtype) == f"torch.{dtype}"
    back = to_numpy(tensor)
    assert back.dtype == array.dtype and back.tobytes() == array.tobytes()


def test_values_that_torch_lacks() -> None:
    assert to_torch(np.array([-8, 7], ml_dtypes.int4)).dtype == torch.int8
    assert to_torch(np.array([15], ml_dtypes.uint4)).dtype == torch.uint8
    assert not compare(np.array([-8, 7], ml_dtypes.int4), np.array([-8, 7], np.int8), Tolerance()).why
    words = np.array(["a", "é"], object)
    assert to_torch(words).tolist() == ["a", "é"] and to_torch(None) is None and len(to_torch([words])) == 1


# ---- inputs ----------------------------------------------------------------------------------------------------------


def test_indices_stay_in_range(tmp_path: Path) -> None:
    """Through a cast and a reshape, into an embedding of five rows."""
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    nodes = [
        h.make_node("Unsqueeze", ["ids", "axis"], ["i"]),
        h.make_node("Cast", ["i"], ["j"], to=T.INT32),
        h.make_node("Gather", ["table", "j"], ["y"]),
    ]
    axis = np.array([0], np.int64)
    path = save(
        tmp_path / "m.onnx", nodes, [VI("ids", T.INT64, [64])], [VI("y", T.FLOAT, [1, 64, 2])], table=table, axis=axis
    )
    check = Check(path, Options(), rtol=1e-3, atol=1e-5)
    drawn = [given.feeds["ids"] for given in check.answers(3, 0, None)]
    assert len(drawn) == 3 and not check.notes  # nothing was refused
    assert drawn[0].max() == 4 and all(d.min() >= 0 for d in drawn)
    module = Says(lambda m, ids: m.table[ids[None]], table=torch.from_numpy(table))
    assert verify(path, module).agrees


def test_sizes_that_operators_relate(tmp_path: Path) -> None:
    """`x` [a, b] + `y` [c, d] broadcasts only where the sizes agree: no others are tried."""
    inputs = [VI("x", T.FLOAT, ["a", "b"]), VI("y", T.FLOAT, ["c", 6])]
    path = save(tmp_path / "m.onnx", [h.make_node("Add", ["x", "y"], ["z"])], inputs, [VI("z", T.FLOAT, None)])
    report = verify(path, Says(lambda m, x, y: x + y))
    assert report.agrees and all(r.sizes["b"] == 6 and r.sizes["a"] == r.sizes["c"] for r in report.runs)
    assert not any("refused" in note for note in report.notes)


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 0, 0]])
def test_sizes_hold_the_windows_of_pools(tmp_path: Path, pads: list[int]) -> None:
    """Over less than a window onnxruntime pools what is there; torch, and so the generated file, raises."""
    nodes = [h.make_node("MaxPool", [f"x{i}"], [f"x{i + 1}"], kernel_shape=[2, 2], strides=[2, 2]) for i in range(3)]
    nodes.append(h.make_node("AveragePool", ["x3"], ["y"], kernel_shape=[3, 3], pads=pads))
    ins, outs = [VI("x0", T.FLOAT, [1, 1, "h", "w"])], [VI("y", T.FLOAT, [1, 1, "a", "b"])]
    path = save(tmp_path / "pools.onnx", nodes, ins, outs)
    model = onnx.load(path)
    model.producer_name = "pytorch"
    onnx.save(model, path)
    generate(path, tmp_path / "pools.py")
    report = verify(path, tmp_path / "pools.py")
    assert report.agrees, report.problems()
    assert all(min(r.sizes.values()) >= (24 if sum(pads) == 0 else 16) for r in report.runs)


def test_every_branch_is_taken(tmp_path: Path) -> None:
    """A number that decides which branch runs is each constant that it is compared with, and something else."""
    number = h.make_tensor("k", T.INT64, [], [16000])
    branches = {
        f"{name}_branch": h.make_graph([h.make_node(op, ["x"], ["b"])], name, [], [VI("b", T.FLOAT, None)])
        for name, op in (("then", "Sin"), ("else", "Cos"))
    }
    nodes = [h.make_node("Equal", ["rate", "k"], ["c"]), h.make_node("If", ["c"], ["y"], **branches)]
    inputs = [VI("x", T.FLOAT, [8]), VI("rate", T.INT64, [])]
    graph = h.make_graph(nodes, "g", inputs, [VI("y", T.FLOAT, [8])], [number])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    right = verify(tmp_path / "m.onnx", Says(lambda m, x, rate: x.sin() if rate == 16000 else x.cos()))
    assert right.agrees and any("branches" in note for note in right.notes)
    assert not verify(tmp_path / "m.onnx", Says(lambda m, x, rate: x.sin())).agrees
    assert not verify(tmp_path / "m.onnx", Says(lambda m, x, rate: x.cos())).agrees


def test_one_symbol_is_one_size(tmp_path: Path) -> None:
    inputs = [VI("x", T.FLOAT, ["n", "n"]), VI("y", T.FLOAT, [2, "n"])]
    path = save(tmp_path / "m.onnx", [h.make_node("MatMul", ["y", "x"], ["z"])], inputs, [VI("z", T.FLOAT, None)])
    report = verify(path, Says(lambda m, x, y: y @ x))
    assert report.agrees and not report.notes and len({r.sizes["n"] for r in report.runs}) == 3


def test_a_refused_input_is_no_agreement(tmp_path: Path) -> None:
    """No shape that could be drawn fits 7 elements, so no run is possible."""
    inputs = [VI("x", T.FLOAT, [7]), VI("shape", T.INT64, [2])]
    nodes = [h.make_node("Constant", [], ["more"], value_ints=[100, 0]), h.make_node("Add", ["shape", "more"], ["s"])]
    nodes.append(h.make_node("Reshape", ["x", "s"], ["y"]))
    path = save(tmp_path / "m.onnx", nodes, inputs, [VI("y", T.FLOAT, None)])
    module = Says(lambda m, x, shape: x.reshape((shape + torch.tensor([100, 0])).tolist()))
    with pytest.raises(OnnxgenError, match="could not verify"):
        verify(path, module)
    feeds = {"x": np.arange(7, dtype=np.float32), "shape": np.array([-93, 1])}
    assert verify(path, module, feeds=[feeds]).agrees
    with pytest.raises(OnnxgenError, match="do not match the graph: shape"):
        verify(path, module, feeds=[{"x": feeds["x"]}])


def test_fixed_dims(linear: Path) -> None:
    report = verify(linear, right(), options=Options(input_shapes={"x": (11, 4)}))
    assert report.agrees and all(r.inputs["x"] == "float32 [11, 4]" for r in report.runs)


def test_random_numbers(tmp_path: Path) -> None:
    nodes = [h.make_node("RandomNormalLike", ["x"], ["r"]), h.make_node("Add", ["r", "x"], ["y"])]
    nodes.append(h.make_node("Neg", ["x"], ["z"]))
    ports = [VI(name, T.FLOAT, [3, 4]) for name in "xyz"]
    path = save(tmp_path / "m.onnx", nodes, ports[:1], ports[1:])
    report = verify(path, Says(lambda m, x: (x + torch.randn_like(x), -x)))
    assert report.agrees and [o.compared for o in report.runs[0].outputs] == ["shape and dtype", "values"]
    assert not verify(path, Says(lambda m, x: (x[0], -x))).agrees
    assert not verify(path, Says(lambda m, x: (x, x))).agrees


@pytest.mark.parametrize("dtype", ["FLOAT16", "BFLOAT16"])
def test_half_precision_has_its_tolerance(tmp_path: Path, dtype: str) -> None:
    kind = getattr(T, dtype)
    path = save(
        tmp_path / "m.onnx", [h.make_node("Identity", ["x"], ["y"])], [VI("x", kind, [4])], [VI("y", kind, [4])]
    )
    assert verify(path, Says(lambda m, x: x * 1.004)).agrees
    report = verify(path, Says(lambda m, x: x * (1.02 if kind == T.FLOAT16 else 1.2)))
    assert not report.agrees and any("computed in" in note for note in report.notes)


def test_rounding_that_the_graph_amplifies(tmp_path: Path) -> None:
    """sin(10000 x): another order of the same products is no difference, another factor is; and not all is forgiven."""
    ports = [VI("x", T.FLOAT, [500])], [VI("y", T.FLOAT, [500])]
    nodes = [h.make_node("Mul", ["x", "k"], ["a"]), h.make_node("Sin", ["a"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, *ports, k=np.array(1e4, np.float32))
    report = verify(path, Says(lambda m, x: (x * 300 / 3 * 100).sin()))
    assert report.agrees and any("last bits" in note for note in report.notes)
    assert not verify(path, Says(lambda m, x: (x * 10001).sin())).agrees
    assert not verify(path, Says(lambda m, x: (x * 1e4).sin() + 0.1)).agrees
    path = save(tmp_path / "m.onnx", nodes, *ports, k=np.array(1e6, np.float32))
    report = verify(path, Says(lambda m, x: (x * 300 / 3 * 1e4).sin()))
    assert report.agrees and any("from each of 1 intermediate result to the next" in note for note in report.notes)
    unseen = Says(lambda m, x: torch.from_numpy(np.sin(x.detach().numpy() * np.float32(300) / 3 * np.float32(1e4))))
    report = verify(path, unseen)  # no PyTorch function returns the product
    assert not report.agrees and not report.differs and "onnxruntime's own answer by" in report.untold["y"]
    assert verify(path, Says(lambda m, x: (x * 1e6).sin() + 1)).differs


def test_strings_and_sequences(tmp_path: Path) -> None:
    ports = [VI("x", T.STRING, [5])], [VI("y", T.STRING, [5])]
    path = save(tmp_path / "s.onnx", [h.make_node("Identity", ["x"], ["y"])], *ports)
    assert verify(path, Says(lambda m, x: x)).agrees
    assert not verify(path, Says(lambda m, x: x[::-1].copy())).agrees
    sequence = [h.make_tensor_sequence_value_info(name, T.FLOAT, [2]) for name in "xy"]
    path = save(tmp_path / "q.onnx", [h.make_node("Identity", ["x"], ["y"])], sequence[:1], sequence[1:])
    assert verify(path, Says(lambda m, x: list(x))).agrees
    assert not verify(path, Says(lambda m, x: x[1:])).agrees


# ---- oracles ---------------------------------------------------------------------------------------------------------


def test_the_reference_where_onnxruntime_cannot(linear: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise Refused("no kernel")

    monkeypatch.setattr(oracle_module.Onnxruntime, "__init__", refuse)
    report = verify(linear, right())
    assert report.agrees and {r.oracle for r in report.runs} == {"onnx.reference"}
    assert "onnxruntime can't load it: no kernel" in report.notes
    assert not verify(linear, right(lambda y: y + 1)).agrees


def test_the_reference_is_not_asked_what_it_gets_wrong(tmp_path: Path) -> None:
    ports = [VI("x", T.FLOAT, [2, 3, 4])], [VI("y", T.FLOAT, [2, 3, 4])]
    path = save(tmp_path / "m.onnx", [h.make_node("Softmax", ["x"], ["y"], axis=1)], *ports, opset=11)
    with pytest.raises(Refused, match="Softmax"):
        Reference(path, None, [])
    assert Onnxruntime(path, None, []).run({"x": np.zeros((2, 3, 4), np.float32)})[0].max() == pytest.approx(1 / 12)


def test_a_run_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless loop in the file is a refused input, not a hang."""
    body = h.make_graph(
        [h.make_node("Identity", ["c"], ["d"]), h.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [VI("i", T.INT64, []), VI("c", T.BOOL, []), VI("v", T.FLOAT, [2])],
        [VI("d", T.BOOL, []), VI("w", T.FLOAT, [2])],
    )
    nodes = [h.make_node("Loop", ["", "go", "x"], ["y"], body=body)]
    path = save(tmp_path / "m.onnx", nodes, [VI("x", T.FLOAT, [2])], [VI("y", T.FLOAT, [2])], go=np.array(True))
    monkeypatch.setattr(oracle_module, "TIMEOUT_SECONDS", 0.2)
    with pytest.raises(Refused):
        Onnxruntime(path, None, []).run({"x": np.zeros(2, np.float32)})


# ---- gradients -------------------------------------------------------------------------------------------------------


def test_a_gradient_that_is_not_finite(linear: Path) -> None:
    """Outputs equal and finite, but the square root of zero has an infinite slope."""
    module = right(lambda y: y + (y.detach() * 0 + y - y).abs().sqrt())
    report = verify(linear, module)
    assert all(r.agrees for r in report.runs) and not report.agrees
    assert report.gradients.not_finite == ["w", "b"]


def test_a_parameter_that_is_no_part_of_the_graph(linear: Path) -> None:
    module = right()
    module.extra = nn.Parameter(torch.zeros(1))
    report = verify(linear, module)
    assert report.agrees and report.gradients.unreached == ["extra"]


def test_a_backward_that_fails(linear: Path) -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise RuntimeError("no way back")

    report = verify(linear, right(Broken.apply))
    assert not report.agrees and "no way back" in report.gradients.error


# ---- training mode ---------------------------------------------------------------------------------------------------


class Trains(nn.Module):
    def __init__(self, function: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.norm, self.drop, self.function = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), function
        self.norm.running_mean.fill_(0.7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.fc(x))
        return nn.functional.dropout(x, 0.5, self.training) if self.function else self.drop(x)


@pytest.fixture
def training(tmp_path: Path) -> Path:
    path = tmp_path / "training.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = torch.onnx.TrainingMode.TRAINING
        shapes: dict[str, Any] = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}, "do_constant_folding": False}
        torch.onnx.export(Trains(), (torch.randn(4, 6),), path, dynamo=False, training=mode, opset_version=16, **shapes)
    return path


@pytest.mark.parametrize("function", [False, True])
def test_training_mode(training: Path, function: bool) -> None:
    module = Trains(function).eval()
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    report = verify(training, module)
    assert report.agrees and report.mode == "training", report.problems()
    assert not module.training and not module.norm.training
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[key]), f"{key} was not restored"


class Inside(nn.Module):
    """Dropout of attention's weights and between recurrent layers; `spelled`: by `nn.Dropout`, as exporters know it."""

    def __init__(self, spelled: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.drop, self.spelled = nn.Dropout(0.5), spelled
        self.lstm = nn.LSTM(6, 6, num_layers=2, dropout=0.5, batch_first=True)
        self.layers = nn.ModuleList(nn.LSTM(6, 6, batch_first=True) for _ in range(2))
        for (_, whole), (_, part) in zip(
            self.lstm.named_parameters(), [p for layer in self.layers for p in layer.named_parameters()], strict=True
        ):
            part.data = whole.data

    def forward(self, x: Tensor) -> Tensor:
        if self.spelled:
            x = self.layers[1](self.drop(self.layers[0](x)[0]))[0]
            return 2 * self.drop((x @ x.transpose(1, 2) / 6**0.5).softmax(-1)) @ x
        x, ratio = self.lstm(x)[0], self.drop.p if self.training else 0.0
        attend = nn.functional.scaled_dot_product_attention
        return attend(x, x, x, dropout_p=ratio) + attend(x, x, x, None, ratio)


def test_no_dropout_of_a_layers_own_drops_anything(tmp_path: Path) -> None:
    path, module = tmp_path / "training.onnx", Inside(spelled=False).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how: dict[str, Any] = {"dynamo": False, "training": torch.onnx.TrainingMode.TRAINING, "opset_version": 17}
        torch.onnx.export(Inside(spelled=True), (torch.randn(2, 3, 6),), path, do_constant_folding=False, **how)
    report = verify(path, module)
    assert report.agrees and report.mode == "training", report.problems()
    assert module.lstm.dropout == 0.5


def test_training_mode_is_compared_in_training_mode(training: Path) -> None:
    module = Trains()
    module.norm.forward = lambda x: nn.functional.batch_norm(  # type: ignore[method-assign]
        x, module.norm.running_mean, module.norm.running_var, module.norm.weight, module.norm.bias
    )
    assert not verify(training, module).agrees


# ---- generated files -------------------------------------------------------------------------------------------------


@pytest.fixture
def mnist(tmp_path: Path, shared: Path) -> tuple[Path, Path]:
    model = shared / "models" / "burn" / "mnist.onnx"
    out = tmp_path / "model.py"
    generate(model, out)
    return model, out


def test_generated_file(mnist: tuple[Path, Path]) -> None:
    model, out = mnist
    modules, files = set(sys.modules), sorted(out.parent.rglob("*"))
    report = verify(model, out, integrity=True)
    assert report.agrees, report.problems()
    assert report.gradients.reached == report.gradients.parameters > 0 and not report.gradients.unreached
    assert report.integrity is not None and report.integrity.tensors >= 18
    assert not [m for m in set(sys.modules) - modules if "imported" in m]
    assert sorted(out.parent.rglob("*")) == files  # no __pycache__


def test_a_detached_parameter_is_a_difference(mnist: tuple[Path, Path]) -> None:
    model, out = mnist
    source = out.read_text()
    lines = [line for line in source.splitlines() if "self.conv2(" in line]
    assert len(lines) == 1
    target = lines[0].partition("=")[0]
    out.write_text(source.replace(lines[0], f"{lines[0]}\n{target}= {target.strip()}.detach()"))
    report = verify(model, out)
    assert not report.agrees and all(r.agrees for r in report.runs)
    assert {"conv2.weight", "conv2.bias", "conv1.weight"} <= set(report.gradients.missing)
    assert "fc1.weight" not in report.gradients.missing


def test_integrity_sees_one_bit(mnist: tuple[Path, Path]) -> None:
    model, out = mnist
    sidecar = out.with_suffix(".safetensors")
    data = bytearray(sidecar.read_bytes())
    data[-1] ^= 1
    sidecar.write_bytes(data)
    report = verify(model, out, integrity=True)
    assert not report.agrees and report.integrity is not None
    assert len(report.integrity.differences) == 1 and "1 of " in report.integrity.differences[0]
    with pytest.raises(OnnxgenError, match="path"):
        verify(model, load(model), integrity=True)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def broken(:", "can't be imported: SyntaxError"),
        ("import no_such_package_of_anybody", "can't be imported: ModuleNotFoundError"),
        ("x = 1", "no class Model"),
        (
            "class Model:\n    @classmethod\n    def from_pretrained(cls):\n        raise ValueError('old')",
            "can't be loaded",
        ),
    ],
)
def test_files_that_are_no_generated_module(linear: Path, tmp_path: Path, source: str, said: str) -> None:
    out = tmp_path / "wrong.py"
    out.write_text(source)
    with pytest.raises(OnnxgenError, match=said):
        verify(linear, out)
    with pytest.raises(OnnxgenError, match="can't read"):
        verify(linear, tmp_path / "absent.py")


def test_cast_weights(mnist: tuple[Path, Path]) -> None:
    model, out = mnist
    generate(model, out, Options(dtype="float64"), force=True)
    report = verify(model, out)
    assert report.agrees and any("cast to float64" in note for note in report.notes)
    assert report.runs[0].outputs[0].got.startswith("float64")


# ---- load ------------------------------------------------------------------------------------------------------------


def test_load(mnist: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = mnist
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    before = sorted(model.parent.iterdir())
    module = load(model)
    assert not list(folder.iterdir()) and sorted(model.parent.iterdir()) == before
    assert not module.training and verify(model, module).agrees
    try:
        module(torch.zeros(1, 5))
    except Exception:
        shown = traceback.format_exc()
    assert "<onnxgen mnist.onnx" in shown and "self.conv1(" in shown
    again = load(model)
    assert type(again) is not type(module)


def test_load_refuses_what_generate_refuses(tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError):
        load(tmp_path / "absent.onnx")


def test_without_pytorch_it_says_what_to_install(tmp_path: Path) -> None:
    """The generator is installed without it."""
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Absent())
from onnxgen.cli import run
sys.exit(run(["verify", sys.argv[1], sys.argv[2]]))
"""
    command = [sys.executable, "-c", code, str(ROOT / "samples/mnist/mnist.onnx"), str(tmp_path / "m.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 2 and "verify needs PyTorch" in done.stderr, done.stderr


def test_functions_and_modules_of_one_name() -> None:
    """`onnxgen.verify` and `onnxgen.export` are called and imported from, whichever was first."""
    import onnxgen.export
    import onnxgen.verify
    from onnxgen.verify import verify as inner

    assert callable(onnxgen.verify) and callable(onnxgen.export) and callable(inner)
    assert onnxgen.verify.VerifyReport is VerifyReport is onnxgen.VerifyReport
    with pytest.raises(AttributeError, match="nonsense"):
        _ = onnxgen.nonsense  # type: ignore[attr-defined]
