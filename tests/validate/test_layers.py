"""What the checker knows of torch's layers and functions, held to the signatures that torch has."""

from __future__ import annotations

import inspect
from operator import attrgetter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onnxgen.code.torch_api import DEFAULTS, LAYER_OF, SIGNATURES

PLACES = {"nn": nn, "F": F, "torch": torch}


def signature(name: str) -> dict[str, object] | None:
    """The defaults of a layer or function by its arguments in order; None where that is not written in Python."""
    place, _, own = name.partition(".")
    found = attrgetter(own)(PLACES[place])
    found = found.__init__ if inspect.isclass(found) else getattr(found, "__wrapped__", found)
    try:
        given = inspect.signature(found).parameters
    except ValueError:
        return None
    return None if "args" in given else {key: p.default for key, p in given.items() if key != "self"}


@pytest.mark.parametrize("name", [name for name in sorted(DEFAULTS) if signature(name)])
def test_defaults(name: str) -> None:
    known = signature(name)
    assert known is not None
    functions = {F.relu: "relu"}  # torch's transformers take the name of one, too
    usual = {k: functions.get(v, v) if callable(v) else v for k, v in known.items()}
    wrong = {
        k: v for k, v in DEFAULTS[name].items() if k not in usual or usual[k] != v or type(usual[k]) is not type(v)
    }
    assert not wrong


@pytest.mark.parametrize("function", LAYER_OF)
def test_a_layer_is_its_function(function: str) -> None:
    layer = LAYER_OF[function]
    own = SIGNATURES[layer]
    made = signature(layer)
    if made is None:  # of no arguments at all
        assert not own
        return
    assert tuple(made)[: len(own)] == own
    called = signature(function)
    if called is None:
        return
    order = SIGNATURES.get(function, ("input", *own))
    assert tuple(called)[1 : len(order)] == order[1:]
    assert all(made[name] == called[name] for name in own if name in called and called[name] is not inspect._empty)


@pytest.mark.parametrize("function", LAYER_OF)
def test_a_layer_computes_what_its_function_does(function: str) -> None:
    """Who writes a layer for a function and who checks that share the table: torch says that they are one."""
    options = {"output_size": 2, "kernel_size": 2, "dim": 1, "upscale_factor": 2, "scale_factor": 2}
    layer = LAYER_OF[function]
    given = {key: options[key] for key in SIGNATURES[layer] if key in options}
    rank = int(function[-2]) if function[-2].isdigit() and function.endswith("d") else 2
    x = torch.linspace(-9, 9, 4 * 6**rank).reshape(1, 4, *[6] * rank).sin() * 4
    place, _, name = function.partition(".")
    assert torch.equal(getattr(nn, layer[3:])(**given)(x), getattr(PLACES[place], name)(x, **given))
