"""Continues texts with a language model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from onnxgen.errors import OnnxgenError, counted
from onnxgen.surgery.ports import evaluating
from onnxgen.training.data.text.tokenizer import open_tokenizer
from onnxgen.training.generation import causal_lm
from onnxgen.training.runs.answers import Answer

if TYPE_CHECKING:
    from onnxgen.training.generation.wrapper import CausalLM

NEW = 50  # tokens, by default
TEXT = "text"  # the name of the answer
BEHIND = -1  # fills up the ids of a text that ends before


def continued(
    model: nn.Module,
    tokenizer: Path,
    texts: Sequence[str],
    *,
    new: int = NEW,
    temperature: float | None = None,
    seed: int = 0,
    batch_size: int = 1,
) -> list[Answer]:
    """Return the continuation of each text.

    Texts of one length are computed together, so no padding moves their positions.

    Args:
        model: on its device.
        new: the most tokens of a continuation.
        temperature: None takes the most probable token each time. Else tokens are drawn, with `seed`.

    Returns:
        answers whose `label` is the text, and whose `value` has its token ids, int64 [new], with -1 behind the end.

    Raises:
        OnnxgenError: see `causal_lm`; or a text has no token, or too many for the network's positions.
    """
    library = open_tokenizer(tokenizer).tokenizer
    prompts = [_prompt(library, text, number) for number, text in enumerate(texts)]
    answers: dict[int, Answer] = {}
    with evaluating(model), torch.random.fork_rng():
        lm = causal_lm(model, tokenizer)
        torch.manual_seed(seed)
        for group in _groups(prompts, batch_size):
            for i, row in zip(group, generated(lm, [prompts[i] for i in group], new, temperature)):
                value = np.full(new, BEHIND, dtype=np.int64)
                value[: len(row)] = row
                answers[i] = Answer(_said(library, prompts[i], row), {}, value)
    return [answers[i] for i in range(len(texts))]


def generated(
    lm: CausalLM, prompts: Sequence[Sequence[int]], new: int, temperature: float | None = None
) -> list[list[int]]:
    """Return the token ids that go on from prompts of one length, each up to its end token, which is left out."""
    ids = torch.tensor(prompts, device=lm.device)
    how: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
    how |= {"do_sample": temperature is not None, "num_beams": 1, "max_new_tokens": new}
    try:
        whole = lm.generate(ids, attention_mask=torch.ones_like(ids), **how)
    except IndexError as error:
        what = f"the network has no positions for {counted(ids.shape[1], 'token')} and {new} new ones ({error})"
        raise OnnxgenError(what, help="shorter texts, or fewer new tokens") from None
    end = lm.generation_config.eos_token_id
    ends = set(end if isinstance(end, list) else [end])
    rows: list[list[int]] = whole[:, ids.shape[1] :].tolist()
    return [row[: next((i for i, token in enumerate(row) if token in ends), len(row))] for row in rows]


def _prompt(library: Any, text: str, number: int) -> list[int]:
    """Return the token ids of a text, without special tokens that the tokenizer puts behind it."""
    encoding = library.encode(text)
    if all(encoding.special_tokens_mask):
        raise OnnxgenError(f"text {number} has no token", help="give a text to continue")
    last = max(i for i, special in enumerate(encoding.special_tokens_mask) if not special)
    return list(encoding.ids[: last + 1])


def _groups(prompts: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Return the numbers of prompts of one length, at most `size` together."""
    by_length: dict[int, list[int]] = {}
    for i, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(i)
    return [group[i : i + size] for group in by_length.values() for i in range(0, len(group), size)]


def _said(library: Any, prompt: Sequence[int], row: Sequence[int]) -> str:
    """Return new tokens as text. Decoded behind their prompt, they keep the space before them."""
    before, whole = library.decode(prompt), library.decode([*prompt, *row])
    return whole[len(before) :] if whole.startswith(before) else str(library.decode(row))
