"""MobileNetV3 (Howard et al. 2019) and EfficientNet (Tan and Le 2019), laid out as torchvision lays them out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn


class Conv2dNormActivation(nn.Sequential):
    """Convolution, norm and activation, numbered 0, 1 and 2."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
        activation: Callable[..., nn.Module] | None = nn.ReLU,
    ) -> None:
        layers = [
            nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
            norm(outputs),
        ]
        if activation is not None:
            layers.append(activation(inplace=True))
        super().__init__(*layers)


class SqueezeExcitation(nn.Module):
    def __init__(
        self,
        inputs: int,
        squeezed: int,
        activation: Callable[..., nn.Module] = nn.ReLU,
        scale_activation: Callable[..., nn.Module] = nn.Sigmoid,
    ) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(inputs, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, inputs, 1)
        self.activation = activation()
        self.scale_activation = scale_activation()

    def _scale(self, x: Tensor) -> Tensor:
        scale = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(scale))

    def forward(self, x: Tensor) -> Tensor:
        return self._scale(x) * x


class InvertedResidual(nn.Module):
    def __init__(
        self, inputs: int, kernel: int, expanded: int, outputs: int, use_se: bool, activation: str, stride: int
    ) -> None:
        super().__init__()
        self.use_res_connect = stride == 1 and inputs == outputs
        layer = nn.Hardswish if activation == "HS" else nn.ReLU
        norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.01)
        layers: list[nn.Module] = []
        if expanded != inputs:
            layers.append(Conv2dNormActivation(inputs, expanded, 1, norm=norm, activation=layer))
        layers.append(Conv2dNormActivation(expanded, expanded, kernel, stride, expanded, norm, layer))
        if use_se:
            layers.append(SqueezeExcitation(expanded, max(expanded // 4, 4), scale_activation=nn.Hardsigmoid))
        layers.append(Conv2dNormActivation(expanded, outputs, 1, norm=norm, activation=None))
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        if self.use_res_connect:
            result += x
        return result


class MobileNetV3(nn.Module):
    """[batch, 3, height, width] -> [batch, classes]; the layers of the small network, narrower."""

    settings: tuple[tuple[int, int, int, int, bool, str, int], ...] = (
        # inputs, kernel, expanded, outputs, squeeze and excite, activation, stride
        (8, 3, 8, 8, True, "RE", 2),
        (8, 3, 36, 12, False, "RE", 2),
        (12, 3, 44, 12, False, "RE", 1),
        (12, 5, 48, 20, True, "HS", 2),
        (20, 5, 120, 20, True, "HS", 1),
        (20, 5, 120, 20, True, "HS", 1),
        (20, 5, 60, 24, True, "HS", 1),
        (24, 5, 72, 24, True, "HS", 1),
    )

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.01)
        layers: list[nn.Module] = [
            Conv2dNormActivation(3, self.settings[0][0], 3, 2, norm=norm, activation=nn.Hardswish)
        ]
        layers += [InvertedResidual(*setting) for setting in self.settings]
        last = self.settings[-1][3]
        layers.append(Conv2dNormActivation(last, 6 * last, 1, norm=norm, activation=nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * last, 64), nn.Hardswish(inplace=True), nn.Dropout(0.2, inplace=True), nn.Linear(64, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        x = torch.flatten(x, 1)
        return self.classifier(x)


def stochastic_depth(x: Tensor, p: float, training: bool) -> Tensor:
    """Drop whole samples of a residual branch, Huang et al. 2016."""
    if not training or p == 0.0:
        return x
    noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(1.0 - p)
    return x * noise.div_(1.0 - p)


class StochasticDepth(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return stochastic_depth(x, self.p, self.training)


class MBConv(nn.Module):
    def __init__(self, inputs: int, kernel: int, expand: int, outputs: int, stride: int, drop: float) -> None:
        super().__init__()
        self.use_res_connect = stride == 1 and inputs == outputs
        expanded = inputs * expand
        layers: list[nn.Module] = []
        if expanded != inputs:
            layers.append(Conv2dNormActivation(inputs, expanded, 1, activation=nn.SiLU))
        layers.append(Conv2dNormActivation(expanded, expanded, kernel, stride, expanded, activation=nn.SiLU))
        layers.append(SqueezeExcitation(expanded, max(1, inputs // 4), partial(nn.SiLU, inplace=True)))
        layers.append(Conv2dNormActivation(expanded, outputs, 1, activation=None))
        self.block = nn.Sequential(*layers)
        self.stochastic_depth = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        if self.use_res_connect:
            result = self.stochastic_depth(result)
            result += x
        return result


class EfficientNet(nn.Module):
    """[batch, 3, height, width] -> [batch, classes]; the stages of B0, narrower and with their depths."""

    settings = (
        # expand, kernel, stride, inputs, outputs, layers
        (1, 3, 1, 8, 4, 1),
        (6, 3, 2, 4, 6, 2),
        (6, 5, 2, 6, 10, 2),
        (6, 3, 2, 10, 12, 3),
        (6, 5, 1, 12, 16, 3),
        (6, 5, 2, 16, 20, 4),
        (6, 3, 1, 20, 24, 1),
    )

    def __init__(self, stochastic_depth_prob: float = 0.2, dropout: float = 0.2, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [Conv2dNormActivation(3, self.settings[0][3], 3, 2, activation=nn.SiLU)]
        total = sum(setting[-1] for setting in self.settings)
        count = 0
        for expand, kernel, stride, inputs, outputs, depth in self.settings:
            stage: list[nn.Module] = []
            for n in range(depth):
                drop = stochastic_depth_prob * count / total
                first = n == 0
                stage.append(
                    MBConv(inputs if first else outputs, kernel, expand, outputs, stride if first else 1, drop)
                )
                count += 1
            layers.append(nn.Sequential(*stage))
        last = self.settings[-1][4]
        layers.append(Conv2dNormActivation(last, 4 * last, 1, activation=nn.SiLU))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(dropout, inplace=True), nn.Linear(4 * last, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        x = torch.flatten(x, 1)
        return self.classifier(x)
