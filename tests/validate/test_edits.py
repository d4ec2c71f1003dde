"""One network and its right text; edits that make it another network, and edits that do not."""

from __future__ import annotations

import ast

import pytest

from onnxgen.validate import Difference, specify, validate
from tests.validate.flat import flat

MEMBERS = {
    "layer1.0.conv": "nn.Conv2d(3, 8, 3, 2, padding=1)",
    "layer1.0.norm": "nn.BatchNorm2d(8, eps=0.001)",
    "layer1.0.downsample": "nn.Conv2d(3, 8, 1, 2)",
    "layer1.1.conv": "nn.Conv2d(8, 8, 3, 1, padding=1)",
    "layer1.1.norm": "nn.BatchNorm2d(8, eps=0.001)",
    "steps.0.fc": "nn.Linear(8, 8)",
    "steps.0.scale": "nn.Parameter(torch.ones(8))",
    "steps.1.fc": "nn.Linear(8, 8)",
    "steps.1.scale": "nn.Parameter(torch.ones(8))",
    "head.0": "nn.Linear(8, 4)",
    "head.2": "nn.Linear(4, 2)",
    "head.3": "nn.Linear(2, 2)",
    "mask": "torch.zeros(8)",
    "table": "torch.ones(8)",
    "embed": "nn.Embedding(8, 8)",
    "out": "nn.Linear(8, 8, bias=False)",
    "drop": "nn.Dropout(0.5)",
}
FLAT = """
a = F.relu(M["layer1.0.norm"](M["layer1.0.conv"](image)))
b = a + M["layer1.0.downsample"](image)
c = F.relu(M["layer1.1.norm"](M["layer1.1.conv"](b)))
d = c + b
e = F.relu(F.max_pool2d(d, 2))
f = e.mean((2, 3))
keys = []
k0 = M["steps.0.fc"](f) - past0
g0 = f * k0 / M["steps.0.scale"]
keys.append(k0)
k1 = M["steps.1.fc"](g0) - past1
g1 = g0 * k1 / M["steps.1.scale"]
keys.append(k1)
if g1.sum() > 0:
    h = g1 * M["mask"]
else:
    h = g1 - M["table"]
with torch.enable_grad():
    i = h * 2.0
    j = torch.exp(i)
total = h
for row in past0:
    u = total + row
    total = torch.tanh(u)
count = total
while count.sum() < 3:
    count = count + 1
noise = torch.rand_like(h) - torch.rand_like(h)
o = M["out"](M["drop"](h)) + M["out"](M["drop"](noise))
s = M["head.3"](M["head.2"](F.relu(M["head.0"](h))))
q = torch.zeros(S["N"], S["H"] // 2, 1, device=h.device) + float("nan")
v = torch.where(h >= 0.0, h, -0.0)
return o, torch.cat(keys, 1), s, j, total, count, q, v, M["embed"](tokens)
"""
TEXT = '''
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1, downsample: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.norm = nn.BatchNorm2d(outputs, eps=0.001)
        self.downsample = nn.Identity()
        if downsample:
            self.downsample = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.conv(x)))
        return y + self.downsample(x)


class Step(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.fc = nn.Linear(size, size)
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        key = self.fc(x) - past
        return x * key / self.scale, key


class Head(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(Block(3, 8, 2, True), Block(8, 8))
        self.pool = nn.Sequential(nn.MaxPool2d(2), nn.ReLU())
        self.steps = nn.ModuleList([Step(8) for _ in range(2)])
        self.head = Head()
        self.register_buffer("mask", torch.zeros(8))
        self.register_buffer("table", torch.ones(8), persistent=False)
        self.embed = nn.Embedding(8, 8)
        self.out = nn.Linear(8, 8, bias=False)
        self.drop = nn.Dropout(0.5)
        self.embed.weight.requires_grad_(False)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Let the tensors that the network shares be one and the same parameter."""
        self.out.weight = self.embed.weight

    def forward(self, image: Tensor, past0: Tensor, past1: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        x = self.pool(self.layer1(image)).mean((2, 3))
        keys = []
        for step, past in zip(self.steps, (past0, past1)):
            x, key = step(x, past)
            keys.append(key)
        if x.sum() > 0:
            x = x * self.mask
        else:
            x = x - self.table
        with torch.enable_grad():
            y = x * 2.0
            y = torch.exp(y)
        total = x
        for row in past0:
            z = total + row
            total = torch.tanh(z)
        count = total
        while count.sum() < 3:
            count = count + 1
        noise = torch.rand_like(x) - torch.rand_like(x)
        o = self.out(self.drop(x)) + self.out(self.drop(noise))
        size = image.shape[2] // 2
        q = torch.zeros(image.shape[0], size, 1, device=x.device) + float("nan")
        v = torch.where(x >= 0.0, x, -0.0)
        return o, torch.cat(keys, 1), self.head(x), y, total, count, q, v, self.embed(tokens)
'''
LOOP = """        for step, past in zip(self.steps, (past0, past1)):
            x, key = step(x, past)
            keys.append(key)
"""
BRANCH = """        if x.sum() > 0:
            x = x * self.mask
        else:
            x = x - self.table
"""
WRONG = r"""
nn.Conv2d(inputs, outputs, 3, stride, padding=1)|nn.Conv2d(inputs, outputs, 3, stride)
nn.Conv2d(inputs, outputs, 3, stride, padding=1)|nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
nn.Conv2d(inputs, outputs, 3, stride, padding=1)|nn.Conv2d(outputs, inputs, 3, stride, padding=1)
nn.Conv2d(inputs, outputs, 3, stride, padding=1)|nn.Conv2d(inputs, outputs, 3, 2, padding=1)
nn.Conv2d(inputs, outputs, 3, stride, padding=1)|nn.Conv2d(inputs, outputs, 3, stride, padding=True)
nn.Conv2d(inputs, outputs, 3, stride, padding=1)|nn.Conv1d(inputs, outputs, 3, stride, padding=1)
nn.BatchNorm2d(outputs, eps=0.001)|nn.BatchNorm2d(outputs)
nn.BatchNorm2d(outputs, eps=0.001)|nn.BatchNorm2d(outputs, eps=0.001, momentum=0.2)
nn.BatchNorm2d(outputs, eps=0.001)|nn.Identity()
nn.Conv2d(inputs, outputs, 1, stride)|nn.Conv2d(inputs, outputs, 1)
stride: int = 1|stride: int = 2
downsample: bool = False|downsample: bool = True
if downsample:|if not downsample:
if downsample:|if stride:
self.downsample = nn.Identity()\n|self.downsample = nn.ReLU()\n
y = F.relu(self.norm(self.conv(x)))|y = self.norm(F.relu(self.conv(x)))
y = F.relu(self.norm(self.conv(x)))|y = F.relu(self.conv(x))
y = F.relu(self.norm(self.conv(x)))|y = F.relu(self.norm(self.norm(self.conv(x))))
y = F.relu(self.norm(self.conv(x)))|y = F.relu6(self.norm(self.conv(x)))
y = F.relu(self.norm(self.conv(x)))|y = F.relu(self.norm(self.conv(x)), inplace=True)
y = F.relu(self.norm(self.conv(x)))|y = F.relu_(self.norm(self.conv(x)))
y = F.relu(self.norm(self.conv(x)))|y = F.relu(self.norm.forward(self.conv(x)))
return y + self.downsample(x)|return self.downsample(x) + y
return y + self.downsample(x)|return y - self.downsample(x)
return y + self.downsample(x)|return y + x
return y + self.downsample(x)|return y + self.downsample(y)
return y + self.downsample(x)|z = self.norm(y)\n        return y + self.downsample(x)
return y + self.downsample(x)|x.add_(1)\n        return y + self.downsample(x)
return y + self.downsample(x)|w = x.add_(1)\n        return y + self.downsample(x)
return y + self.downsample(x)|return y + self.downsample(x), y
nn.Linear(size, size)|nn.Linear(size, size, bias=False)
nn.Linear(size, size)|nn.Linear(size, size + 1)
nn.Parameter(torch.ones(size))|nn.Parameter(torch.zeros(size))
nn.Parameter(torch.ones(size))|torch.ones(size)
self.scale = nn.Parameter(torch.ones(size))|self.register_buffer("scale", torch.ones(size))
self.fc(x) - past|past - self.fc(x)
self.fc(x) - past|self.fc(past) - x
return x * key / self.scale, key|return key, x * key / self.scale
return x * key / self.scale, key|return x * (key / self.scale), key
nn.ReLU(), nn.Linear(4, 2)|nn.Linear(4, 2)
nn.ReLU(), nn.Linear(4, 2)|nn.Linear(4, 2), nn.ReLU()
nn.ReLU(), nn.Linear(4, 2)|nn.ReLU6(), nn.Linear(4, 2)
nn.ReLU(), nn.Linear(4, 2)|nn.Identity(), nn.Linear(4, 2)
, nn.Linear(2, 2))|)
return super().forward(x)|return super().forward(super().forward(x))
return super().forward(x)|return x
class Head(nn.Sequential)|class Head(nn.Module)
Block(3, 8, 2, True), Block(8, 8)|Block(8, 8), Block(3, 8, 2, True)
Block(3, 8, 2, True), Block(8, 8)|Block(3, 8, 2, True), Block(8, 8), Block(8, 8)
Block(3, 8, 2, True), Block(8, 8)|Block(3, 8, 2, True)
Block(3, 8, 2, True)|Block(3, 8, 2)
Block(3, 8, 2, True)|Block(3, 8, True)
Block(3, 8, 2, True), Block(8, 8)|Block(3, 8, 2, True), Block(8, 8, downsample=True)
Block(3, 8, 2, True), Block(8, 8)|*[Block(3, 8, 2, True)] * 2
nn.MaxPool2d(2), nn.ReLU()|nn.MaxPool2d(3), nn.ReLU()
nn.MaxPool2d(2), nn.ReLU()|nn.ReLU(), nn.MaxPool2d(2)
nn.MaxPool2d(2), nn.ReLU()|nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()
nn.MaxPool2d(2), nn.ReLU()|nn.MaxPool2d(2, 1), nn.ReLU()
nn.MaxPool2d(2), nn.ReLU()|nn.MaxPool2d(2), nn.ReLU(True)
[Step(8) for _ in range(2)]|[Step(8) for _ in range(3)]
[Step(8) for _ in range(2)]|[Step(8)] * 2
nn.ModuleList([Step(8) for _ in range(2)])|[Step(8) for _ in range(2)]
nn.ModuleList([Step(8) for _ in range(2)])|nn.ModuleList([Step(8)], [Step(8)])
self.register_buffer("mask", torch.zeros(8))|self.register_buffer("mask", torch.zeros(8), persistent=False)
self.register_buffer("mask", torch.zeros(8))|self.mask = torch.zeros(8)
self.register_buffer("mask", torch.zeros(8))|self.mask = nn.Parameter(torch.zeros(8))
self.register_buffer("mask", torch.zeros(8))|self.register_buffer("mask", torch.zeros(9))
torch.ones(8), persistent=False|torch.ones(8)
torch.ones(8), persistent=False|torch.ones(8), persistent=False, persistent=False
self.embed.weight.requires_grad_(False)|pass
self.embed.weight.requires_grad_(False)|self.embed.weight.requires_grad_(True)
self.embed.weight.requires_grad_(False)|self.out.weight.requires_grad_(False)
self.embed.weight.requires_grad_(False)|self.embed.requires_grad_(False)
        self.tie_weights()\n|
self.out.weight = self.embed.weight|self.embed.weight = self.out.weight
self.out.weight = self.embed.weight|self.out.weight = self.head[0].weight
self.drop = nn.Dropout(0.5)|self.drop = nn.Dropout(0.1)
self.drop = nn.Dropout(0.5)|self.drop = nn.Identity()
self.drop = nn.Dropout(0.5)|self.drop = nn.Dropout(0.5)\n        self.extra = nn.Linear(1, 1)
self.drop = nn.Dropout(0.5)|self.drop = nn.Dropout(0.5)\n        self.training = False
self.drop = nn.Dropout(0.5)|self.drop = self.other = nn.Dropout(0.5)
.mean((2, 3))|.mean((2, 3), keepdim=True)
zip(self.steps, (past0, past1))|zip(self.steps, (past1, past0))
zip(self.steps, (past0, past1))|zip(self.steps, (past0, past0))
zip(self.steps, (past0, past1))|zip(reversed(self.steps), (past0, past1))
zip(self.steps, (past0, past1))|zip(self.steps[1:], (past0, past1))
for step, past in zip(self.steps, (past0, past1))|for past, step in zip(self.steps, (past0, past1))
x, key = step(x, past)|key, x = step(x, past)
x, key = step(x, past)|x2, key = step(x, past)
x, key = step(x, past)|x, key = step(past, x)
            keys.append(key)\n|
keys.append(key)|keys.append(x)
keys.append(key)|keys.append(key)\n            keys.append(key)
            keys.append(key)\n|        keys.append(key)\n
if x.sum() > 0|if x.sum() >= 0
if x.sum() > 0|if x.sum() > 0.0
if x.sum() > 0|if x.sum() > False
if x.sum() > 0|if True
x = x * self.mask|x = x * self.table
x = x - self.table|pass
            y = torch.exp(y)\n|        y = torch.exp(y)\n
        with torch.enable_grad():\n            y = x * 2.0\n|        y = x * 2.0\n        with torch.enable_grad():\n
with torch.enable_grad()|with torch.no_grad()
x * 2.0|x * 2
total = x\n|total = past0\n
for row in past0|for row in past1
for row in past0|for row in reversed(past0)
z = total + row|z = row + total
z = total + row|z = x + row
            total = torch.tanh(z)\n|            z = torch.tanh(z)\n
while count.sum() < 3|while count.sum() <= 3
while count.sum() < 3|while total.sum() < 3
count = count + 1|count = total + 1
torch.rand_like(x) - torch.rand_like(x)|(lambda n: n - n)(torch.rand_like(x))
noise = torch.rand_like(x)|noise = torch.rand_like(x)\n        noise = torch.rand_like(x)
noise = torch.rand_like(x)|noise = torch.randn_like(x)
self.out(self.drop(x)) + self.out(self.drop(noise))|self.out(self.drop(x)) + self.out(noise)
        o = self|        n = self.out(self.drop(noise))\n        o = self
image.shape[2] // 2|image.shape[3] // 2
image.shape[2] // 2|image.shape[2] // 3
image.shape[2] // 2|-(-image.shape[2] // 2)
torch.zeros(image.shape[0], size, 1|torch.zeros(size, image.shape[0], 1
torch.zeros(image.shape[0], size, 1|torch.zeros(image.shape[0], size, True
torch.zeros(image.shape[0], size, 1|torch.zeros(image.shape[0], size, 1.0
device=x.device|device="cpu"
, device=x.device|
float("nan")|float("inf")
-0.0|0.0
x >= 0.0, x, -0.0|x >= 0.0, -0.0, x
torch.cat(keys, 1)|torch.cat(keys, 0)
torch.cat(keys, 1)|torch.cat(keys)
self.head(x), y|y, self.head(x)
self.head(x)|self.head(self.head(x))
import torch.nn.functional as F|import torch as F
from torch import Tensor, nn|from torch import Tensor, nn\nF = torch
from torch import Tensor, nn|from torch import Tensor, nn\nzip = map
class Net(nn.Module):|class Net(nn.Module):\n    training = False\n
class Net(nn.Module):|class Net(nn.Module):\n    def train(self, mode=True):\n        return self\n
tokens: Tensor)|tokens: Tensor = None)
tokens: Tensor)|tokens: Tensor, more: Tensor)
image: Tensor, past0: Tensor|past0: Tensor, image: Tensor
        super().__init__()\n        self.fc|        self.fc
        x = self.pool(|        F = x = self.pool(
past1: Tensor, tokens|past1: int, tokens
"""
SAME = r"""
return x * key / self.scale, key|return [x * key / self.scale, key]
y = F.relu(self.norm(self.conv(x)))|z = self.conv(x)\n        y = F.relu(self.norm(z))
y = F.relu(self.norm(self.conv(x)))|x2 = self.norm(self.conv(x))\n        y = F.relu(x2)
return y + self.downsample(x)|x = self.downsample(x)\n        return y + x
return y + self.downsample(x)|return (y + self.downsample(x))
nn.Conv2d(inputs, outputs, 3, stride, padding=1)|nn.Conv2d(inputs, outputs, 3, stride, padding=1, groups=1)
nn.Conv2d(inputs, outputs, 3, stride, padding=1)|nn.Conv2d(inputs, outputs, 2 + 1, stride, padding=1)
nn.BatchNorm2d(outputs, eps=0.001)|nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.1)
nn.BatchNorm2d(outputs, eps=0.001)|nn.BatchNorm2d(outputs, eps=0.001, affine=True)
if downsample:|if downsample is True:
if downsample:|if stride != 1 or inputs != outputs:
if downsample:|if stride == 2 and downsample:
self.scale = nn.Parameter(torch.ones(size))|s = nn.Parameter(torch.ones(size))\n        self.scale = s
nn.Linear(size, size)|nn.Linear(size, size, bias=True)
key = self.fc(x) - past|key = self.fc(x)\n        key = key - past
return x * key / self.scale, key|result = (x * key / self.scale, key)\n        return result
return super().forward(x)|for layer in self:\n            x = layer(x)\n        return x
return super().forward(x)|return self[3](self[2](self[1](self[0](x))))
return super().forward(x)|return self[3](self[2](F.relu(self[0](x))))
nn.Sequential(Block(3, 8, 2, True), Block(8, 8))|nn.Sequential(Block(3, 8, 2, downsample=True), Block(8, 8))
nn.Sequential(Block(3, 8, 2, True), Block(8, 8))|nn.Sequential(*[Block(3, 8, 2, True), Block(8, 8)])
nn.Sequential(Block(3, 8, 2, True), Block(8, 8))|nn.Sequential(Block(3, 8, 2, True), Block(8, 8, 1, False))
nn.MaxPool2d(2), nn.ReLU()|nn.MaxPool2d(kernel_size=2), nn.ReLU()
nn.MaxPool2d(2), nn.ReLU()|nn.MaxPool2d(2), nn.Identity(), nn.ReLU()
nn.ModuleList([Step(8) for _ in range(2)])|nn.ModuleList([Step(8), Step(8)])
nn.ModuleList([Step(8) for _ in range(2)])|nn.ModuleList(Step(8) for _ in range(2))
self.pool(self.layer1(image))|F.relu(F.max_pool2d(self.layer1(image), 2))
self.layer1(image)|self.layer1[1](self.layer1[0](image))
zip(self.steps, (past0, past1))|zip(self.steps, [past0, past1])
step, past in zip(self.steps, (past0, past1)):|i, past in enumerate((past0, past1)):\n            step = self.steps[i]
x, key = step(x, past)|both = step(x, past)\n            x, key = both
keys.append(key)|keys.extend([key])
torch.cat(keys, 1)|torch.cat([*keys], 1)
torch.cat(keys, 1)|torch.cat([keys[0], keys[-1]], 1)
            z = total + row\n            total = torch.tanh(z)\n|            total = torch.tanh(total + row)\n
y = x * 2.0\n            y = torch.exp(y)|y = torch.exp(x * 2.0)
        size = image.shape[2] // 2\n|        n, _, size, _ = image.shape\n        size = size // 2\n
torch.zeros(image.shape[0], size, 1|torch.zeros(past0.shape[0], size, 1
device=x.device|device=image.device
"""

