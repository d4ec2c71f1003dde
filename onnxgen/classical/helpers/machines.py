"""Support vector machines (ai.onnx.ml), as libsvm and onnxruntime compute them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def radial_kernel(x: Tensor, vectors: Tensor, gamma: float) -> Tensor:
    """Radial basis kernel `exp(-gamma * |x - vector|^2)`, one column per vector."""
    distances = torch.cdist(x, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    return (-gamma * distances.square()).exp()


def pair_scores(kernel: Tensor, coefficients: Tensor, counts: Sequence[int], rho: Tensor) -> Tensor:
    """Score each pair of classes i < j, positive for i, negative for j: [rows, pairs].

    `kernel` and `coefficients` have one column per vector, grouped by class with
    `counts` columns each. Row r of the coefficients is for the r-th opponent of the
    class.
    """
    columns = zip(torch.split(kernel, list(counts), 1), torch.split(coefficients, list(counts), 1))
    parts = [k @ c.T for k, c in columns]
    pairs = [(i, j) for i in range(len(counts)) for j in range(i + 1, len(counts))]
    return torch.stack([parts[i][:, j - 1] + parts[j][:, i] for i, j in pairs], 1) + rho


def pair_winner(scores: Tensor, classes: int) -> Tensor:
    """Return the class that wins most pairs; the first of several."""
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    ahead = torch.tensor([i for i, _ in pairs], device=scores.device)
    behind = torch.tensor([j for _, j in pairs], device=scores.device)
    winners = torch.where(scores > 0, ahead, behind)
    votes = torch.zeros(len(scores), classes, dtype=torch.int64, device=scores.device)
    return votes.scatter_add(1, winners, torch.ones_like(winners)).argmax(1)


def pair_probabilities(scores: Tensor, a: Tensor, b: Tensor, classes: int) -> Tensor:
    """Turn scores of pairs into class probabilities, by Platt's sigmoid for each pair.

    Wu, Lin and Weng's second method, in at most 100 rounds
    (https://www.csie.ntu.edu.tw/~cjlin/papers/svmprob/).
    """
    pairwise = torch.sigmoid(-(scores * a + b)).clamp(1e-7, 1 - 1e-7)
    pairs = iter(pairwise.unbind(1))
    r = [[torch.zeros_like(pairwise[:, 0])] * classes for _ in range(classes)]
    for i in range(classes):
        for j in range(i + 1, classes):
            r[i][j] = next(pairs)
            r[j][i] = 1 - r[i][j]
    beaten = torch.stack([torch.stack(row, 1) for row in r], 1)  # [rows, i, j]: i beats j
    q = torch.diag_embed(beaten.square().sum(1)) - beaten * beaten.transpose(1, 2)
    p = torch.full_like(pairwise[:, :1], 1 / classes).expand(-1, classes)
    for _ in range(100):
        qp = (q @ p.unsqueeze(2)).squeeze(2)
        pqp = (p * qp).sum(1)
        done = (qp - pqp.unsqueeze(1)).abs().amax(1, keepdim=True) < 0.005 / classes
        if bool(done.all()):
            break
        better = p
        for i in range(classes):
            step = (pqp - qp[:, i]) / q[:, i, i]
            better = torch.cat([better[:, :i], better[:, i : i + 1] + step.unsqueeze(1), better[:, i + 1 :]], 1)
            pqp = (pqp + step * (step * q[:, i, i] + 2 * qp[:, i])) / (1 + step).square()
            scale = (1 + step).unsqueeze(1)
            qp = (qp + step.unsqueeze(1) * q[:, i]) / scale
            better = better / scale
        p = torch.where(done, p, better)
    return p
