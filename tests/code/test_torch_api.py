"""What layers and functions of PyTorch take is as the installed PyTorch has it, and nothing else is passed."""

from __future__ import annotations

import ast
import inspect
from operator import attrgetter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onnxgen.code import torch_api
from onnxgen.code.allowed import Refused
from onnxgen.code.class_tree import Meant, hold
from onnxgen.code.torch_api import DEFAULTS, LAYER_OF, SIGNATURES
from tests.support.clean_source import check_module

RECURRENT = ("nn.RNN", "nn.GRU", "nn.LSTM")  # they take `*args`
BUILTIN = {
    name for name in SIGNATURES if name.startswith(("F.conv", "F.avg_pool", "F.max_pool"))
}  # no Python signature
PLAIN = ("nn.LogSigmoid", "nn.Sigmoid", "nn.Softsign", "nn.Tanh", "nn.Parameter")


@pytest.mark.parametrize("name", sorted(set(SIGNATURES) - {*RECURRENT, *PLAIN, *BUILTIN}))
def test_the_table_is_pytorchs(name: str) -> None:
    made = attrgetter(name.partition(".")[2])(nn if name.startswith("nn.") else F)
    function = made.__init__ if isinstance(made, type) else made
    found = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
    assert tuple(found[: len(SIGNATURES[name])]) == SIGNATURES[name]


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_builtin_functions_take_what_the_table_has(name: str) -> None:
    rank = int(name[-2])
    x = torch.rand(1, 1, *[4] * rank)
    usual = {"input": x, "kernel_size": 2, "stride": 1, "weight": torch.rand(1, 1, *[2] * rank), "bias": torch.zeros(1)}
    usual |= {"divisor_override": 3} | DEFAULTS[name]
    function = getattr(F, name[2:])
    by_place = function(*[usual[key] for key in SIGNATURES[name]])
    assert torch.equal(by_place, function(**{key: usual[key] for key in SIGNATURES[name]}))
    usual["divisor_override"] = None
    required = {key: usual[key] for key in SIGNATURES[name] if key not in DEFAULTS[name]}
    assert torch.equal(function(**required), function(**required, **DEFAULTS[name]))


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_take_what_the_table_has(name: str) -> None:
    others = {"input_size": 2, "hidden_size": 3, "num_layers": 2, "nonlinearity": "relu", "proj_size": 1}
    given = {key: others.get(key, key == "bias") for key in SIGNATURES[name] if key not in ("device", "dtype")}
    getattr(nn, name[3:])(**given | {"dropout": 0.5})
    getattr(nn, name[3:])(*[others[key] for key in SIGNATURES[name][:3]])


def test_kinds_of_layers_are_pytorchs() -> None:
    layers = {name: getattr(nn, name[3:]) for name in SIGNATURES if name.count(".") == 1 and name.startswith("nn.")}

    def of(*bases: type) -> set[str]:
        return {name for name, made in layers.items() if isinstance(made, type) and issubclass(made, bases)}

    transposed, normalise = of(nn.modules.conv._ConvTransposeNd), (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
    convolutions = of(nn.modules.conv._ConvNd) - transposed
    assert convolutions == torch_api.CONVOLUTIONS and transposed == torch_api.TRANSPOSED
    assert of(nn.RNNBase) == torch_api.RECURRENT and of(nn.modules.batchnorm._BatchNorm) == torch_api.BATCH_NORMS
    assert of(nn.modules.batchnorm._NormBase, *normalise) == torch_api.NORMS
    pure = of(*normalise, nn.Linear, nn.Embedding, nn.PReLU)
    assert convolutions | transposed | pure == torch_api.PURE


OPTIONS = {
    "F.softmax": {"dim": 1},
    "F.log_softmax": {"dim": 1},
    "F.interpolate": {"scale_factor": 2},
    "F.pixel_shuffle": {"upscale_factor": 2},
    **{f"F.{kind}_pool{n}d": {"kernel_size": 2} for n in (1, 2, 3) for kind in ("max", "avg")},
    **{f"F.adaptive_avg_pool{n}d": {"output_size": 2} for n in (1, 2, 3)},
}


def test_a_function_and_its_layer_compute_the_same() -> None:
    """Every function of one tensor that is a layer in torch, too, and has no options but numbers, is in the table."""
    for function, layer in LAYER_OF.items():
        x = torch.randn(1, 4, *[6] * int(function[-2] if "_pool" in function else 2))
        options, made = OPTIONS.get(function, {}), attrgetter(function.partition(".")[2])
        by_layer = getattr(nn, layer[3:])(**options)(x)
        assert torch.equal(by_layer, made(torch if function.startswith("torch.") else F)(x, **options)), function
    known = (
        "GELU Hardsigmoid Hardswish LeakyReLU Mish ReLU ReLU6 SELU ELU SiLU Sigmoid Softplus Tanh Softmax LogSoftmax"
    )
    assert {f"nn.{name}" for name in (*known.split(), "Upsample", "PixelShuffle")} <= set(LAYER_OF.values())


@pytest.mark.parametrize(
    "call",
    [
        "nn.LSTM(2, 3, nonlinearity=None)",
        "nn.ReLU(True, False)",
        "F.softmax(x, axis=1)",
        "nn.Linear(2, 3, in_features=2)",
        "nn.LayerNorm(3, eps=None)",
    ],
)
def test_nothing_else_is_passed(call: str) -> None:
    head = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
    with pytest.raises(Refused, match="it calls (nn|F)"):
        check_module(ast.parse(f"{head}x = torch.zeros(2, 3)\ny = {call}"))
    check_module(ast.parse(f"{head}x = torch.zeros(2, 3)\ny = nn.Linear(*x.shape, bias=False)(F.softmax(x, dim=1))"))


def test_nothing_is_computed_with_none() -> None:
    check_module(ast.parse("x = 1.0 + 2"))
    with pytest.raises(Refused, match="computes with None"):
        check_module(ast.parse("x = 1.0 + None"))


@pytest.mark.parametrize(
    "line",
    [
        "from safetensors import Tensor", "from torch import save", "from pathlib import os",
        "from safetensors.torch import load_model", "from safetensors import os", "from warnings import sys",
    ],
)  # fmt: skip
def test_nothing_else_is_imported(line: str) -> None:
    usual = (
        "torch import Tensor, nn",
        "safetensors import SafetensorError, safe_open",
        "safetensors.torch import load",
    )
    usual += ("pathlib import Path", "warnings import warn")
    hold(ast.parse('"""Text."""\n' + "\n".join(f"from {one}" for one in usual)), Meant([], {}), is_ours=True)
    with pytest.raises(Refused, match="no such name"):
        hold(ast.parse(f'"""Text."""\n{line}'), Meant([], {}), is_ours=True)
