"""One stored tensor is one parameter, as in the network that was exported; copies that are equal are not."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.ops.harness import run_model
from tests.support.exported import exported
from tests.support.tied_nets import COPIED, SHARED, WIDTH, Block, blocks, encoder

CASES = ("legacy-17", "legacy-17-train", "dynamo-18")
SHARED_FOLDER = Path(__file__).parents[2].parent / "shared" / "findings"


def drawn(make: object) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    assert callable(make)
    return make(), torch.randn(2, 5, WIDTH)


def parameters(model: nn.Module) -> int:
    return sum(1 for _ in model.parameters())


def trained(model: nn.Module, x: Tensor) -> nn.Module:
    """Two steps."""
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(2):
        optimizer.zero_grad()
        y = model(x)
        (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).mean().backward()
        optimizer.step()
    return model


def assert_trains_as(made: nn.Module, original: nn.Module, x: Tensor) -> None:
    assert parameters(made) == parameters(original)
    theirs = dict(trained(original, x).named_parameters(remove_duplicate=False))
    ours = dict(trained(made, x).named_parameters(remove_duplicate=False))
    for key in ours.keys() & theirs.keys():
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-3, atol=1e-4, msg=lambda m, k=key: f"{k}: {m}")
    torch.testing.assert_close(made(x), original(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [*SHARED, *COPIED])
def test_it_trains_as_the_original(name: str, case: str) -> None:
    net, x = drawn({**SHARED, **COPIED}[name])
    model = exported(net.train(case.endswith("train")), [x], case)
    assert_trains_as(run_model(model, {"i0": x.numpy()}).model, net, x)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["a layer in three blocks", "a head in a list", "tensors that forward reads"])
def test_what_was_trained_goes_back(name: str, case: str, tmp_path: Path) -> None:
    net, x = drawn(SHARED[name])
    onnx.save(exported(net.train(case.endswith("train")), [x], case), tmp_path / "net.onnx")
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "model.py")
    made = trained(onnxgen.load(tmp_path / "net.onnx"), x)
    torch.save(made.state_dict(), tmp_path / "tuned.pt")
    onnxgen.export(tmp_path / "model.py", weights=tmp_path / "tuned.pt", out=tmp_path / "out.onnx")
    session = ort.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    wanted = trained(net, x)(x).detach().numpy()
    np.testing.assert_allclose(session.run(None, {"i0": x.numpy()})[0], wanted, 1e-3, 1e-4)


def test_a_layers_own_tensor_is_read_from_the_layer() -> None:
    net, x = drawn(SHARED["tensors that forward reads"])
    ran = run_model(exported(net.eval(), [x]), {"i0": x.numpy()})
    assert "self.norm1.weight" in ran.forward and ran.model.state_dict().keys() == net.state_dict().keys()


@pytest.mark.parametrize(
    "name,count", [("tied_called_twice", 2), ("tied_matrix_in_two_blocks", 10), ("shared_head_in_list", 10)]
)
def test_files_that_had_more_parameters_than_tensors(name: str, count: int) -> None:
    path = SHARED_FOLDER / f"{name}.onnx"
    if not path.exists():
        pytest.skip("the folder `shared` is not there")
    assert parameters(onnxgen.load(path)) == count


def test_copied_attentions_whose_biases_are_dropped() -> None:
    """The dynamo exporter drops biases of zeros; each attention still has one, which is not trained."""
    net, x = drawn(lambda: encoder(False))
    for name, tensor in net.named_parameters():
        if name.endswith("out_proj.bias"):
            nn.init.zeros_(tensor)
    made = run_model(exported(net.eval(), [x], "dynamo-18"), {"i0": x.numpy()}).model
    assert parameters(made) == parameters(net)
    assert sum(not value.requires_grad for value in made.parameters()) == 3


# ---- without the names of the parameters


def stripped(model: onnx.ModelProto) -> onnx.ModelProto:
    """The file as simplifiers leave it: no Identity of a tensor, and no metadata."""
    graph = model.graph
    stored = {tensor.name for tensor in graph.initializer}
    renamed = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Identity" and n.input[0] in stored}
    kept = [node for node in graph.node if node.output[0] not in renamed]
    del graph.node[:]
    graph.node.extend(kept)
    for node in graph.node:
        del node.metadata_props[:]
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
    return model


WHOLE = {
    "tied: the rest of the blocks differs": lambda: blocks(nn.Linear(WIDTH, WIDTH)),
    "tied: whole blocks, without a trace of merging": lambda: nn.Sequential(*[Block(nn.Linear(WIDTH, WIDTH))] * 3),
    "copied: an untrained encoder": lambda: encoder(False),
}


@pytest.mark.parametrize("name", WHOLE)
def test_layers_are_compared_as_a_whole(name: str) -> None:
    """Node names still tell the layers, as in files of the older exporter."""
    net, x = drawn(WHOLE[name])
    ran = run_model(stripped(exported(net.eval(), [x])), {"i0": x.numpy()})
    ours = [tensor for tensor in ran.model.parameters() if tensor.ndim > 1]
    assert len(ours) == sum(1 for tensor in net.parameters() if tensor.ndim > 1)


def test_a_guess_is_told_and_overruled(tmp_path: Path) -> None:
    net, x = drawn(lambda: encoder(False))
    onnx.save(stripped(exported(net.eval(), [x])), tmp_path / "net.onnx")
    report = generate(tmp_path / "net.onnx", tmp_path / "net.py").report
    assert [note for note in report.notes if "--tied makes it one parameter" in note]
    one = onnxgen.load(tmp_path / "net.onnx", Options(tied="."))
    assert [t.shape for n, t in one.named_parameters() if "linear1.weight" in n] == [(16, 8)]


# ---- options


@pytest.mark.parametrize("case", CASES)
def test_untied_layers_part(case: str) -> None:
    net, x = drawn(SHARED["a layer in three blocks"])
    model = exported(net.train(case.endswith("train")), [x], case)
    made = run_model(model, {"i0": x.numpy()}, Options(untied=".")).model
    apart = copy.deepcopy(net)
    for block in apart.children():
        assert isinstance(block, Block)
        block.lin = copy.deepcopy(block.lin)
    assert_trains_as(made, apart, x)


@pytest.mark.parametrize("option", ["tied", "untied"])
def test_a_pattern_must_match_a_shared_tensor(option: str) -> None:
    net, x = drawn(SHARED["a layer in three blocks"])
    model = exported(net.eval(), [x], "legacy-17-train")
    for pattern in ("own", "nothing of this name"):
        with pytest.raises(OnnxgenError, match=f"--{option} '{pattern}' matches the name of no tensor"):
            run_model(model, {"i0": x.numpy()}, Options(**{option: pattern}))
    with pytest.raises(OnnxgenError, match="is not a regular expression"):
        Options(**{option: "("})


# ---- which kernels are trained


class Filtered(nn.Module):
    """A fixed filter before a layer, made of constants, or stored as a buffer or as an attribute."""

    kernel: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.conv = kind, nn.Conv1d(5, 4, 3)
        if kind in ("buffer", "persistent"):
            self.register_buffer("kernel", sinc(), persistent=kind == "persistent")
        elif kind == "attribute":
            self.kernel = sinc()
        elif kind == "parameter":
            self.kernel = nn.Parameter(sinc())

    def forward(self, x: Tensor) -> Tensor:
        kernel = sinc() if self.kind == "computed" else self.kernel
        made: Tensor = self.conv(nn.functional.conv1d(x, kernel, padding=4, groups=5))
        return made


def sinc() -> Tensor:
    at = torch.arange(-4, 5).float()
    made = torch.sinc(at / 3) * torch.hamming_window(9)
    return (made / made.sum()).view(1, 1, -1).repeat(5, 1, 1)


@pytest.mark.parametrize("kind", ["buffer", "persistent", "attribute", "computed", "parameter"])
def test_a_kernel_is_trained_as_recorded(kind: str) -> None:
    """The dynamo exporter writes of each call what it takes."""
    net, x = drawn(lambda: Filtered(kind))
    made = run_model(exported(net.eval(), [x], "dynamo-18"), {"i0": x.numpy()}).model
    asked = [tensor for tensor in made.parameters() if tensor.requires_grad]
    assert len(asked) == parameters(net)


def test_a_parameter_that_was_merged_into_a_buffer_is_trained() -> None:
    net, x = drawn(lambda: Filtered("persistent"))
    assert isinstance(net, Filtered)
    net.conv = nn.Conv1d(5, 5, 9, padding=4, groups=5, bias=False)
    net.conv.weight.data.copy_(net.kernel)
    model = exported(net.eval(), [x], "dynamo-18")
    assert len([t for t in model.graph.initializer if numpy_helper.to_array(t).size == 45]) == 1
    assert any(tensor.requires_grad for tensor in run_model(model, {"i0": x.numpy()}).model.parameters())