# the loop turn by turn, the branch as an expression
WHOLE = [
    (
        LOOP,
        "        x, k = self.steps[0](x, past0)\n        keys.append(k)\n"
        "        x, k = self.steps[1](x, past1)\n        keys.append(k)\n",
    ),
    (BRANCH, "        x = x * self.mask if x.sum() > 0 else x - self.table\n"),
]


def difference(text: str) -> Difference | None:
    dims = {"image": ["N", 3, "H", "W"], "past0": ["N", 8], "past1": ["N", 8], "tokens": ["N"]}
    module = flat(dims, MEMBERS, FLAT, ["embed.weight"], [("embed.weight", "out.weight")], ["mask"])
    return validate(specify(module), ast.parse(text), "Net")


def rows(table: str) -> list[tuple[str, str]]:
    found = [line.partition("|")[::2] for line in table.strip("\n").splitlines()]
    return [(old.replace("\\n", "\n"), new.replace("\\n", "\n")) for old, new in found]


def test_the_text_is_right() -> None:
    assert difference(TEXT) is None


@pytest.mark.parametrize(("old", "new"), rows(WRONG))
def test_another_network_is_refused(old: str, new: str) -> None:
    assert TEXT.count(old) >= 1 and difference(TEXT.replace(old, new, 1)) is not None


