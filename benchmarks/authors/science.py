"""Ten small networks over graphs, tables and points, as a student of scientific computing writes them."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(dims, act=nn.SiLU, last=False):
    """Linear layers with `act` in between (and after the last one if `last`)."""
    layers = []
    for i, (a, b) in enumerate(zip(dims[:-1], dims[1:])):
        layers.append(nn.Linear(a, b))
        if last or i < len(dims) - 2:
            layers.append(act())
    return nn.Sequential(*layers)


class MPLayer(nn.Module):
    """m_ij = phi_e(h_i, h_j, e_ij),  h_i' = LN(h_i + phi_v(h_i, sum_j m_ij))"""

    def __init__(self, h, de):
        super().__init__()
        self.phi_e = mlp([2 * h + de, h, h], last=True)
        self.phi_v = mlp([2 * h, h, h])
        self.norm = nn.LayerNorm(h)

    def forward(self, x, src, dst, e):
        m = self.phi_e(torch.cat([x[dst], x[src], e], dim=-1))
        agg = torch.zeros_like(x).scatter_add(0, dst.unsqueeze(-1).expand_as(m), m)
        return self.norm(x + self.phi_v(torch.cat([x, agg], dim=-1)))


class MPNN(nn.Module):
    """Predicts one scalar per graph (e.g. an energy) from atoms and distances."""

    def __init__(self, n_types=10, h=32, n_rbf=8, L=3, r_cut=5.0):
        super().__init__()
        self.embed = nn.Embedding(n_types, h)
        self.layers = nn.ModuleList([MPLayer(h, n_rbf) for _ in range(L)])
        self.readout = mlp([h, h, 1])
        self.register_buffer("mu", torch.linspace(0.0, r_cut, n_rbf))
        self.gamma = (n_rbf / r_cut) ** 2

    def forward(self, z, pos, edge_index):
        src, dst = edge_index[0], edge_index[1]
        r = (pos[src] - pos[dst]).pow(2).sum(-1, keepdim=True).add(1e-8).sqrt()
        e = torch.exp(-self.gamma * (r - self.mu) ** 2)
        x = self.embed(z)
        for layer in self.layers:
            x = layer(x, src, dst, e)
        return self.readout(x).sum(dim=0)


