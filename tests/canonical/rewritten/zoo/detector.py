import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Conv(nn.Module):
    def __init__(self, i: int, o: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(i, o, kernel, stride, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y / (1 + torch.exp(-y))


class Split(nn.Module):
    """Half of the channels go through some blocks."""

    def __init__(self, i: int, o: int, depth: int, residual: bool = True) -> None:
        super().__init__()
        self.residual = residual
        self.left, self.right, self.join = Conv(i, o // 2), Conv(i, o // 2), Conv(o, o)
        self.blocks = nn.ModuleList(
            nn.Sequential(Conv(o // 2, o // 2, 3), Conv(o // 2, o // 2, 3)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        for block in self.blocks:
            y = y + block(y) if self.residual else block(y)
        return self.join(torch.cat((y, self.right(x)), dim=-3))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p1 = Conv(3, 6, 3, 2)
        self.p2 = nn.Sequential(Conv(6, 8, 3, 2), Split(8, 8, 1))
        self.p3 = nn.Sequential(Conv(8, 12, 3, 2), Split(12, 12, 2))
        self.p4 = nn.Sequential(Conv(12, 16, 3, 2), Split(16, 16, 2))
        self.neck = Split(28, 12, 1, residual=False)
        self.near, self.far = (nn.Sequential(Conv(c, 8, 3), Conv(8, 8, 3), nn.Conv2d(8, 7, 1)) for c in (12, 16))

    def forward(self, image: Tensor) -> Tensor:
        p3 = self.p3(self.p2(self.p1(image)))
        p4 = self.p4(p3)
        up = F.interpolate(p4, size=p3.shape[2:], mode="nearest")
        near = self.near(self.neck(torch.cat((up, p3), dim=1)))
        far = self.far(p4)
        return torch.cat([m.reshape(*m.shape[:2], -1) for m in (near, far)], dim=-1)
