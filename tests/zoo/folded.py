"""Networks whose weights an exporter folds: standardised weights, a GRN, GroupNorms, layer scales behind BatchNorms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ScaledStdConv2d(nn.Conv2d):
    """As timm's: Brock et al. 2021, arXiv 2101.08692."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels, out, kernel, stride, kernel // 2)
        self.gain = nn.Parameter(torch.ones(out, 1, 1, 1))
        self.scale = self.weight[0].numel() ** -0.5

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.reshape(1, self.out_channels, -1)
        gain = (self.gain * self.scale).view(-1)
        weight = F.batch_norm(weight, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6)
        return F.conv2d(input, weight.reshape_as(self.weight), self.bias, self.stride, self.padding)


class NormFreeBlock(nn.Module):
    def __init__(self, channels: int, beta: float) -> None:
        super().__init__()
        self.beta = beta
        self.conv1 = ScaledStdConv2d(channels, channels // 2, 1)
        self.conv2 = ScaledStdConv2d(channels // 2, channels // 2, 3)
        self.conv3 = ScaledStdConv2d(channels // 2, channels, 1)
        self.skipinit_gain = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(F.silu(self.conv1(F.silu(x) * self.beta)))
        return self.conv3(F.silu(y)) * self.skipinit_gain * 0.2 + x


class NFNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ScaledStdConv2d(3, 16, 3, stride=2)
        self.stages = nn.Sequential(NormFreeBlock(16, 1.0), NormFreeBlock(16, 0.98))
        self.final_conv = ScaledStdConv2d(16, 32, 1)
        self.fc = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.fc(F.silu(self.final_conv(self.stages(self.stem(image)))).mean((2, 3)))
        return logits


class GRN(nn.Module):
    """Global response normalisation, over [batch, height, width, channels] (Woo et al. 2023, arXiv 2301.00808)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, 1, 1, dim))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        size = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        return self.gamma * (x * (size / (size.mean(dim=-1, keepdim=True) + 1e-6))) + self.beta + x


class ConvNeXtV2Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.grn = GRN(4 * dim)
        self.pwconv2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.pwconv2(self.grn(F.gelu(self.pwconv1(y))))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXtV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.stages = nn.Sequential(ConvNeXtV2Block(8), ConvNeXtV2Block(8))
        self.head = nn.Linear(8, 10)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stages(self.stem(image)).mean((2, 3)))
        return logits


class ResnetBlock(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, channels), nn.Conv2d(channels, out, 3, 1, 1)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, 1, 1)
        self.nin_shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        result: Tensor = self.nin_shortcut(x) + h
        return result


class AutoencoderKL(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), ResnetBlock(8, 16), nn.Conv2d(16, 8, 3, 1, 1))
        self.quant_conv, self.post_quant_conv = nn.Conv2d(8, 8, 1), nn.Conv2d(4, 4, 1)
        self.decoder = nn.Sequential(nn.Conv2d(4, 8, 3, 1, 1), ResnetBlock(8, 8), nn.GroupNorm(4, 8), nn.SiLU())

    def forward(self, image: Tensor) -> Tensor:
        mean, _ = self.quant_conv(self.encoder(image)).chunk(2, 1)
        result: Tensor = self.decoder(self.post_quant_conv(mean))
        return result


class LayerScale2d(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(1e-5 * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma.view(1, -1, 1, 1)


class UniversalInvertedResidual(nn.Module):
    """As MobileNetV4's (Qin et al. 2024, arXiv 2404.10518)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dw_start = nn.Sequential(nn.Conv2d(dim, dim, 3, 1, 1, groups=dim, bias=False), nn.BatchNorm2d(dim))
        self.pw_exp = nn.Sequential(nn.Conv2d(dim, 2 * dim, 1, bias=False), nn.BatchNorm2d(2 * dim), nn.ReLU())
        self.pw_proj = nn.Sequential(nn.Conv2d(2 * dim, dim, 1, bias=False), nn.BatchNorm2d(dim))
        self.layer_scale = LayerScale2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer_scale(self.pw_proj(self.pw_exp(self.dw_start(x)))) + x
        return result


class MobileNetV4(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(UniversalInvertedResidual(8), UniversalInvertedResidual(8))
        self.classifier = nn.Linear(8, 10)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.blocks(F.relu(self.bn1(self.conv_stem(image)))).mean((2, 3)))
        return logits
