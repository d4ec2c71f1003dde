"""Known blocks, in plain PyTorch, and what tells them apart: the table of `known.py`.

A block is a function: the layers that it has, and then what it computes, as the generator would write both. It is
without norms and dropout, which are left out when it is compared.
Of several libraries that have a block, the one is meant of which a file has most blocks that no other library has.
"""

from __future__ import annotations

# classes of libraries that are told by the names of their members: what they compute differs from version to version
MEMBERS = (
    ("ultralytics", frozenset(("cv2", "cv3", "dfl")), "Detect"),
    ("ultralytics", frozenset(("cv2", "cv3", "cv4", "dfl")), "Pose"),
    ("ultralytics", frozenset(("cv2", "cv3", "cv4", "dfl", "proto")), "Segment"),
    ("ultralytics", frozenset(("attn", "ffn")), "PSABlock"),
)
LIBRARIES = {
    "ultralytics": """
def Conv(x):
    self.conv = nn.Conv2d(c1, c2, k)
    return F.silu(self.conv(x))

def Bottleneck(x):
    self.cv1 = self.cv2 = Conv()
    return x + self.cv2(self.cv1(x))

def C3(x):
    self.cv1 = self.cv2 = self.cv3 = Conv()
    self.m = nn.Sequential(Bottleneck())
    return self.cv3(torch.cat([self.m(self.cv1(x)), self.cv2(x)], dim=1))

def C2f(x):
    self.cv1 = self.cv2 = Conv()
    self.m = nn.Sequential(Bottleneck())
    a, b = self.cv1(x).chunk(2, dim=1)
    return self.cv2(torch.cat([a, b, self.m(b)], dim=1))

def SPPF(x):
    self.cv1 = self.cv2 = Conv()
    x = self.cv1(x)
    a = F.max_pool2d(x, 5)
    b = F.max_pool2d(a, 5)
    c = F.max_pool2d(b, 5)
    return self.cv2(torch.cat([x, a, b, c], dim=1))

def SPP(x):
    self.cv1 = self.cv2 = Conv()
    x = self.cv1(x)
    a = F.max_pool2d(x, 5)
    b = F.max_pool2d(x, 9)
    c = F.max_pool2d(x, 13)
    return self.cv2(torch.cat([x, a, b, c], dim=1))

def DFL(x):
    self.conv = nn.Conv2d(16, 1, 1)
    return self.conv(F.softmax(x.unflatten(1, (4, -1)).transpose(1, 2), dim=1)).flatten(0, 1)

def Focus(x):
    self.conv = Conv()
    a = x[..., ::2, ::2]
    b = x[..., 1::2, ::2]
    c = x[..., ::2, 1::2]
    d = x[..., 1::2, 1::2]
    return self.conv(torch.cat([a, b, c, d], dim=1))
""",
    "yolox": """
def Bottleneck(x):
    self.conv1 = nn.Conv2d(c, c, 1)
    self.conv2 = nn.Conv2d(c, c, 3)
    return F.silu(self.conv2(F.silu(self.conv1(x)))) + x

def CSPLayer(x):
    self.conv1 = self.conv2 = nn.Conv2d(a, b, 1)
    self.blocks = nn.Sequential(Bottleneck())
    self.conv3 = nn.Conv2d(2 * b, a, 1)
    x = torch.cat([self.blocks(F.silu(self.conv1(x))), F.silu(self.conv2(x))], dim=1)
    return F.silu(self.conv3(x))

def DarkStage(x):
    self.conv = nn.Conv2d(a, b, 3)
    self.csp = CSPLayer()
    return self.csp(F.silu(self.conv(x)))

def DecoupledHead(x):
    self.stem = nn.Conv2d(a, b, 1)
    self.cls_conv1 = self.cls_conv2 = nn.Conv2d(b, b, 3)
    self.cls_pred = nn.Conv2d(b, c, 1)
    self.reg_conv1 = self.reg_conv2 = nn.Conv2d(b, b, 3)
    self.reg_pred = nn.Conv2d(b, 4, 1)
    self.obj_pred = nn.Conv2d(b, 1, 1)
    x = F.silu(self.stem(x))
    probs = torch.sigmoid(self.cls_pred(F.silu(self.cls_conv2(F.silu(self.cls_conv1(x))))))
    x = F.silu(self.reg_conv2(F.silu(self.reg_conv1(x))))
    return torch.cat([self.reg_pred(x), torch.sigmoid(self.obj_pred(x)), probs], dim=1)
""",
    "timm": """
def ConvNormAct(x):
    self.conv = nn.Conv2d(c1, c2, 3)
    return F.relu(self.conv(x))

def SqueezeExcite(x):
    self.fc1 = nn.Conv2d(a, b, 1)
    self.fc2 = nn.Conv2d(b, a, 1)
    h = F.relu(self.fc1(x.mean(dim=(2, 3), keepdim=True)))
    return x * torch.sigmoid(self.fc2(h))

def ConvNeXtBlock(x):
    self.dwconv = nn.Conv2d(c, c, 7, groups=c)
    self.norm = nn.LayerNorm(c)
    self.pwconv1 = nn.Linear(a, b)
    self.pwconv2 = nn.Linear(b, a)
    self.gamma = nn.Parameter(torch.ones(c))
    h = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
    h = self.gamma * self.pwconv2(F.gelu(self.pwconv1(h)))
    return x + h.permute(0, 3, 1, 2)

def RepVGGBlock(x):
    self.conv1 = nn.Conv2d(a, b, 3)
    self.conv2 = nn.Conv2d(a, b, 1)
    self.bn = nn.BatchNorm2d(b)
    return F.relu(self.conv1(x) + self.conv2(x) + self.bn(x))
""",
    "transformers": """
def SwiGLU(x):
    self.gate_proj = self.up_proj = nn.Linear(a, b)
    self.down_proj = nn.Linear(b, a)
    return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

def RMSNorm(x):
    self.weight = nn.Parameter(torch.ones(c))
    return self.weight * (x * torch.rsqrt((x**2).mean(dim=-1, keepdim=True) + 1e-6))
""",
}