class TabularNet(nn.Module):
    def __init__(self, cards=(7, 12, 31, 100), n_num=6, h=64, n_out=3, p=0.1):
        super().__init__()
        # rule of thumb from fastai: d = min(50, (card + 1) // 2)
        dims = [min(50, (c + 1) // 2) for c in cards]
        self.embeds = nn.ModuleList([nn.Embedding(c, d) for c, d in zip(cards, dims)])
        self.emb_drop = nn.Dropout(p)
        self.bn_num = nn.BatchNorm1d(n_num)
        layers, d = [], sum(dims) + n_num
        for k in (h, h // 2):
            layers += [nn.Linear(d, k), nn.ReLU(), nn.BatchNorm1d(k), nn.Dropout(p)]
            d = k
        self.net = nn.Sequential(*layers, nn.Linear(d, n_out))

    def forward(self, x_cat, x_num):
        x = [emb(x_cat[:, i]) for i, emb in enumerate(self.embeds)]
        x = self.emb_drop(torch.cat(x, dim=1))
        return self.net(torch.cat([x, self.bn_num(x_num)], dim=1))


class TNet(nn.Module):
    """Regresses a k x k alignment matrix, initialised at the identity."""

    def __init__(self, k=3, h=32):
        super().__init__()
        self.k = k
        self.conv = nn.Sequential(nn.Conv1d(k, h, 1), nn.BatchNorm1d(h), nn.ReLU())
        self.fc = nn.Linear(h, k * k)
        nn.init.normal_(self.fc.weight, std=1e-2)
        self.fc.bias.data = torch.eye(k).flatten()

    def forward(self, x):
        g = self.conv(x).max(dim=2)[0]
        return self.fc(g).view(-1, self.k, self.k)


class PointNet(nn.Module):
    """rho( max_i phi(T x_i) ) over the valid points of each cloud."""

    def __init__(self, n_classes=10, h=64):
        super().__init__()
        self.tnet = TNet(3)
        self.conv1, self.bn1 = nn.Conv1d(3, h, 1), nn.BatchNorm1d(h)
        self.conv2, self.bn2 = nn.Conv1d(h, 2 * h, 1), nn.BatchNorm1d(2 * h)
        self.rho = nn.Sequential(nn.Linear(2 * h, h), nn.ReLU(), nn.Dropout(0.3), nn.Linear(h, n_classes))

    def forward(self, x, mask):
        x = x.transpose(1, 2)  # (B, 3, N)
        x = self.tnet(x) @ x
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x = x.masked_fill(~mask.unsqueeze(1), -1e9).max(dim=2)[0]
        return F.log_softmax(self.rho(x), dim=-1)


def rk4_step(f, t, y, dt):
    k1 = f(t, y)
    k2 = f(t + dt / 2, y + dt / 2 * k1)
    k3 = f(t + dt / 2, y + dt / 2 * k2)
    k4 = f(t + dt, y + dt * k3)
    return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class ODEFunc(nn.Module):
    """dy/dt = f(t, y); time enters as an extra input channel."""

    def __init__(self, d, h):
        super().__init__()
        self.net = mlp([d + 1, h, h, d], act=nn.Tanh)

    def forward(self, t, y):
        tt = torch.full_like(y[:, :1], t)
        return self.net(torch.cat([y, tt], dim=1))


class NeuralODE(nn.Module):
    def __init__(self, d_in=4, d=8, h=32, d_out=2, T=1.0, n_steps=5):
        super().__init__()
        self.enc = nn.Linear(d_in, d)
        self.f = ODEFunc(d, h)
        self.dec = nn.Linear(d, d_out)
        self.n_steps = n_steps
        self.dt = T / n_steps

    def forward(self, x):
        y = self.enc(x)
        traj = [y]
        for n in range(self.n_steps):
            y = rk4_step(self.f, n * self.dt, y, self.dt)
            traj.append(y)
        return self.dec(torch.stack(traj, dim=1))  # (B, n_steps + 1, d_out)


class SineLayer(nn.Module):
    def __init__(self, d_in, d_out, omega=30.0, first=False):
        super().__init__()
        self.omega = omega
        self.linear = nn.Linear(d_in, d_out)
        c = 1 / d_in if first else math.sqrt(6 / d_in) / omega
        nn.init.uniform_(self.linear.weight, -c, c)

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


class FourierSiren(nn.Module):
    def __init__(self, d=2, m=16, h=48, L=3, d_out=3, sigma=2.0):
        super().__init__()
        self.register_buffer("B", sigma * torch.randn(d, m))
        self.first = SineLayer(2 * m, h, omega=10.0, first=True)
        self.hidden = nn.Sequential(*[SineLayer(h, h) for _ in range(L)])
        self.final = nn.Linear(h, d_out)

    def forward(self, x):
        v = 2 * math.pi * x @ self.B
        gamma = torch.cat([torch.sin(v), torch.cos(v)], dim=-1)
        return torch.sigmoid(self.final(self.hidden(self.first(gamma))))


def ortho(net, last_gain):
    """Orthogonal init, gain sqrt(2) except for the output layer."""
    lins = [m for m in net if isinstance(m, nn.Linear)]
    for m in lins:
        nn.init.orthogonal_(m.weight, last_gain if m is lins[-1] else math.sqrt(2))
        nn.init.zeros_(m.bias)
    return net


class ActorCritic(nn.Module):
    """PPO with a diagonal Gaussian policy; returns log pi(a|s) and V(s)."""

    def __init__(self, d_obs=17, d_act=6, h=64):
        super().__init__()
        self.critic = ortho(mlp([d_obs, h, h, 1], act=nn.Tanh), 1.0)
        self.actor_mean = ortho(mlp([d_obs, h, h, d_act], act=nn.Tanh), 0.01)
        self.log_std = nn.Parameter(-0.5 * torch.ones(1, d_act))

    def forward(self, obs, act):
        mu = self.actor_mean(obs)
        log_std = torch.clamp(self.log_std, -5.0, 2.0).expand_as(mu)
        z = (act - mu) / log_std.exp()
        logp = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
        return logp.sum(dim=-1), self.critic(obs).squeeze(-1)


class MDN(nn.Module):
    """Bishop (1994): p(y|x) = sum_k pi_k(x) N(y; mu_k(x), sigma_k(x)^2 I)"""

    def __init__(self, d_in=3, d_out=2, K=5, h=40, eps=1e-4):
        super().__init__()
        self.K, self.d_out, self.eps = K, d_out, eps
        self.trunk = mlp([d_in, h, h], act=nn.ELU, last=True)
        self.pi = nn.Linear(h, K)
        self.mu = nn.Linear(h, K * d_out)
        self.sigma = nn.Linear(h, K)

    def forward(self, x):
        h = self.trunk(x)
        pi = F.softmax(self.pi(h), dim=-1)
        mu = self.mu(h).reshape(-1, self.K, self.d_out)
        sigma = F.softplus(self.sigma(h)) + self.eps
        # law of total variance
        mean = torch.einsum("bk,bkd->bd", pi, mu)
        dev = mu - mean.unsqueeze(1)
        var = torch.einsum("bk,bkd->bd", pi, sigma.unsqueeze(-1) ** 2 + dev**2)
        return pi, mu, sigma, mean, var


@dataclass
class TwoTowerConfig:
    n_users: int = 200
    n_items: int = 500
    n_genres: int = 18
    d: int = 24
    h: int = 48
    tau: float = 0.1


class TwoTower(nn.Module):
    """score(u, i) = <f(u), g(i)> / tau + b_u + b_i + b"""

    def __init__(self, cfg: TwoTowerConfig):
        super().__init__()
        self.tau = cfg.tau
        self.P = nn.Embedding(cfg.n_users, cfg.d)
        self.Q = nn.Embedding(cfg.n_items, cfg.d)
        self.genre = nn.Linear(cfg.n_genres, cfg.d, bias=False)
        self.b_u = nn.Embedding(cfg.n_users, 1)
        self.b_i = nn.Embedding(cfg.n_items, 1)
        self.b = nn.Parameter(torch.zeros(1))
        self.f = mlp([cfg.d, cfg.h, cfg.d], act=nn.ReLU)
        self.g = mlp([2 * cfg.d, cfg.h, cfg.d], act=nn.ReLU)
        for emb in (self.P, self.Q, self.b_u, self.b_i):
            nn.init.normal_(emb.weight, std=0.05)

    def forward(self, u: Tensor, i: Tensor, genres: Tensor) -> Tensor:
        # u (B,), i (B, C) candidates, genres (B, C, n_genres) multi-hot
        w = genres / genres.sum(-1, keepdim=True).clamp(min=1.0)
        p = F.normalize(self.f(self.P(u)), dim=-1)
        q = F.normalize(self.g(torch.cat([self.Q(i), self.genre(w)], -1)), dim=-1)
        s = (p.unsqueeze(1) * q).sum(-1) / self.tau
        return s + self.b_u(u) + self.b_i(i).squeeze(-1) + self.b


class PINN(nn.Module):
    def __init__(self, lb, ub, h=32, L=4):
        super().__init__()
        lb, ub = torch.tensor(lb), torch.tensor(ub)
        self.register_buffer("mean", (lb + ub) / 2)
        self.register_buffer("std", (ub - lb) / math.sqrt(12))  # uniform samples
        # modified MLP (Wang et al. 2021): two gates shared by all hidden layers
        self.U, self.V = nn.Linear(2, h), nn.Linear(2, h)
        dims = [2] + [h] * L
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        self.out = nn.Linear(h, 1)
        self.a = nn.Parameter(torch.ones(L))  # adaptive activation slopes
        for m in [self.U, self.V, self.out, *self.layers]:
            nn.init.xavier_normal_(m.weight)
            nn.init.zeros_(m.bias)

    def forward(self, t, x):
        s = (torch.cat([t, x], dim=1) - self.mean) / self.std
        U, V = torch.tanh(self.U(s)), torch.tanh(self.V(s))
        H = s
        for i, lin in enumerate(self.layers):
            Z = torch.tanh(self.a[i] * lin(H))
            H = (1 - Z) * U + Z * V
        # ansatz: u(0, x) = sin(pi x), u(t, +-1) = 0
        return torch.sin(math.pi * x) + t * (1 - x**2) * self.out(H)


class GRUController(nn.Module):
    """Tracks a reference r_t on the learned linear plant y' = A y + B u."""

    def __init__(self, d_y=4, d_u=2, h=32, T=6, u_max=2.0):
        super().__init__()
        self.T, self.u_max = T, u_max
        self.inp = nn.Linear(2 * d_y, h)
        self.cell = nn.GRUCell(h, h)
        self.head = nn.Linear(h, d_u)
        self.h0 = nn.Parameter(torch.zeros(1, h))
        self.A = nn.Parameter(0.95 * torch.eye(d_y))
        self.B = nn.Parameter(0.1 * torch.randn(d_y, d_u))

    def forward(self, y, ref):
        h = self.h0.expand(y.size(0), -1)
        ys, us = [], []
        for t in range(self.T):
            e = F.relu(self.inp(torch.cat([y, ref[:, t] - y], dim=-1)))
            h = self.cell(e, h)
            u = self.u_max * torch.tanh(self.head(h))
            y = y @ self.A.T + u @ self.B.T
            ys.append(y)
            us.append(u)
        return torch.stack(ys, dim=1), torch.stack(us, dim=1), h


def networks() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    randn, randint = torch.randn, torch.randint
    N, B = 9, 4
    i, j = torch.meshgrid(torch.arange(N), torch.arange(N), indexing="ij")
    edges = torch.stack([i[i != j], j[i != j]])[:, ::2]
    cats = torch.stack([randint(0, c, (B,)) for c in (7, 12, 31, 100)], dim=1)
    mask = torch.arange(20)[None, :] < torch.tensor([20, 15, 8, 12])[:, None]
    u, items = randint(0, 200, (B,)), randint(0, 500, (B, 5))
    genres = (torch.rand(B, 5, 18) < 0.2).float()
    t, x = torch.rand(16, 1), 2 * torch.rand(16, 1) - 1
    nets = {
        "mpnn": (MPNN(), (randint(0, 10, (N,)), randn(N, 3), edges)),
        "tabular_net": (TabularNet(), (cats, randn(B, 6))),
        "point_net": (PointNet(), (randn(B, 20, 3), mask)),
        "neural_ode": (NeuralODE(), (randn(B, 4),)),
        "fourier_siren": (FourierSiren(), (2 * torch.rand(32, 2) - 1,)),
        "actor_critic": (ActorCritic(), (randn(B, 17), randn(B, 6))),
        "mdn": (MDN(), (randn(B, 3),)),
        "two_tower": (TwoTower(TwoTowerConfig()), (u, items, genres)),
        "pinn": (PINN(lb=[0.0, -1.0], ub=[1.0, 1.0]), (t, x)),
        "gru_controller": (GRUController(), (randn(B, 4), randn(B, 6, 4))),
    }
    return {k: (m.eval(), args) for k, (m, args) in nets.items()}
