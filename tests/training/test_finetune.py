"""Fine-tuning of generated and hand-written models, in plain loops."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import onnxgen
from onnxgen import OnnxgenError
from onnxgen.pipeline import generate
from onnxgen.training import (
    find_head,
    freeze,
    open_model,
    param_groups,
    replace_head,
    reset,
)
from tests.conftest import ROOT

MNIST = ROOT / "samples" / "mnist" / "mnist.onnx"


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], nn.Module]]:
    """Return a function that opens the sample's generated model, in training mode."""
    path = tmp_path_factory.mktemp("mnist") / "finetuned_mnist.py"
    generate(MNIST, path)
    yield lambda: open_model(path)


class Tower(nn.Module):
    """A hand-written model: a stem, two layers of two blocks, a head. The class takes an argument."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.layer1 = nn.Sequential(self._block(), self._block())
        self.layer2 = nn.Sequential(self._block(), self._block())
        self.fc = nn.Linear(4, classes)

    @staticmethod
    def _block() -> nn.Module:
        return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


def images(count: int = 16, side: int = 8) -> Tensor:
    return torch.randn(count, 1, side, side, generator=torch.Generator().manual_seed(0)) * 3 + 1


def step(model: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    F.cross_entropy(model(x), torch.arange(len(x)) % 3).backward()
    optimizer.step()


# ---- param_groups ----------------------------------------------------------------------------------------------------


def test_groups_contain_every_parameter_once(mnist: Callable[[], nn.Module]) -> None:
    model = mnist()
    freeze(model, "conv1")
    groups = param_groups(model, lr=0.01, head_lr=10, weight_decay=0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    found = {g["name"]: ({names[id(p)] for p in g["params"]}, g["lr"], g["weight_decay"]) for g in groups}
    matrices = {"conv1.weight", "conv2.weight", "conv3.weight", "fc1.weight"}
    biases = {"conv1.bias", "conv2.bias", "conv3.bias", "fc1.bias", "norm1.weight", "norm1.bias"}
    assert found == {
        "body": (matrices, 0.01, 0.1),
        "body no decay": (biases, 0.01, 0.0),
        "head": ({"fc2.weight"}, pytest.approx(0.1), 0.1),
        "head no decay": ({"fc2.bias", "norm2.weight", "norm2.bias"}, pytest.approx(0.1), 0.0),
    }
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad):
        assert len(kind(groups).param_groups) == 4


def test_layer_decay_lowers_the_rate_block_by_block() -> None:
    groups = param_groups(Tower(3), lr=1.0, layer_decay=0.5)
    rates = {g["name"]: g["lr"] for g in groups if not g["name"].endswith("no decay")}
    names = ["stem.0", "layer1.0.0", "layer1.1.0", "layer2.0.0", "layer2.1.0", "fc"]
    assert rates["fc"] == 1.0 and rates["layer2.1.0"] < 1.0 and len(rates) == len(names)
    assert [rates[a] for a in names] == sorted(rates.values())


def test_tied_parameters_are_in_one_group() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    assert [len(g["params"]) for g in param_groups(model, weight_decay=0.1)] == [1]


class Reader(nn.Module):
    """Reads four characters and their place: two heads, one with its classes along two axes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.characters, self.place = nn.Linear(5, 6), nn.Linear(6, 4 * 36), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.body(x))
        return self.characters(x).reshape(-1, 4, 36), self.place(x)


def test_the_heads_of_all_outputs_get_head_lr() -> None:
    found = {g["name"]: len(g["params"]) for g in param_groups(Reader(), lr=1, head_lr=10, example=torch.randn(2, 5))}
    assert found == {"body": 1, "body no decay": 1, "head": 2, "head no decay": 2}
    named = param_groups(Reader(), lr=1, head_lr=10, head="place")
    assert {g["name"]: len(g["params"]) for g in named} == {
        "body": 2,
        "body no decay": 2,
        "head": 1,
        "head no decay": 1,
    }
    with pytest.raises(OnnxgenError, match="'palace'.*place"):
        param_groups(Reader(), lr=1, head_lr=10, head="palace")


def test_head_lr_without_lr_is_refused() -> None:
    with pytest.raises(OnnxgenError, match="give lr="):
        param_groups(Tower(3), head_lr=10)


def test_a_training_loop_with_accelerate(mnist: Callable[[], nn.Module]) -> None:
    """In another library's loop, the head learns and frozen layers don't change."""
    accelerate = pytest.importorskip("accelerate")
    model = replace_head(mnist(), 3)
    freeze(model, "conv?", "norm1")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(param_groups(model, lr=1e-3, head_lr=10)))
    prepared.train()
    losses = []
    for _ in range(5):
        loss = F.nll_loss(prepared(images(12, 28)), torch.arange(12) % 3)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    stayed = {key.split(".")[0] for key, value in model.state_dict().items() if torch.equal(value, before[key])}
    assert stayed == {"conv1", "conv2", "conv3", "norm1"}


