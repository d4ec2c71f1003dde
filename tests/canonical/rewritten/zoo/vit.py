import torch
from torch import nn


class Patches(nn.Module):
    """Cuts images into squares, and projects each."""

    def __init__(self, size: int, width: int, channels: int = 3):
        super().__init__()
        self.size = size
        self.kernel = nn.Parameter(torch.randn(width, channels, size, size))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        b, c, h, w = x.shape
        s = self.size
        x = x.reshape(b, c, h // s, s, w // s, s)
        return torch.einsum("bchiwj,dcij->bhwd", x, self.kernel).flatten(1, 2) + self.bias


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, ratio: int = 2):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width)

    def attention(self, x):
        b, n, d = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).tensor_split(3, dim=-1))
        logits = torch.matmul(q * (d // self.heads) ** -0.5, k.mT)
        logits = logits - logits.amax(-1, keepdim=True)
        shares = logits.exp() / logits.exp().sum(-1, keepdim=True)
        return self.mix((shares @ v).transpose(1, 2).reshape(b, n, d))

    def mlp(self, x):
        x = self.wide(x)
        return self.narrow(x * 0.5 * (1.0 + torch.erf(x * 2**-0.5)))

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    def __init__(self, width=24, heads=4, depth=3, classes=10):
        super().__init__()
        self.patches = Patches(4, width)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 17, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, image):
        x = self.patches(image)
        x = torch.cat((self.cls.repeat(x.shape[0], 1, 1), x), 1)
        x = self.layers(x + self.places)
        return self.head(self.norm(x[:, 0]))
