"""Networks that call one module several times, or repeat steps: exporters write each call and each step out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Encoder(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, dim, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(dim)
        self.fc = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.norm(self.conv2(x)))
        return F.normalize(self.fc(x.mean(dim=(2, 3))), dim=-1)


class Siamese(nn.Module):
    """Two calls of a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(16, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.sigmoid(self.head((self.encoder(a) - self.encoder(b)).abs()))


class SiameseMethod(nn.Module):
    """Two calls of a method."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, dim, 3, stride=2, padding=1)
        self.proj = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, 1)

    def embed(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv1(x), 0.1)
        x = F.leaky_relu(self.conv2(x), 0.1).mean(dim=(2, 3))
        return self.proj(x) * torch.sigmoid(x)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x, y = self.embed(a), self.embed(b)
        return torch.sigmoid(self.head((x - y) ** 2))


class Triplet(nn.Module):
    """Three calls of a method, whose results are apart."""

    def __init__(self, dim: int = 12) -> None:
        super().__init__()
        self.fc1 = nn.Linear(10, 24)
        self.fc2 = nn.Linear(24, dim)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def encode(self, x: Tensor) -> Tensor:
        x = F.gelu(self.fc1(x))
        x = self.fc2(x) * self.scale
        return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        a, p, n = self.encode(anchor), self.encode(positive), self.encode(negative)
        return (a - p).pow(2).sum(-1), (a - n).pow(2).sum(-1)


class Head(nn.Module):
    def __init__(self, channels: int, classes: int, anchors: int) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())
        self.cls = nn.Conv2d(channels, anchors * classes, 3, padding=1)
        self.box = nn.Conv2d(channels, anchors * 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tower(x)
        return self.cls(x), self.box(x)


class Pyramid(nn.Module):
    """A head shared by scales, and what is done for each scale."""

    def __init__(self, channels: int = 8, classes: int = 3, anchors: int = 2) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.down1 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.down2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.head = Head(channels, classes, anchors)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        c1 = F.relu(self.stem(x))
        c2 = F.relu(self.down1(c1))
        c3 = F.relu(self.down2(c2))
        scores, boxes = [], []
        for feature, stride in zip((c1, c2, c3), (2.0, 4.0, 8.0)):
            cls, box = self.head(feature)
            scores.append(cls.permute(0, 2, 3, 1).reshape(cls.shape[0], -1, self.classes))
            boxes.append(box.permute(0, 2, 3, 1).reshape(box.shape[0], -1, 4) * stride)
        return torch.cat(scores, dim=1).sigmoid(), torch.cat(boxes, dim=1)


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Albert(nn.Module):
    """One block that is called for every layer."""

    def __init__(self, dim: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, dim)
        self.block = Block(dim)
        self.depth = depth
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for _ in range(self.depth):
            x = self.block(x)
        return self.norm(x)


class Lista(nn.Module):
    """An unrolled optimiser."""

    def __init__(self, n: int = 10, m: int = 6, steps: int = 5) -> None:
        super().__init__()
        self.encode = nn.Linear(m, n, bias=False)
        self.inhibit = nn.Linear(n, n, bias=False)
        self.threshold = nn.Parameter(torch.full((n,), 0.1))
        self.steps = steps

    def forward(self, y: Tensor) -> Tensor:
        b = self.encode(y)
        x = torch.zeros_like(b)
        for _ in range(self.steps):
            z = b + self.inhibit(x)
            x = torch.sign(z) * F.relu(z.abs() - self.threshold)
        return x


class Descent(nn.Module):
    """Gradient descent with momentum on a least-squares problem; all iterates are returned."""

    def __init__(self, steps: int = 6) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.05))
        self.momentum = nn.Parameter(torch.tensor(0.9))
        self.prior = nn.Linear(5, 5)
        self.steps = steps

    def forward(self, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = self.prior(torch.einsum("bij,bi->bj", a, y))
        v = torch.zeros_like(x)
        losses = []
        for _ in range(self.steps):
            r = torch.einsum("bij,bj->bi", a, x) - y
            losses.append(r.pow(2).sum(-1))
            v = self.momentum * v - self.rate * torch.einsum("bij,bi->bj", a, r)
            x = x + v
        return x, torch.stack(losses, dim=1)


class Raft(nn.Module):
    """Iterative refinement: a convolutional GRU that is called for each update."""

    def __init__(self, dim: int = 8, iters: int = 4) -> None:
        super().__init__()
        self.fnet = nn.Conv2d(3, dim, 3, stride=2, padding=1)
        self.cnet = nn.Conv2d(3, dim, 3, stride=2, padding=1)
        self.convz = nn.Conv2d(3 * dim + 2, dim, 3, padding=1)
        self.convr = nn.Conv2d(3 * dim + 2, dim, 3, padding=1)
        self.convq = nn.Conv2d(3 * dim + 2, dim, 3, padding=1)
        self.flow_head = nn.Conv2d(dim, 2, 3, padding=1)
        self.iters = iters

    def forward(self, image1: Tensor, image2: Tensor) -> Tensor:
        f1, f2 = self.fnet(image1), self.fnet(image2)
        h = torch.tanh(self.cnet(image1))
        flow = torch.zeros_like(f1[:, :2])
        flows = []
        for _ in range(self.iters):
            x = torch.cat([f1 * f2, f1, flow], dim=1)
            hx = torch.cat([h, x], dim=1)
            z = torch.sigmoid(self.convz(hx))
            r = torch.sigmoid(self.convr(hx))
            q = torch.tanh(self.convq(torch.cat([r * h, x], dim=1)))
            h = (1 - z) * h + z * q
            flow = flow + self.flow_head(h)
            flows.append(F.interpolate(flow, scale_factor=2.0, mode="nearest"))
        return torch.stack(flows)


class Field(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, hidden), nn.Tanh(), nn.Linear(hidden, dim))

    def forward(self, t: float, y: Tensor) -> Tensor:
        return self.net(torch.cat([y, torch.full_like(y[:, :1], t)], dim=1))


class Euler(nn.Module):
    def __init__(self, dim: int = 4, steps: int = 8) -> None:
        super().__init__()
        self.f = Field(dim, 16)
        self.steps = steps

    def forward(self, y: Tensor) -> Tensor:
        dt = 1.0 / self.steps
        for i in range(self.steps):
            y = y + dt * self.f(i * dt, y)
        return y


class Rk4(nn.Module):
    def __init__(self, dim: int = 4, steps: int = 4) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 16), nn.Linear(16, dim)
        self.steps = steps

    def f(self, y: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(y)))

    def forward(self, y: Tensor) -> Tensor:
        dt = 0.1
        path = [y]
        for _ in range(self.steps):
            k1 = self.f(y)
            k2 = self.f(y + dt / 2 * k1)
            k3 = self.f(y + dt / 2 * k2)
            k4 = self.f(y + dt * k3)
            y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(y)
        return torch.stack(path, dim=1)


class Newton(nn.Module):
    """Newton-Schulz steps for the inverse of a matrix."""

    def __init__(self, n: int = 4, steps: int = 6) -> None:
        super().__init__()
        self.fc = nn.Linear(8, n * n)
        self.n, self.steps = n, steps

    def forward(self, x: Tensor) -> Tensor:
        w = self.fc(x).view(-1, self.n, self.n)
        a = w @ w.transpose(1, 2) + torch.eye(self.n)
        scale = a.abs().sum(dim=(1, 2), keepdim=True)
        z = a.transpose(1, 2) / (scale * scale)
        for _ in range(self.steps):
            az = a @ z
            z = z @ (2 * torch.eye(self.n) - az)
        return z


class Sinkhorn(nn.Module):
    def __init__(self, dim: int = 8, iters: int = 5, eps: float = 0.5) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, dim)
        self.iters, self.eps = iters, eps

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        log_p = torch.einsum("bid,bjd->bij", self.proj(x), self.proj(y)) / self.eps
        for _ in range(self.iters):
            log_p = log_p - log_p.logsumexp(dim=2, keepdim=True)
            log_p = log_p - log_p.logsumexp(dim=1, keepdim=True)
        return log_p.exp()


class Nested(nn.Module):
    """Steps with steps in them."""

    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.score, self.update = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, slots: Tensor) -> Tensor:
        for _ in range(3):
            a = self.score(slots) @ x.transpose(1, 2)
            for _ in range(4):
                a = a - a.logsumexp(dim=2, keepdim=True)
                a = a - a.logsumexp(dim=1, keepdim=True)
            slots = slots + torch.tanh(self.update(a.exp() @ x))
        return slots


class Slots(nn.Module):
    """The last attention is returned beside the carried state."""

    def __init__(self, dim: int = 8, iters: int = 3) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, dim))
        self.norm = nn.LayerNorm(dim)
        self.mu = nn.Parameter(torch.randn(1, 4, dim))
        self.iters = iters

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.k(x), self.v(x)
        slots = self.mu.expand(x.shape[0], -1, -1)
        for _ in range(self.iters):
            attn = (self.q(self.norm(slots)) @ k.transpose(1, 2)).softmax(dim=1) + 1e-8
            weights = attn / attn.sum(dim=-1, keepdim=True)
            slots = slots + weights @ v
            slots = slots + self.mlp(slots)
        return slots, attn


class PrimalDual(nn.Module):
    """Two carried values, and two lists of layers."""

    def __init__(self, steps: int = 5) -> None:
        super().__init__()
        self.primal = nn.ModuleList([nn.Conv2d(2, 1, 3, padding=1) for _ in range(steps)])
        self.dual = nn.ModuleList([nn.Conv2d(2, 1, 3, padding=1) for _ in range(steps)])

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for primal, dual in zip(self.primal, self.dual):
            y = y + dual(torch.cat([y, x], dim=1))
            x = x - primal(torch.cat([x, y], dim=1))
        return x


class Smoothing(nn.Module):
    """A scan over a sequence."""

    def __init__(self, dim: int = 5) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(dim))
        self.inp = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], x.shape[2])
        gate = torch.sigmoid(self.decay)
        states = []
        for t in range(x.shape[1]):
            h = gate * h + (1 - gate) * self.inp(x[:, t])
            states.append(h)
        return torch.stack(states, dim=1)


class Shared(nn.Module):
    """An nn.Sequential with Dropout that is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 6))
        self.out = nn.Linear(18, 2)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.out(torch.cat([self.net(a), self.net(b), self.net(c)], dim=-1))