# ---- replace_head ----------------------------------------------------------------------------------------------------


def test_a_norm_over_the_classes_is_replaced_with_the_head(mnist: Callable[[], nn.Module]) -> None:
    """The sample ends in fc2, a BatchNorm over ten classes, and log_softmax. Kept classes keep their scores."""
    model, old = mnist().eval(), mnist().eval()
    head = find_head(model)
    assert (head.path, head.classes, head.features, head.also) == ("fc2", 10, 32, ("norm2",))
    assert replace_head(model, 3, keep={0: 7, 2: 1}) is model and not model.training
    assert model.norm2.num_features == 3 and model.fc2.out_features == 3 and model.fc2.weight.requires_grad
    x = torch.randn(4, 1, 28, 28)
    scores: list[Tensor] = []
    for net in (model, old):
        hook = net.norm2.register_forward_hook(lambda _, __, y: scores.append(y))
        net(x)
        hook.remove()
    torch.testing.assert_close(scores[0][:, [0, 2]], scores[1][:, [7, 1]])
    bound = 32**-0.5  # that of a new nn.Linear
    assert 0 < abs(model.fc2.bias[1]) <= bound and 0.5 * bound < model.fc2.weight[1].abs().max() <= bound
    assert (model.norm2.running_mean[1], model.norm2.running_var[1], model.norm2.weight[1]) == (0, 1, 1)


def test_a_loaded_model_knows_its_inputs() -> None:
    assert find_head(onnxgen.load(MNIST)).path == "fc2"


def test_initialisations() -> None:
    made = {}
    for init in ("default", "zeros", "kaiming_normal", lambda w: w.fill_(2.0)):
        model = Tower(10)
        torch.manual_seed(3)
        replace_head(model, 5, init=init, example=images(2))
        made[str(init)[:7]] = model.fc
    torch.manual_seed(3)
    fresh = nn.Linear(4, 5)
    torch.testing.assert_close(made["default"].weight, fresh.weight)
    torch.testing.assert_close(made["default"].bias, fresh.bias)
    assert not made["zeros"].weight.any() and (made["<functi"].weight == 2).all()
    with pytest.raises(OnnxgenError, match="not in torch.nn.init"):
        replace_head(Tower(3), 2, init="best", example=images(2))


@pytest.mark.parametrize(
    ("device", "dtype"), [("meta", torch.float32), ("cpu", torch.bfloat16), ("cpu", torch.float64)]
)
def test_devices_and_dtypes(device: str, dtype: torch.dtype, mnist: Callable[[], nn.Module]) -> None:
    model = replace_head(mnist().to(device, dtype), 3)
    assert (model.fc2.weight.device.type, model.fc2.weight.dtype, model.fc2.weight.shape) == (device, dtype, (3, 32))
    assert model(torch.zeros(2, 1, 28, 28, device=device, dtype=dtype)).shape == (2, 3)


class Plain(nn.Module):
    """A head of plain parameters, followed by a scale per class. The module stores the number of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 10
        self.weight, self.bias = nn.Parameter(torch.randn(4, 10)), nn.Parameter(torch.randn(10))
        self.scale, self.temperature = nn.Parameter(torch.rand(10) + 1), nn.Parameter(torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        x = (x.flatten(0, 1) @ self.weight + self.bias).reshape(batch, length, self.size)
        return (x * self.scale / self.temperature).log_softmax(-1)


def test_a_head_of_plain_parameters() -> None:
    """Kept classes have the same odds."""
    model, x = Plain(), torch.randn(2, 3, 4)
    before = model(x)
    head = find_head(model, x)
    assert (head.path, head.classes, head.features, head.also) == ("weight", 10, 4, ("bias", "scale"))
    replace_head(model, 3, keep=[7, None, 2], example=x)
    assert model.weight.shape == (4, 3) and model.size == 3 and model.scale[1] == 1 and model.bias[1] == 0
    after = model(x)
    torch.testing.assert_close(after[..., 0] - after[..., 2], before[..., 7] - before[..., 2])


class Siamese(nn.Module):
    """One encoder and one head, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.fc = nn.Linear(4, 5), nn.Linear(5, 6)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.fc(torch.relu(self.encoder(a))), self.fc(torch.relu(self.encoder(b)))


def test_a_head_that_is_called_twice() -> None:
    model, x = Siamese(), {"a": torch.randn(2, 4), "b": torch.randn(2, 4)}
    replace_head(model, 3, example=x)
    assert [y.shape for y in model(**x)] == [(2, 3), (2, 3)]
    groups = param_groups(model, lr=1.0, head_lr=2.0, example=x)
    assert {g["name"]: (g["lr"], len(g["params"])) for g in groups} == {
        "body": (1.0, 1), "body no decay": (1.0, 1), "head": (2.0, 1), "head no decay": (2.0, 1)
    }  # fmt: skip


