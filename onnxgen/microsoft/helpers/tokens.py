"""Token ids in decoders of onnxruntime: repeated and hashed n-grams, drafts, alignments."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def block_repeated_ngrams(ids: Tensor, scores: Tensor, size: int) -> Tensor:
    """Set scores of tokens that would repeat an n-gram of `size` tokens to -inf.

    Args:
        ids: the tokens so far, [batch, length], int64.
        scores: [batch, vocabulary].
    """
    if ids.shape[1] < size:
        return scores
    runs = ids.unfold(1, size, 1)
    repeats = (runs[..., :-1] == ids[:, None, ids.shape[1] - size + 1 :]).all(-1)
    last = torch.where(repeats, runs[..., -1], 0)
    counts = torch.zeros_like(scores).scatter_add(1, last, repeats.to(scores.dtype))
    return scores.masked_fill(counts > 0, float("-inf"))


def find_run(tokens: list[int], run: list[int], start: int = 0) -> int:
    """Find the first occurrence of a run of tokens from `start` on; -1 if none."""
    places = range(start, len(tokens) - len(run) + 1)
    return next((i for i in places if tokens[i : i + len(run)] == run), -1)


def merge_draft(
    source: Tensor, current: Tensor, start: Tensor, predicted: Tensor | None = None, least: int = 1, most: int = 3
) -> tuple[Tensor, Tensor]:
    """One step of aggressive decoding.

    Predicted tokens are accepted as long as they equal the source, and one more.

    Args:
        source, current: token ids, int64 vectors.
        start: a single number, the position in the source whose tokens are expected
            next.
        predicted: one id for each expected token, and one more. None: no tokens are
            accepted.
        least, most: the length of a run at the end that is searched in the source.

    Returns:
        The tokens now, and the position after the run in the source that they end with,
        in the shape of `start`; -1 if the source does not have the run exactly once.

    Raises:
        ValueError: `start` is outside the source, or `predicted` has another length.
    """
    given, made, first = source.tolist(), current.tolist(), int(start.item())
    if predicted is not None:
        guesses, foretold = predicted.tolist(), given[first:]
        if not 0 <= first <= len(given) or len(guesses) != len(foretold) + 1:
            raise ValueError(f"{len(guesses)} predicted tokens, from {first} on of {len(given)}")
        agreed = next((i for i, token in enumerate(foretold) if guesses[i] != token), len(foretold))
        made += guesses[: agreed + 1]
    found = -1
    for size in range(least, min(most, len(made)) + 1):
        run = made[len(made) - size :]
        place = find_run(given, run)
        if place < 0:
            break
        if place + size >= len(given) or find_run(given, run, place + 1) < 0:
            found = place + size
            break
    return current.new_tensor(made), torch.full_like(start, found)


def dynamic_time_warping(costs: Tensor) -> Tensor:
    """Dynamic time warping: return the path of least cost through a matrix.

    The costs are [rows, columns] or [1, rows, columns]. Of equal paths, the one whose
    last step is along a row is taken. Returns the rows and columns of the path,
    [2, steps], int32.
    """
    costs = costs.detach().reshape(costs.shape[-2:])
    rows, columns = costs.shape
    totals = costs.new_full((rows + 1, columns + 1), float("inf"))
    totals[0, 0] = 0
    steps = torch.zeros(rows + 1, columns + 1, dtype=torch.int64)
    for diagonal in range(2, rows + columns + 1):
        i = torch.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, down, along = totals[i - 1, j - 1], totals[i - 1, j], totals[i, j - 1]
        step = torch.where((both < down) & (both < along), 0, torch.where((down < both) & (down < along), 1, 2))
        before = torch.where(step == 0, both, torch.where(step == 1, down, along))
        totals[i, j], steps[i, j] = costs[i - 1, j - 1] + before, step.cpu()
    taken, path, row, column = steps.tolist(), [], rows, columns
    while row > 0 and column > 0:
        path.append((row - 1, column - 1))
        step_here = taken[row][column]
        row, column = row - (step_here != 2), column - (step_here != 1)
    return torch.tensor(path[::-1], dtype=torch.int32, device=costs.device).reshape(-1, 2).T


# ---- hashes ----------------------------------------------------------------------------------------------------------


def murmur_step(h: Tensor, k: Tensor) -> Tensor:
    """Mix four more bytes into a MurmurHash3_x86_32 state.

    The state has 32-bit numbers in int64, whose products wrap around.
    """
    k = k * 0xCC9E2D51 & 0xFFFFFFFF
    h = h ^ (k << 15 | k >> 17) * 0x1B873593 & 0xFFFFFFFF
    return ((h << 13 | h >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF


def murmur_end(h: Tensor) -> Tensor:
    """Finish a MurmurHash3_x86_32: the final mix, as 32 bits in int64."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ h >> shift) * factor & 0xFFFFFFFF
    return h


