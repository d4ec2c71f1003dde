"""Makes `wave.onnx`: a small network whose activation is no operator of ONNX.

    python samples/plugin/make_onnx.py

Snake, x + sin(a * x)^2 / a (https://arxiv.org/abs/2006.08195), is a `torch.autograd.Function` here, with a gradient of
its own, and exports itself as `com.acme.Snake`. The network learns a wave with a slope from points between -6 and 6.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent


class SnakeFunction(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, a: Tensor) -> Tensor:
        context.save_for_backward(x, a)
        return x + torch.sin(a * x) ** 2 / a

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,), (x, a) = grads, context.saved_tensors
        turned = torch.sin(2 * a * x)
        to_a = grad * (x * turned - torch.sin(a * x) ** 2 / a) / a
        return grad * (1 + turned), to_a.sum(0)

    @staticmethod
    def symbolic(g: Any, x: Any, a: Any) -> Any:
        return g.op("com.acme::Snake", x, a, power_i=2).setType(x.type())


class Snake(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return SnakeFunction.apply(x, self.a)  # type: ignore[no-any-return,no-untyped-call]


class Wave(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(1, 32)
        self.act1 = Snake(32)
        self.fc2 = nn.Linear(32, 32)
        self.act2 = Snake(32)
        self.fc3 = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.fc1(x))
        return self.fc3(self.act2(self.fc2(x)))  # type: ignore[no-any-return]


def wave(x: Tensor) -> Tensor:
    """What is to be learned."""
    return torch.sin(2 * x) + 0.3 * x


def train(network: nn.Module, target: Any, steps: int) -> float:
    """Adam on all points between -6 and 6; returns the mean squared error."""
    x = torch.linspace(-6, 6, 256)[:, None]
    optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(x), target(x))
        loss.backward()
        optimizer.step()
    return nn.functional.mse_loss(network(x), target(x)).item()


def export(network: nn.Module, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(), (torch.zeros(4, 1),), path, dynamo=False, opset_version=17, input_names=["x"],
            output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, custom_opsets={"com.acme": 1},
        )  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    network = Wave()
    print(f"mean squared error: {train(network, wave, 1500):.5f}")
    export(network, HERE / "wave.onnx")
    print("wrote wave.onnx")


if __name__ == "__main__":
    main()