@pytest.mark.parametrize(("old", "new"), [*rows(SAME), *WHOLE])
def test_the_same_network_is_let_pass(old: str, new: str) -> None:
    assert TEXT.count(old) >= 1 and difference(TEXT.replace(old, new, 1)) is None


def looped(spelled: str, text: str) -> Difference | None:
    """Return how a text differs from what `spelled` says, both with x, y and the parameter w."""
    module = flat({"x": ["N", 8], "y": ["N", 8]}, {"w": "nn.Parameter(torch.ones(8))"}, spelled)
    body = "".join(f"        {line}\n" for line in text.replace('M["w"]', "self.w").strip().splitlines())
    return validate(specify(module), ast.parse(LOOPED + body), "Net")


DRAWN = "nn.Parameter(torch.zeros(8))", "nn.init.trunc_normal_(self.w, std=0.02)"
EDITS = {
    DRAWN: True,
    DRAWN[:1]: False,
    (*DRAWN, DRAWN[1]): False,
    ("nn.Parameter(torch.zeros(9))", DRAWN[1]): False,
    ("nn.Parameter(torch.ones(8))", DRAWN[1]): False,
    ("torch.zeros(8)", DRAWN[1]): False,
    (DRAWN[0], "nn.init.trunc_normal_(self.w, std=0.03)"): False,
    (DRAWN[0], "nn.init.trunc_normal_(self.w)"): False,
    (DRAWN[0], "nn.init.trunc_normal_(self, std=0.02)"): False,
    (DRAWN[0], "nn.init.uniform_(self.w)"): False,
}


