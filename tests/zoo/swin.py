"""Swin Transformer, Liu et al. 2021, with the names of the authors' own code."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.mobile import StochasticDepth


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.act(x)
        x = self.drop(x)
        x = self.fc2(x)
        return self.drop(x)


def window_partition(x: Tensor, window_size: int) -> Tensor:
    """[b, h, w, c] -> [b * windows, size, size, c]."""
    b, h, w, c = x.shape
    x = x.view(b, h // window_size, window_size, w // window_size, window_size, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window_size, window_size, c)


def window_reverse(windows: Tensor, window_size: int, h: int, w: int) -> Tensor:
    """[b * windows, size, size, c] -> [b, h, w, c]."""
    c = windows.shape[-1]
    x = windows.view(-1, h // window_size, w // window_size, window_size, window_size, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, h, w, c)


class WindowAttention(nn.Module):
    relative_position_index: Tensor

    def __init__(self, dim: int, window_size: int, num_heads: int, drop: float = 0.0) -> None:
        super().__init__()
        self.dim = dim
        self.window_size = window_size
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        coords = torch.stack(torch.meshgrid(torch.arange(window_size), torch.arange(window_size), indexing="ij"))
        coords = torch.flatten(coords, 1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        relative[:, :, 0] += window_size - 1
        relative[:, :, 1] += window_size - 1
        relative[:, :, 0] *= 2 * window_size - 1
        self.register_buffer("relative_position_index", relative.sum(-1))
        self.qkv = nn.Linear(dim, dim * 3)
        self.attn_drop = nn.Dropout(drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(drop)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        area = self.window_size * self.window_size
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(area, area, -1)
        attn = attn + bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        if mask is not None:
            windows = mask.shape[0]
            attn = attn.view(b // windows, windows, self.num_heads, n, n) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, n, n)
        attn = self.softmax(attn)
        attn = self.attn_drop(attn)
        x = (attn @ v).transpose(1, 2).reshape(b, n, c)
        x = self.proj(x)
        return self.proj_drop(x)


class SwinTransformerBlock(nn.Module):
    attn_mask: Tensor | None

    def __init__(
        self,
        dim: int,
        resolution: int,
        num_heads: int,
        window_size: int,
        shift_size: int,
        drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.input_resolution = (resolution, resolution)
        self.window_size = window_size
        self.shift_size = shift_size
        if resolution <= window_size:  # one window: nothing to shift
            self.shift_size, self.window_size = 0, resolution
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, self.window_size, num_heads, drop)
        self.drop_path = StochasticDepth(drop_path) if drop_path > 0.0 else nn.Identity()
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, dim * 4, drop)
        self.register_buffer("attn_mask", self._mask() if self.shift_size > 0 else None)

    def _mask(self) -> Tensor:
        """Windows at the edge hold what was far apart before the roll: -100 keeps it apart."""
        h, w = self.input_resolution
        regions = torch.zeros(1, h, w, 1)
        slices = (
            slice(0, -self.window_size),
            slice(-self.window_size, -self.shift_size),
            slice(-self.shift_size, None),
        )
        for n, (rows, columns) in enumerate((rows, columns) for rows in slices for columns in slices):
            regions[:, rows, columns, :] = n
        windows = window_partition(regions, self.window_size).view(-1, self.window_size * self.window_size)
        mask = windows.unsqueeze(1) - windows.unsqueeze(2)
        return mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        h, w = self.input_resolution
        b, _, c = x.shape
        shortcut = x
        x = self.norm1(x)
        x = x.view(b, h, w, c)
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(-self.shift_size, -self.shift_size), dims=(1, 2))
        windows = window_partition(x, self.window_size)
        windows = windows.view(-1, self.window_size * self.window_size, c)
        windows = self.attn(windows, mask=self.attn_mask)
        windows = windows.view(-1, self.window_size, self.window_size, c)
        x = window_reverse(windows, self.window_size, h, w)
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(self.shift_size, self.shift_size), dims=(1, 2))
        x = x.view(b, h * w, c)
        x = shortcut + self.drop_path(x)
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PatchMerging(nn.Module):
    def __init__(self, resolution: int, dim: int) -> None:
        super().__init__()
        self.input_resolution = (resolution, resolution)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        h, w = self.input_resolution
        b, _, c = x.shape
        x = x.view(b, h, w, c)
        x0 = x[:, 0::2, 0::2, :]
        x1 = x[:, 1::2, 0::2, :]
        x2 = x[:, 0::2, 1::2, :]
        x3 = x[:, 1::2, 1::2, :]
        x = torch.cat([x0, x1, x2, x3], -1)
        x = x.view(b, -1, 4 * c)
        x = self.norm(x)
        return self.reduction(x)


class BasicLayer(nn.Module):
    def __init__(
        self, dim: int, resolution: int, depth: int, num_heads: int, window: int, drop: float, downsample: bool
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            SwinTransformerBlock(dim, resolution, num_heads, window, 0 if i % 2 == 0 else window // 2, drop, 0.0)
            for i in range(depth)
        )
        self.downsample = PatchMerging(resolution, dim) if downsample else None

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        if self.downsample is not None:
            x = self.downsample(x)
        return x


class PatchEmbed(nn.Module):
    def __init__(self, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x).flatten(2).transpose(1, 2)
        return self.norm(x)


class SwinTransformer(nn.Module):
    """[batch, 3, image, image] -> [batch, classes]; the tiny network is 224, 4, 96, (2, 2, 6, 2), (3, 6, 12, 24), 7."""

    def __init__(
        self,
        image: int = 32,
        patch: int = 2,
        embed_dim: int = 12,
        depths: tuple[int, ...] = (2, 2, 2),
        num_heads: tuple[int, ...] = (2, 3, 4),
        window: int = 4,
        drop: float = 0.0,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(patch, embed_dim)
        self.pos_drop = nn.Dropout(drop)
        self.layers = nn.ModuleList()
        for i, depth in enumerate(depths):
            resolution = image // patch // 2**i
            last = i == len(depths) - 1
            self.layers.append(BasicLayer(embed_dim * 2**i, resolution, depth, num_heads[i], window, drop, not last))
        width = embed_dim * 2 ** (len(depths) - 1)
        self.norm = nn.LayerNorm(width)
        self.avgpool = nn.AdaptiveAvgPool1d(1)
        self.head = nn.Linear(width, classes)

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = self.pos_drop(x)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        x = self.avgpool(x.transpose(1, 2))
        return torch.flatten(x, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.forward_features(x)
        return self.head(x)
