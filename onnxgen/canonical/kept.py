"""What a module keeps beside its parameters and buffers, compared before and after a capture.

A capture runs the Python of a module once. If that changes a list, an attribute or a default, the next call may compute
something else: such a module is not followed.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.canonical.rules import NotFollowed

PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size)
WHOLE = (types.ModuleType, types.BuiltinFunctionType, type, Tensor)  # not looked into


class Kept:
    """The state of a module, and of the file that it comes from."""

    def __init__(self, module: nn.Module, space: Mapping[str, Any]) -> None:
        self.file = space.get("__file__")
        self.name = space.get("__name__")
        self.roots = {"the module": module, **{k: v for k, v in space.items() if not k.startswith("__")}}
        self.before = list(self._found())

    def need_same(self) -> None:
        """Raises `NotFollowed` if anything has changed.

        `torch.export` puts back copies of a module's own lists: so the lists that there were are looked into.
        """
        for path, holder, before in self.before:
            after = dict(self._inside(holder))
            for name in [*before, *after]:
                one, other = before.get(name, ...), after.get(name, ...)
                known = isinstance(holder, nn.Module) and not isinstance(one, PLAIN)
                if one is not other and not known and (type(one) is not type(other) or repr(one) != repr(other)):
                    raise NotFollowed(f"it changes what it keeps from call to call: {path}{name}")

    def _found(self) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Yield all that can be reached and holds something: where it is, itself, and what it holds."""
        done: set[int] = set()
        todo = list(self.roots.items())
        while todo:
            path, value = todo.pop()
            if id(value) in done or (isinstance(value, (*PLAIN, *WHOLE)) and not self._is_own_class(value)):
                continue
            done.add(id(value))
            if hasattr(value, "__next__"):
                raise NotFollowed(f"it keeps an iterator: {path}")
            inside = dict(self._inside(value))
            yield path, value, inside
            todo += [(f"{path}{name}", part) for name, part in inside.items()]

    def _is_own_class(self, value: Any) -> bool:
        return isinstance(value, type) and value.__module__ == self.name

    def _inside(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield what an object holds."""
        if isinstance(value, Mapping):
            yield from ((f"[{key!r}]", part) for key, part in list(value.items()))
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            yield from ((f"[{number}]", part) for number, part in enumerate(list(value)))
        elif isinstance(value, types.FunctionType):
            if value.__code__.co_filename == self.file:
                yield ".__defaults__", value.__defaults__
                yield ".__kwdefaults__", value.__kwdefaults__
                cells = [cell for cell in value.__closure__ or () if cell is not None]
                yield from ((f".<closure {n}>", cell.cell_contents) for n, cell in enumerate(cells) if _is_set(cell))
        elif isinstance(value, (classmethod, staticmethod, types.MethodType)):
            yield ".__func__", value.__func__
        elif isinstance(value, type):
            yield from ((f".{k}", v) for k, v in list(vars(value).items()) if not k.startswith("__"))
        elif isinstance(value, nn.Module) or type(value).__module__ == self.name:
            yield from ((f".{name}", part) for name, part in list(vars(value).items()))


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not ...
    except ValueError:
        return False
