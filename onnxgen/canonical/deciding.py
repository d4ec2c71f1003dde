"""Follow a module along one path: what its Python asks of the values of tensors is answered in advance."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onnxgen.canonical.rules import NotFollowed
from onnxgen.canonical.undivided import whole

MOST = 8  # questions along a path


class Decisions(TorchFunctionMode):
    """Answers `bool(tensor)` in order, and after the last answer with True. Calls recurrent layers as a whole.

    Attributes:
        answers: given so far, or None if nothing may be asked.
        asked: the tensors of the questions.
    """

    def __init__(self, answers: Sequence[bool] | None) -> None:
        super().__init__()
        self.answers, self.asked = None if answers is None else [*answers], list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not Tensor.__bool__ or getattr(args[0], "constant", None) is not None:
            return whole(func, args)(*args, **(kwargs or {}))
        if self.answers is None:
            raise NotFollowed("it decides by the values of a tensor")
        self.asked.append(args[0])
        if len(self.asked) > MOST:
            raise NotFollowed(f"it decides by the values of tensors more than {MOST} times")
        if len(self.asked) > len(self.answers):
            self.answers.append(True)
        return self.answers[len(self.asked) - 1]


@contextmanager
def decided(module: nn.Module, answers: Sequence[bool] | None) -> Iterator[Decisions]:
    """Let a module decide by these answers for the block. It also returns what it asked, if it asked."""
    decisions, forward, own = Decisions(answers), module.forward, vars(module).get("forward")

    @functools.wraps(forward)
    def followed(*args: Any, **kwargs: Any) -> Any:
        decisions.asked.clear()
        with decisions:
            outputs = forward(*args, **kwargs)
        return (outputs, tuple(decisions.asked)) if decisions.asked else outputs

    vars(module)["forward"] = followed
    try:
        yield decisions
    finally:
        del vars(module)["forward"]
        if own is not None:  # a wrapper around the class's
            vars(module)["forward"] = own


def following(answers: Sequence[bool]) -> list[bool] | None:
    """Return the answers of the next path, or None after the last one."""
    kept = [*answers]
    while kept and not kept[-1]:
        kept.pop()
    return [*kept[:-1], False] if kept else None