@pytest.mark.parametrize("lines", EDITS)
def test_numbers_are_drawn_into_a_parameter_of_zeros(lines: tuple[str, ...]) -> None:
    module = flat({"x": [8], "y": [8]}, {"w": "nn.Parameter(torch.normal(0.0, 0.02, (8,)))"}, "return x + M['w'], y")
    init = "\n        ".join((f"self.w = {lines[0]}", *lines[1:]))
    text = LOOPED.replace("self.w = nn.Parameter(torch.ones(8))", init) + "        return x + self.w, y\n"
    assert (validate(specify(module), ast.parse(text), "Net") is None) == EDITS[lines]


LOOPED = """
import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
"""
NESTED = """
a = x
b = x
for row in y:
    c = a
    for item in x:
        c = b
        b = b + item
    a = c
return a, b
"""
SWAPPED = """
a = x
b = y
for row in y:
    t = a
    if row.sum() > 0:
        a = b
        b = t
return a, b
"""
LISTED = """
rows = [x]
for row in y:
    rows.append(row)
return torch.cat(rows), x
"""
TWICE = """
some = [x]
more = [x]
for row in y:
    some.append(row)
    more.append(row)
return torch.cat(some), torch.cat(more)
"""


@pytest.mark.parametrize(
    ("spelled", "old", "new"),
    [
        (TWICE, "more = [x]", "more = some"),  # one list, which grows by two rows in each turn
        (NESTED, "c = a", "c = b"),  # two states that begin alike: b is first read by a loop inside
        (SWAPPED, "t = a", "t = b"),
        (LISTED, "    rows.append(row)", "    more = rows\n    more.append(row)\n    rows.append(row)"),
    ],
)
def test_another_loop_is_refused(spelled: str, old: str, new: str) -> None:
    assert looped(spelled, spelled) is None and looped(spelled, spelled.replace(old, new)) is not None


def test_a_swap_in_one_statement_is_the_same() -> None:
    assert looped(SWAPPED, SWAPPED.replace("a = b\n        b = t", "a, b = b, a").replace("    t = a\n", "")) is None
