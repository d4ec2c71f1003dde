"""What a network does in training alone: a pass may not change it, though evaluation stays the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onnxgen.errors import WrongRewrite
from onnxgen.graph.annotations import RESTORED
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.paranoid.check import Checker
from onnxgen.paranoid.trained import may_follow
from onnxgen.passes.folded import restore_batchnorm
from onnxgen.reader import read
from onnxgen.shapes import propagate

Harm = Callable[[ir.Model], None]
NET = (
    '<ir_version: 8, opset_import: ["": 17]> net (float[2,3,8,8] x) => (float[2,5,4,4] y) '
    "<float[3,3,3,3] w, float[3] b, float[5,3,3,3] v, float[5] c, float ratio = {0.25}> "
    "{ a = Conv(x, w, b) r = Relu(a) d = Dropout(r, ratio) y = Conv(d, v, c) }"
)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(NET)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (3, 3, 3, 3)), ("b", (3,)), ("v", (5, 3, 3, 3)), ("c", (5,))):
        tensor = onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        kept = [t for t in model.graph.initializer if t.name != name]
        del model.graph.initializer[:]
        model.graph.initializer.extend([*kept, tensor])
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def checked(path: Path, harm: Harm, restores: bool) -> None:
    """Put norms back, checked; then harm them, or what else is there."""
    options = Options(restore_batchnorm=restores)
    model, checker = read(path, options), Checker()
    propagate(model.graph, options)

    def step(model: ir.Model, options: Options) -> None:
        restore_batchnorm(model, options)
        harm(model)

    step.__name__ = "restore_batchnorm"
    checker.run(step, model, options)


def nothing(model: ir.Model) -> None: ...


def without_a_drop(model: ir.Model) -> None:
    node = next(node for node in all_nodes(model.graph) if node.op_type == "Dropout")
    first = node.inputs[0]
    assert first is not None
    ir.convenience.replace_all_uses_with(node.outputs[0], first)


def unasked(model: ir.Model) -> None:
    restore_batchnorm(model, Options(restore_batchnorm=True))


def other_statistics(model: ir.Model) -> None:
    """The variance is 4 and the weight 2: in evaluation that is the identity, too."""
    norm = next(node for node in all_nodes(model.graph) if node.op_type == "BatchNormalization")
    for index, number in ((1, 2.0), (4, 4.0)):
        value = norm.inputs[index]
        assert value is not None
        value.const_value = ir.tensor(np.full(3, number, np.float32))


def other_axis(model: ir.Model) -> None:
    RESTORED.set(model, [replace(norm, axis=1 - norm.axis) for norm in RESTORED.get(model) or ()])


def not_looked_for(model: ir.Model) -> None:
    RESTORED.set(model, None)


@pytest.mark.parametrize("restores", [False, True])
def test_what_is_right_is_not_refused(net: Path, restores: bool) -> None:
    checked(net, nothing, restores)


@pytest.mark.parametrize(
    ("harm", "restores", "said"),
    [
        (without_a_drop, False, "there were 1 nodes that drop elements or draw random numbers, and now there are 0"),
        (unasked, False, "there were 0 norms of a batch, and now there are 1"),
        (other_statistics, True, "is not the identity: its scale is not 1"),
        (other_axis, True, "the norm of w is folded along axis 1"),
        (not_looked_for, True, "no norms were restored"),
    ],
)
def test_what_is_trained_otherwise_is_refused(net: Path, harm: Harm, restores: bool, said: str) -> None:
    with pytest.raises(WrongRewrite, match=f"the pass restore_batchnorm changed how the network is trained: .*{said}"):
        checked(net, harm, restores)


def test_the_strides_of_many_cells_may_be_no_weights() -> None:
    """A detector's row of strides begins with thousands of equal numbers; drawn numbers are weights."""
    strides = np.repeat(np.float32([8, 16, 32]), [6400, 1600, 400])[None]
    drawn = np.random.default_rng(0).normal(size=strides.shape).astype(np.float32)
    assert may_follow(ir.tensor(strides)) and not may_follow(ir.tensor(drawn))
