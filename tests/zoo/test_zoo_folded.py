"""What constant folding leaves in a file comes back under the original's keys, in the original's shapes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from onnxgen.runtime.load import load
from tests.zoo import folded
from tests.zoo.export import quiet

NETS: list[Callable[[], nn.Module]] = [folded.NFNet, folded.ConvNeXtV2, folded.AutoencoderKL, folded.MobileNetV4]
# A gain is stored as its product with a constant: no value of the file is the parameter. It has another shape.
LOST = r".*\.gain"


def moved(net: nn.Module) -> nn.Module:
    """No two tensors are equal, as after training."""
    with torch.no_grad():
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape) * 0.1)
    return net.eval()


@pytest.mark.parametrize("dynamo", [False, True], ids=["legacy", "dynamo"])
@pytest.mark.parametrize("build", NETS)
def test_keys(build: Callable[[], nn.Module], dynamo: bool, tmp_path: Path) -> None:
    net, path, x = moved(build()), tmp_path / "net.onnx", torch.randn(2, 3, 16, 16)
    if dynamo and build is folded.NFNet:
        pytest.skip("it folds the whole standardised weight")
    with quiet():
        torch.onnx.export(net, (x,), path, dynamo=dynamo, **({} if dynamo else {"opset_version": 17}))
    made = load(path).eval()
    torch.testing.assert_close(made(x), net(x), rtol=1e-3, atol=1e-4)
    norms = [n for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]  # folded into their convolutions
    ours, theirs = made.state_dict(), net.state_dict()
    possible = {k for k in theirs if k.rpartition(".")[0] not in norms and not re.fullmatch(LOST, k)}
    assert {k for k in possible if k in ours and ours[k].shape == theirs[k].shape} == possible
    plain = [n for n, m in net.named_modules() if isinstance(m, nn.Conv2d) and m.bias is None]
    assert ours.keys() - theirs.keys() <= {f"{n}.bias" for n in plain}
    assert {k for k in possible if not torch.equal(ours[k], theirs[k])} <= {f"{n}.weight" for n in plain}
    assert {n for n, _ in made.named_parameters()} == set(ours), "nothing trained is a buffer"