class Fixed(nn.Module):
    """The code contains the number of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).reshape(-1, 10).softmax(1)


def test_a_number_of_classes_fixed_in_the_code_is_refused() -> None:
    model = Fixed()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(OnnxgenError, match="change 10 in the code"):
        replace_head(model, 3, example=torch.zeros(3, 4))
    assert model.fc.out_features == 10 and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


class Viewed(nn.Module):
    """A reshape of all rows to the number of classes, in several lines."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).view(
            1, 3,
            10,
        )  # fmt: skip


def test_the_line_of_a_reshape_to_the_number_of_classes_is_told() -> None:
    lines, first = inspect.getsourcelines(Viewed)
    line = first + lines.index("            10,\n")
    with pytest.raises(OnnxgenError, match="the model fails with 2 classes in fc") as caught:
        replace_head(Viewed(), 2, example=torch.zeros(3, 4))
    way = f"-> line {line} of test_finetune.py: write -1 for 10, or replace fc by hand"
    assert str(caught.value).endswith(way)


def test_wrong_arguments_of_replace_head() -> None:
    x = images(2)
    for arguments, message in (
        ({"classes": 0}, "at least 1 class"),
        ({"classes": 3, "keep": {0: 99}}, "new class 0 to old class 99"),
        ({"classes": 3, "head": "fcc"}, "no layer with weights is called 'fcc'.*fc"),
        ({"classes": 3, "head": "stem"}, "stem.0 computes 4 values, but the output is 2x10"),
        ({"classes": 3, "output": 4}, "no output 4"),
    ):
        with pytest.raises(OnnxgenError, match=message):
            replace_head(Tower(10), example=x, **arguments)  # type: ignore[arg-type]
    with pytest.raises(OnnxgenError, match="fails on the example .RuntimeError"):
        find_head(Tower(10), torch.zeros(2, 7, 8, 8))
    with pytest.raises(OnnxgenError, match="the inputs of the model are unknown.*example="):
        replace_head(Tower(10), 3)


def test_a_checkpoint_of_a_replaced_head(mnist: Callable[[], nn.Module], tmp_path: Path) -> None:
    """The file is enough to open the model and to export it. A file that differs elsewhere is refused."""
    model = replace_head(mnist(), 3).eval()
    file = inspect.getfile(type(model))
    save_file(model.state_dict(), tmp_path / "three.safetensors")
    opened, x = open_model(file, tmp_path / "three.safetensors").eval(), torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(opened(x), model(x), rtol=0, atol=0)
    onnxgen.export(file, MNIST, tmp_path / "three.safetensors", tmp_path / "three.onnx")
    (scores,) = onnxruntime.InferenceSession(tmp_path / "three.onnx").run(None, {"image": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(scores), model(x), rtol=1e-4, atol=1e-4)
    for key, shape in (("fc1.weight", (32, 5)), ("fc2.weight", (4, 32))):
        wrong = {**model.state_dict(), key: torch.zeros(shape)}
        save_file(wrong, tmp_path / "wrong.safetensors")
        with pytest.raises(OnnxgenError, match=f"does not fit .*has other shapes: .*{key}"):
            open_model(file, tmp_path / "wrong.safetensors")


# ---- reset -----------------------------------------------------------------------------------------------------------


def test_reset_gives_the_values_of_a_new_model(mnist: Callable[[], nn.Module]) -> None:
    model = mnist()
    parameters = list(model.parameters())
    freeze(model, "conv1")
    model.eval()
    torch.manual_seed(5)
    assert reset(model) is model and not model.training
    torch.manual_seed(5)
    fresh = type(model)()
    assert [id(p) for p in parameters] == [id(p) for p in model.parameters()] and not parameters[0].requires_grad
    for key, value in fresh.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=0, atol=0)


def test_reset_of_a_replaced_head(mnist: Callable[[], nn.Module]) -> None:
    model = replace_head(mnist().double(), 3, init="zeros")
    reset(model)
    weight = model.fc2.weight
    assert weight.shape == (3, 32) and weight.dtype == torch.float64 and 0 < weight.abs().max() <= 32**-0.5


def test_reset_layer_by_layer() -> None:
    model = Tower(3)
    step(model, images())
    before = {name: p.clone() for name, p in model.named_parameters()}
    reset(model)
    assert all(not torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert (model.stem[1].running_mean == 0).all() and model.stem[1].num_batches_tracked == 0
    model.register_parameter("scale", nn.Parameter(torch.ones(2)))
    with pytest.raises(OnnxgenError, match="how to initialise scale"):
        reset(model)
