"""Networks that are built on the meta device only to be given weights need no first ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.overrides import TorchFunctionMode


class SkipInit(TorchFunctionMode):
    """While it is entered, what `torch.nn.init` does to tensors without data is left out.

    `normal_`, which `nn.Embedding` starts with, is written in Python for the meta device, and imports torch's compiler:
    a second of every process that loads a transformer.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            tensor = given["tensor"] if "tensor" in given else args[0]
            if tensor.is_meta:
                return tensor
        return func(*args, **given)