def murmur_hash(x: Tensor, seed: int, dtype: torch.dtype) -> Tensor:
    """MurmurHash3_x86_32 of each number of 4 or 8 bytes; (u)int32, of x's shape."""
    words = x.flatten().contiguous().view(torch.int32).reshape(-1, x.element_size() // 4).long() & 0xFFFFFFFF
    h = torch.full_like(words[:, 0], seed)
    for k in words.unbind(1):
        h = murmur_step(h, k)
    return murmur_end(h ^ x.element_size()).to(torch.int32).view(dtype).reshape(x.shape)


def murmur_text_hash(x: np.ndarray, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """MurmurHash3_x86_32 of the UTF-8 of each string; int32 or uint32, of x's shape."""
    made = []
    for text in x.reshape(-1).tolist():
        data, h = text.encode(), torch.tensor(seed)
        whole = len(data) - len(data) % 4
        for i in range(0, whole, 4):
            h = murmur_step(h, torch.tensor(int.from_bytes(data[i : i + 4], "little")))
        k = torch.tensor(int.from_bytes(data[whole:], "little")) * 0xCC9E2D51 & 0xFFFFFFFF
        h = h ^ (k << 15 | k >> 17) * 0x1B873593 & 0xFFFFFFFF
        made.append(int(murmur_end(h ^ len(data))))
    return torch.tensor(made, device=device).to(torch.int32).view(dtype).reshape(x.shape)


def ngram_hashes(
    windows: Tensor,
    multipliers: Tensor,
    sizes: Tensor,
    fill: Tensor | int,
    offsets: Tensor | None = None,
    end: Tensor | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """Hash the n-grams of 2, 3, ... n tokens that end at each token, several times.

    Args:
        windows: each token after the n - 1 tokens before it, [..., n], int32 or int64,
            whose products wrap around.
        multipliers: [n] or more, that of the last token first.
        sizes: of the table of each hash, [hashes], those of 2 tokens first.
        fill: stands for missing tokens.
        offsets: [hashes], added to the hashes.
        end: a token after which n-grams begin anew.
        segments: the segment of each token of `windows`, at whose borders n-grams end.

    Returns:
        [..., hashes], of the type of `windows`.
    """
    latest_first = windows.flip(-1)
    breaks = torch.zeros_like(latest_first, dtype=torch.bool)
    if end is not None:
        breaks[..., 1:] |= latest_first[..., 1:] == end
    if segments is not None:
        breaks[..., 1:] |= segments.diff(dim=-1).flip(-1) != 0
    products = torch.where(breaks.cumsum(-1) > 0, fill, latest_first) * multipliers[: windows.shape[-1]]
    mixed, mixes = products[..., 0], []
    for product in products[..., 1:].unbind(-1):
        mixed = mixed ^ product
        mixes.append(mixed)
    hashes = torch.stack(mixes, -1).repeat_interleave(sizes.shape[0] // len(mixes), -1) % sizes
    return hashes if offsets is None else hashes + offsets


def packed_windows(x: Tensor, starts: Tensor, past: Tensor) -> Tensor:
    """Return each number of x with the numbers before it in its sequence.

    Args:
        x: [tokens], one sequence after the other.
        starts: the start of each sequence, and the end of the last, [sequences + 1].
        past: the numbers before each sequence, [sequences, length].

    Returns:
        [tokens, length + 1].
    """
    length = past.shape[1]
    numbers = torch.arange(x.shape[0], device=x.device).unsqueeze(-1)
    rows = torch.searchsorted(starts[1:].long(), numbers, right=True)
    places = numbers - torch.arange(length, -1, -1, device=x.device)
    early = places - starts[rows]
    earlier = past[rows, early.clamp(max=-1) + length]
    return torch.where(early < 0, earlier, x[places.clamp(min=0)])


def leading_states(windows: Tensor, starts: Tensor, counts: Tensor, capacity: int, fill: int) -> Tensor:
    """Return the states after the first tokens of sequences: all but the oldest token.

    Args:
        windows: [tokens, n], from `packed_windows`.
        counts: how many of its tokens each sequence asks for, [sequences].
        capacity: how many there is room for; `fill` stands for missing ones.

    Returns:
        [sequences, capacity, n - 1].
    """
    numbers = torch.arange(capacity, device=windows.device)
    kept = numbers < torch.minimum(counts, starts.diff()).unsqueeze(-1)
    states = windows[(starts[:-1, None] + numbers).clamp(max=windows.shape[0] - 1), 1:]
    return torch.where(kept.unsqueeze(-1), states, fill)
