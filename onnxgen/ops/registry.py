"""Which function lowers which operator, from which opset on.

An operator is one small function whose parameters are those of its ONNX schema: inputs first, then, keyword-only,
attributes. A second function for an operator exists only where its meaning changed; `find` takes the newest one that is
not newer than the model's opset.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnx_ir as ir

Lowering = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Operator:
    """One registered function.

    Attributes:
        name, domain: the operator (`domain` is "" for ai.onnx).
        since: first opset whose meaning this function has.
        function: called as `function(b, *inputs, **attributes)`, see `ops.builder.Builder`.
        renames: schema names of other opsets that mean one of the function's parameters.
        takes: whether the function can take a node; others are replaced by the standard's function body.
        differentiable: False where no gradient flows through it, whatever the dtype.
    """

    name: str
    domain: str
    since: int
    function: Lowering
    renames: Mapping[str, str] = field(default_factory=dict)
    takes: Callable[[ir.Node], bool] = lambda node: True

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The function's parameters by name, without the builder."""
        found = dict(inspect.signature(self.function).parameters)
        found.pop(next(iter(found)))
        return found


_REGISTRY: dict[tuple[str, str], list[Operator]] = {}


def op(
    *names: str,
    since: int = 1,
    domain: str = "",
    renames: Mapping[str, str] | None = None,
    takes: Callable[[ir.Node], bool] | None = None,
) -> Callable[[Lowering], Lowering]:
    """Register a function as the meaning of one or more operators from opset `since` on."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            register_function(name, function, since=since, domain=domain, renames=renames, takes=takes)
        return function

    return register


def register_function(
    name: str,
    function: Lowering,
    *,
    since: int = 1,
    domain: str = "",
    renames: Mapping[str, str] | None = None,
    takes: Callable[[ir.Node], bool] | None = None,
) -> None:
    """What `op` does, for operators that come from a table."""
    versions = _REGISTRY.setdefault((domain, name), [])
    if any(v.since == since for v in versions):
        raise ValueError(f"{name} is registered twice from opset {since} on")
    versions.append(Operator(name, domain, since, function, renames or {}, takes or (lambda node: True)))
    versions.sort(key=lambda v: v.since)


def _import_families() -> None:
    package = importlib.import_module("onnxgen.ops")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"onnxgen.ops.{module.name}")


def operators() -> dict[tuple[str, str], list[Operator]]:
    """Every registered operator, by (domain, name), oldest meaning first."""
    _import_families()
    return dict(_REGISTRY)


def find(domain: str, name: str, opset: int) -> Operator | None:
    """The function for an operator as opset `opset` means it, or None."""
    if (domain, name) not in _REGISTRY:
        _import_families()
    found = None
    for version in _REGISTRY.get((domain, name), []):
        if version.since <= opset:
            found = version
    return found