class Steps(nn.Module):
    """Many steps, for the time that they take."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.fc, self.gate, self.steps = nn.Linear(4, 4), nn.Linear(4, 4), steps

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            g = torch.sigmoid(self.gate(x))
            x = g * torch.tanh(self.fc(x)) + (1 - g) * x
        return x


def networks() -> dict[str, Made]:
    """Each network with its inputs, in evaluation mode, its parameters moved a little from their initial values."""
    torch.manual_seed(0)
    image, pair = torch.randn(2, 1, 12, 12), (torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16))
    made: dict[str, Made] = {
        "siamese": (Siamese(), (image, image.flip(3))),
        "siamese_method": (SiameseMethod(), (image, image.flip(3))),
        "triplet": (Triplet(), tuple(torch.randn(3, 10) for _ in range(3))),
        "pyramid": (Pyramid(), (pair[0],)),
        "albert": (Albert(), (torch.randint(20, (2, 7)),)),
        "lista": (Lista(), (torch.randn(3, 6),)),
        "descent": (Descent(), (torch.randn(2, 7, 5), torch.randn(2, 7))),
        "raft": (Raft(), pair),
        "euler": (Euler(), (torch.randn(3, 4),)),
        "rk4": (Rk4(), (torch.randn(3, 4),)),
        "newton": (Newton(), (torch.randn(2, 8),)),
        "sinkhorn": (Sinkhorn(), (torch.randn(2, 5, 8), torch.randn(2, 6, 8))),
        "nested": (Nested(), (torch.randn(2, 5, 6), torch.randn(2, 3, 6))),
        "slots": (Slots(), (torch.randn(2, 9, 8),)),
        "primal_dual": (PrimalDual(), (torch.randn(1, 1, 8, 8),)),
        "smoothing": (Smoothing(), (torch.randn(2, 7, 5),)),
        "shared": (Shared(), tuple(torch.randn(3, 6) for _ in range(3))),
    }
    with torch.no_grad():
        for model, _ in made.values():
            model.eval()
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn(parameter.shape)
    return made
