"""Ten small networks over images, as a vision researcher writes them."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def conv_bn(cin, cout, k=3, s=1, groups=1, act=nn.ReLU):
    conv = nn.Conv2d(cin, cout, k, s, k // 2, groups=groups, bias=False)
    layers = [conv, nn.BatchNorm2d(cout)]
    return nn.Sequential(*layers, *([act(inplace=True)] if act else []))


class DSBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.use_res = stride == 1 and cin == cout
        self.dw = conv_bn(cin, cin, 3, stride, groups=cin, act=nn.ReLU6)
        self.pw = conv_bn(cin, cout, 1, act=None)

    def forward(self, x):
        y = self.pw(self.dw(x))
        return x + y if self.use_res else F.relu6(y)


class DSNet(nn.Module):
    cfg = [(24, 1, 1), (32, 2, 2), (64, 3, 2)]  # channels, depth, stride

    def __init__(self, num_classes=10, drop=0.2):
        super().__init__()
        cin, self.stages = 16, nn.Sequential()
        self.stem = conv_bn(3, cin, 3, 2, act=nn.ReLU6)
        for i, (c, n, s) in enumerate(self.cfg):
            stage = [DSBlock(cin, c, s)] + [DSBlock(c, c, 1) for _ in range(n - 1)]
            self.stages.add_module(f"stage{i + 1}", nn.Sequential(*stage))
            cin = c
        self.head = nn.Sequential(nn.Dropout(drop), nn.Linear(cin, num_classes))

    def forward(self, x):
        x = self.stages(self.stem(x))
        return self.head(x.mean([2, 3]))


class UNet(nn.Module):
    def __init__(self, cin=3, num_classes=4, widths=(8, 16, 32, 64)):
        super().__init__()

        def double(a, b):
            return nn.Sequential(conv_bn(a, b), conv_bn(b, b))

        pairs = list(zip(widths[:-1], widths[1:]))
        self.inc = double(cin, widths[0])
        self.down = nn.ModuleList(double(a, b) for a, b in pairs)
        self.reduce = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in pairs[::-1])
        self.up = nn.ModuleList(double(2 * a, a) for a, _ in pairs[::-1])
        self.outc = nn.Conv2d(widths[0], num_classes, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for down in self.down:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for reduce, up in zip(self.reduce, self.up):
            skip = skips.pop()
            x = F.interpolate(x, skip.shape[-2:], mode="bilinear", align_corners=False)
            x = up(torch.cat([skip, reduce(x)], dim=1))
        return self.outc(x)


def make_centers(h: int, w: int, stride: int) -> Tensor:
    ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return (torch.stack([xs, ys], -1).reshape(-1, 2).float() + 0.5) * stride


class GridDetector(nn.Module):
    """FCOS-ish head on one level. Returns (boxes xyxy, scores)."""

    def __init__(self, num_classes=5, img_size=64, stride=8, dim=32):
        super().__init__()
        self.img_size, self.stride, g = img_size, stride, img_size // stride
        chs = [3, dim // 4, dim // 2, dim]
        downs = [conv_bn(a, b, 3, 2, act=nn.SiLU) for a, b in zip(chs, chs[1:])]
        self.backbone = nn.Sequential(*downs)
        self.cls_tower = conv_bn(dim, dim, act=nn.SiLU)
        self.reg_tower = conv_bn(dim, dim, act=nn.SiLU)
        self.cls = nn.Conv2d(dim, num_classes, 1)
        self.reg, self.ctr = nn.Conv2d(dim, 4, 1), nn.Conv2d(dim, 1, 1)
        self.register_buffer("centers", make_centers(g, g, stride), persistent=False)
        nn.init.constant_(self.cls.bias, -math.log((1 - 0.01) / 0.01))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        f = self.backbone(images)
        r = self.reg_tower(f)
        preds = self.cls(self.cls_tower(f)), self.reg(r), self.ctr(r)
        cls, ltrb, ctr = [p.flatten(2).transpose(1, 2) for p in preds]
        lt, rb = (F.softplus(ltrb) * self.stride).chunk(2, dim=-1)
        boxes = torch.cat([self.centers - lt, self.centers + rb], dim=-1)
        scores = torch.sqrt(cls.sigmoid() * ctr.sigmoid())
        return boxes.clamp(0, self.img_size), scores


class KeypointNet(nn.Module):
    """Heat-maps -> soft-argmax. Coordinates in [0, 1], plus peak confidence."""

    def __init__(self, num_joints=7, dim=32, size=(16, 12), beta=4.0):
        super().__init__()
        stem, mid = conv_bn(3, dim // 2, 3, 2), conv_bn(dim // 2, dim, 3, 2)
        self.trunk = nn.Sequential(stem, mid, conv_bn(dim, 2 * dim, 3, 2))
        self.deconv = nn.ConvTranspose2d(2 * dim, dim, 4, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(dim)
        self.final = nn.Conv2d(dim, num_joints, 1)
        self.beta = nn.Parameter(torch.tensor(beta))
        nn.init.normal_(self.final.weight, std=0.2)
        self.register_buffer("ys", torch.linspace(0, 1, size[0]))
        self.register_buffer("xs", torch.linspace(0, 1, size[1]))

    def forward(self, x):
        hm = self.final(F.relu(self.bn(self.deconv(self.trunk(x)))))
        b, j, h, w = hm.shape
        p = torch.softmax(self.beta * hm.view(b, j, -1), dim=-1).view(b, j, h, w)
        px = (p.sum(dim=2) * self.xs).sum(-1)
        py = (p.sum(dim=3) * self.ys).sum(-1)
        return torch.stack([px, py], dim=-1), p.amax(dim=(2, 3))


class SiameseNet(nn.Module):
    def __init__(self, dim=64, p=3.0, eps=1e-6):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.p, self.eps = nn.Parameter(torch.full((1,), p)), eps
        self.proj, self.neck = nn.Linear(64, dim, bias=False), nn.BatchNorm1d(dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(5.0)))
        self.bias = nn.Parameter(torch.zeros(()))

    def embed(self, x):
        x = F.leaky_relu(self.conv2(F.leaky_relu(self.conv1(x), 0.1)), 0.1)
        x = self.conv3(x).clamp(min=self.eps).pow(self.p)
        return self.neck(self.proj(x.mean((2, 3)).pow(1.0 / self.p)))  # GeM, BNNeck

    def forward(self, a, b):
        sim = F.cosine_similarity(self.embed(a), self.embed(b), dim=1)
        return torch.sigmoid(self.logit_scale.exp() * sim + self.bias)


class GNRes(nn.Module):
    def __init__(self, c, groups=4):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, c), nn.Conv2d(c, c, 3, 1, 1)
        self.norm2, self.conv2 = nn.GroupNorm(groups, c), nn.Conv2d(c, c, 3, 1, 1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h)))


class ConvVAE(nn.Module):
    def __init__(self, c=16, latent=16, size=32):
        super().__init__()
        self.grid = (2 * c, size // 4, size // 4)
        down1, down2 = nn.Conv2d(3, c, 4, 2, 1), nn.Conv2d(c, 2 * c, 4, 2, 1)
        self.enc = nn.Sequential(down1, GNRes(c), down2, GNRes(2 * c))
        self.to_stats = nn.Linear(math.prod(self.grid), 2 * latent)
        self.from_z = nn.Linear(latent, math.prod(self.grid))
        up = nn.Upsample(scale_factor=2)
        self.dec = nn.Sequential(GNRes(2 * c), up, nn.Conv2d(2 * c, c, 3, padding=1))
        self.to_rgb = nn.ConvTranspose2d(c, 3, 4, 2, 1)

    def forward(self, x):
        mu, logvar = self.to_stats(self.enc(x).flatten(1)).chunk(2, dim=1)
        logvar, z = logvar.clamp(-20.0, 10.0), mu
        if self.training:
            z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        h = self.dec(self.from_z(z).view(-1, *self.grid))
        return torch.sigmoid(self.to_rgb(F.silu(h))), mu, logvar


class CNBlock(nn.Module):
    def __init__(self, dim, ls_init=0.1):  # V2 block (GRN), V1 layer scale kept
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pw1, self.pw2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.grn_w = nn.Parameter(0.1 * torch.randn(4 * dim))
        self.grn_b = nn.Parameter(torch.zeros(4 * dim))
        self.gamma = nn.Parameter(ls_init * torch.ones(dim))

    def forward(self, x):
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))  # NHWC
        y = F.gelu(self.pw1(y))
        gx = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
        nx = gx / (gx.mean(dim=-1, keepdim=True) + 1e-6)
        y = self.pw2(self.grn_w * (y * nx) + self.grn_b + y)
        return x + (self.gamma * y).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, dims=(16, 32, 64), depths=(1, 1, 2), num_classes=10):
        super().__init__()
        self.features, cin = nn.ModuleList(), 3
        for i, (d, n) in enumerate(zip(dims, depths)):
            k, norm = (2, nn.GroupNorm(1, cin)) if i else (4, nn.Identity())
            stage = [norm, nn.Conv2d(cin, d, k, k)] + [CNBlock(d) for _ in range(n)]
            self.features.append(nn.Sequential(*stage))
            cin = d
        self.norm, self.head = nn.LayerNorm(cin), nn.Linear(cin, num_classes)

    def forward(self, x):
        for stage in self.features:
            x = stage(x)
        return self.head(self.norm(x.mean([-2, -1])))


class SE(nn.Module):
    def __init__(self, c, rd=4):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(c, c // rd, 1), nn.Conv2d(c // rd, c, 1)

    def forward(self, x):
        s = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.fc2(F.relu(self.fc1(s))))


class SEBlock(nn.Module):
    def __init__(self, cin, c, stride=1):
        super().__init__()
        self.conv1 = conv_bn(cin, c, 3, stride, act=nn.Hardswish)
        self.conv2, self.se = conv_bn(c, c, act=None), SE(c)
        same = stride == 1 and cin == c
        self.short = nn.Identity() if same else conv_bn(cin, c, 1, stride, act=None)

    def forward(self, x):
        return F.hardswish(self.se(self.conv2(self.conv1(x))) + self.short(x))


class SENet(nn.Module):
    def __init__(self, num_classes=10, width=16):
        super().__init__()
        blocks = SEBlock(width, width), SEBlock(width, 2 * width, stride=2)
        self.body = nn.Sequential(conv_bn(3, width, act=nn.Hardswish), *blocks)
        self.fc = nn.Linear(4 * width, num_classes)

    def forward(self, x):
        x = self.body(x)  # avg + max pooling, concatenated
        return self.fc(torch.cat([x.mean((2, 3)), x.amax((2, 3))], dim=1))


def affine_grid(theta, h, w):
    # F.affine_grid (align_corners=False) by hand: no ONNX op before opset 20
    ys = (2 * torch.arange(h, device=theta.device) + 1) / h - 1
    xs = (2 * torch.arange(w, device=theta.device) + 1) / w - 1
    gy, gx = torch.meshgrid(ys, xs, indexing="ij")
    base = torch.stack([gx, gy, torch.ones_like(gx)], dim=-1).view(1, h * w, 3)
    return (base @ theta.transpose(1, 2)).view(-1, h, w, 2)


class STN(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        pool = nn.Sequential(nn.MaxPool2d(2, 2), nn.ReLU(True))
        self.loc = nn.Sequential(nn.Conv2d(1, 8, 7), pool, nn.Conv2d(8, 10, 5), pool)
        self.fc_loc = nn.Sequential(nn.Linear(90, 32), nn.ReLU(True), nn.Linear(32, 6))
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, num_classes)
        nn.init.normal_(self.fc_loc[-1].weight, std=0.05)  # near identity
        self.fc_loc[-1].bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1.0, 0]))

    def forward(self, x):
        theta = self.fc_loc(self.loc(x).flatten(1)).view(-1, 2, 3)
        grid = affine_grid(theta, *x.shape[-2:])
        x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(F.dropout2d(self.conv2(x), 0.5, self.training), 2))
        x = F.dropout(F.relu(self.fc1(x.flatten(1))), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


@dataclass
class ViTConfig:
    img: int = 32
    patch: int = 8
    dim: int = 64
    depth: int = 3
    heads: int = 4
    num_classes: int = 10


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.scale = heads, (d // heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(B, N, 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale @ k.transpose(-2, -1)).softmax(dim=-1)
        x = x + self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, cfg: ViTConfig):
        super().__init__()
        d, n = cfg.dim, (cfg.img // cfg.patch) ** 2
        self.patch_embed = nn.Conv2d(3, d, cfg.patch, cfg.patch)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, d))
        self.pos_embed = nn.Parameter(torch.zeros(1, n + 1, d))
        self.blocks = nn.Sequential(*[Block(d, cfg.heads) for _ in range(cfg.depth)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, cfg.num_classes)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        cls = self.cls_token.expand(x.shape[0], -1, -1)
        x = self.blocks(torch.cat([cls, x], dim=1) + self.pos_embed)
        return self.head(self.norm(x)[:, 0])


def networks() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    r = torch.randn
    nets = {
        "ds_cnn": (DSNet(), (r(2, 3, 32, 32),)),
        "unet": (UNet(), (r(1, 3, 36, 44),)),
        "grid_detector": (GridDetector(), (r(2, 3, 64, 64),)),
        "keypoint_net": (KeypointNet(), (r(2, 3, 64, 48),)),
        "siamese_cosine": (SiameseNet(), (r(2, 1, 28, 28), r(2, 1, 28, 28))),
        "gn_vae": (ConvVAE(), (torch.rand(2, 3, 32, 32),)),
        "convnext_grn": (ConvNeXt(), (r(2, 3, 32, 32),)),
        "se_resnet": (SENet(), (r(2, 3, 24, 24),)),
        "spatial_transformer": (STN(), (r(2, 1, 28, 28),)),
        "tiny_vit": (ViT(ViTConfig()), (r(2, 3, 32, 32),)),
    }
    with torch.no_grad():
        for m, x in nets.values():
            [m.train()(*x) for _ in range(20)]  # warm up the BN stats
    return {k: (m.eval(), x) for k, (m, x) in nets.items()}
