"""Find which modules hold a tensor: paths of modules, parameters and buffers, and messages that list similar paths."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from onnxgen.common.names import MAX_LISTED_PATHS, matches
from onnxgen.errors import OnnxgenError, Problem

NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class Owner:
    """One place where a tensor is registered: `getattr(module, name)`, by its path in the model."""

    module: nn.Module
    name: str
    path: str

    @property
    def home(self) -> str:
        """Return the path of the module."""
        return self.path.rpartition(".")[0]


def owners(model: nn.Module) -> dict[int, list[Owner]]:
    """Return the owners of each parameter and buffer, by `id`. A module that is registered twice counts once."""
    found: dict[int, list[Owner]] = defaultdict(list)
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if isinstance(tensor, Tensor):
                found[id(tensor)].append(Owner(module, name, f"{path}.{name}" if path else name))
    return found


def is_below(path: str, patterns: Iterable[str]) -> bool:
    """Return True if a pattern matches a path or one of its parents ("" is the model itself)."""
    parts = tuple(path.split("."))
    return any(matches(pattern, parts[:count]) for pattern in patterns for count in range(1, len(parts) + 1))


def check_patterns(model: nn.Module, patterns: Iterable[str]) -> None:
    """Check that every pattern matches a module or a parameter.

    Raises:
        OnnxgenError: a pattern matches nothing; the error lists paths similar to each.
    """
    modules = [path for path, _ in model.named_modules(remove_duplicate=False) if path]
    paths = [*modules, *(path for path, _ in model.named_parameters(remove_duplicate=False))]
    split = [tuple(path.split(".")) for path in paths]
    wrong = [p for p in patterns if not any(matches(p, path) for path in split)]
    if wrong:
        raise OnnxgenError(*(Problem(f"no module or parameter is called {p!r}", help=near(p, paths)) for p in wrong))


def near(text: str, paths: list[str]) -> str:
    """Return a sentence that lists the paths most similar to a text; of a name the model's own parts, too."""
    first = [path for path in paths if path and "." not in path]
    alike = difflib.get_close_matches(text, paths, MAX_LISTED_PATHS, 0.6) if "." in text or not first else []
    alike = alike or difflib.get_close_matches(text, first, MAX_LISTED_PATHS, 0.6)
    found = [*dict.fromkeys([*alike, *first])] if "." not in text or not alike else alike
    some = found[:MAX_LISTED_PATHS]
    return f"there are {', '.join(some)}{', ...' if len(paths) > len(some) else ''}" if some else "there are none"
