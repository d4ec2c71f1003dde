"""`find_head` and `replace_head` with the listed classifiers, real files, and models that are not classifiers."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen import OnnxgenError
from onnxgen.pipeline import generate
from onnxgen.surgery.ports import example_for
from onnxgen.training import find_head, open_model, replace_head
from tests.training.classifiers import CLASSIFIERS, MORE, Classifier
from tests.zoo import ZOO
from tests.zoo.export import export


def generated(entry: object, folder: Path, name: str, exporter: str = "legacy") -> tuple[nn.Module, nn.Module]:
    """Return the generated model in evaluation mode, and its original."""
    path = folder / f"{name}.onnx"
    original = export(entry, path, exporter, 17 if exporter == "legacy" else 18)  # type: ignore[arg-type]
    generate(path, folder / f"headed_{name}.py")
    return open_model(folder / f"headed_{name}.py").eval(), original


def learn(model: nn.Module, inputs: tuple[Tensor, ...], axis: int, parameters: list[nn.Parameter]) -> list[float]:
    """Return the losses of five steps of SGD on one batch."""
    optimizer, losses = torch.optim.SGD(parameters, lr=0.01), []
    for _ in range(5):
        scores = model(*inputs).movedim(axis, 1)
        target = torch.arange(scores[:, 0].numel()).reshape(scores[:, 0].shape) % scores.shape[1]
        loss = F.cross_entropy(scores, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", [*CLASSIFIERS, *MORE])
def test_the_listed_classifiers(name: str, tmp_path: Path) -> None:
    """The head is found, replaced by one with 3 classes, and trained in a plain loop."""
    case: Classifier = (CLASSIFIERS | MORE)[name]
    model, original = generated(case.entry, tmp_path, name, case.exporter)
    found, layer = find_head(model), original.get_submodule(case.head)
    assert (found.path, found.classes, found.also) == (case.head, len(layer.weight), case.also)
    torch.testing.assert_close(model.get_submodule(found.path).weight.flatten(), layer.weight.flatten())
    inputs = case.entry.inputs(3)
    shape = list(model(*inputs).shape)
    torch.manual_seed(0)
    replace_head(model, 3)
    shape[case.axis] = 3
    assert list(model(*inputs).shape) == shape
    losses = learn(model, inputs, case.axis, list(model.parameters()))
    assert losses[-1] < losses[0]
    head = model.get_submodule(case.head)
    assert all(p.grad is not None and p.grad.any() for p in (head.weight, next(model.parameters())))


def test_there_are_twenty_classifiers() -> None:
    assert len(CLASSIFIERS) == 20


NONE = {
    "unet_transpose": r"outc gives scores for every position of a map .*there are outc \(6 -> 2\), up2",
    "bert": "last_hidden_state: .*native_layer_norm.*pooled: .*tanh.*there are pooler.dense",
    "gpt2": "lm_head shares its weight with transformer.wte.weight",
    "decoder": "tanh.*there are project",
    "hf_whisper": "native_layer_norm",
    "cross_attention": "no classifier",
}


@pytest.mark.parametrize("name", NONE)
def test_models_without_a_classifier_are_refused(name: str, tmp_path: Path) -> None:
    """The error lists candidates, and the model is not changed."""
    model, _ = generated(ZOO[name], tmp_path, name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for verb in (find_head, lambda m: replace_head(m, 3)):
        with pytest.raises(OnnxgenError, match=NONE[name]) as error:
            verb(model)
        assert "\n" not in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


REAL = {
    "burn/mnist.onnx",
    "fastml/conv1d_small_keras.onnx",
    "fastml/conv2d_small_mp_keras.onnx",
    "fastml/three_layer_keras.onnx",
    "ort/java/testdata/cnn_mnist_pytorch.onnx",
    "ort/winml/test/collateral/models/mnist.onnx",
    "ppocr/cls-model.onnx",
    "vnncomp2021/cifar10_resnet/resnet_2b.onnx",
    "vnncomp2021/marabou-cifar10/cifar10_small.onnx",
    "vnncomp2021/mnistfc/mnist-net_256x2.onnx",
    "vnncomp2021/oval21/cifar_base_kw.onnx",
    "vnncomp2021/verivital/Convnet_maxpool.onnx",
    "vnncomp2023/vit/pgd_2_3_16.onnx",
}


@pytest.mark.parametrize("name", sorted(REAL))
def test_classifiers_of_real_files(name: str, shared: Path, tmp_path: Path) -> None:
    """The head is the last product with a stored matrix in the ONNX graph."""
    path = shared / "models" / name
    graph = onnx.load(path).graph
    constants = {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}
    held = {t.name: t for t in graph.initializer} | constants
    stored = {name: onnx.numpy_helper.to_array(t) for name, t in held.items()}
    shapes = {n.output[0]: n.input[0] for n in graph.node if n.op_type in ("Reshape", "Identity")}
    products = [n for n in graph.node if n.op_type in ("Gemm", "MatMul", "Conv")]
    matrices = [stored[shapes.get(i, i)] for n in products for i in n.input[1:2] if shapes.get(i, i) in stored]
    last = torch.tensor(matrices[-1]).squeeze()
    module = f"real_{path.stem.replace('-', '_')}"
    generate(path, tmp_path / f"{module}.py")
    model = open_model(tmp_path / f"{module}.py").eval()
    head = model.get_submodule(find_head(model).path)
    weight = head.weight.detach().squeeze()
    assert weight.numel() == last.numel()
    torch.testing.assert_close(weight.flatten().sort().values, last.flatten().sort().values)
    replace_head(model, 3)
    example = example_for(model)
    scores = model(*example)
    assert scores.shape[1] == 3
    scores[:, 0].sum().backward()
    assert head.weight.grad is not None


def test_a_named_head(tmp_path: Path) -> None:
    """A named head is replaced, even if it scores every position."""
    model, _ = generated(ZOO["unet_transpose"], tmp_path, "named")
    replace_head(model, 5, head="outc")
    assert model(torch.zeros(1, 3, 16, 16)).shape == (1, 5, 16, 16)
