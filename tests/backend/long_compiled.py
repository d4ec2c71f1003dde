"""ONNX's own backend tests once more, under `torch.compile(fullgraph=True, backend="aot_eager")`.

Dims that a model leaves open are dynamic. What no graph can hold is listed with its reason in `python_bound.txt`;
a run prints it at its end. The list is strict: torch must refuse what is on it, in its own words, and take the rest.

Where names of inputs follow a test's name, the values of these inputs decide what the graph is. Stored in the file, as
exporters have them, they are known, and the model must compile.

The tests called `..._expanded` are the bodies of operators that stand before them here. `test_backend.py` runs them.
This file does so with `ONNXGEN_ALL_COMPILED=1`.
"""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import onnx.backend.test
import pytest

from tests.backend.compiled import REFUSALS, Compiled, python_bound
from tests.backend.exclusions import ROUNDED
from tests.support.onnx_cases import kept_cases

LISTED = python_bound()
EXPANDED = bool(os.environ.get("ONNXGEN_ALL_COMPILED"))


def given(function: Callable[[Any], None], names: list[str]) -> Callable[[Any], None]:
    """A test of the runner's, on the model in which these inputs are stored."""

    def run(self: Any) -> None:
        with mock.patch.object(Compiled, "stored", names):
            function(self)

    return run


def refused(function: Callable[[Any], None], reason: str) -> Callable[[Any], None]:
    """A test of the runner's, on a model that no graph can hold."""

    def run(self: Any) -> None:
        with pytest.raises(REFUSALS):
            function(self)
        pytest.xfail(reason)  # the mark of that name prints torch's whole stack, which takes longer than the test

    return run


with kept_cases():
    suite = onnx.backend.test.BackendTest(Compiled, __name__, test_kwargs=ROUNDED)
found = suite.test_cases
storing: dict[str, Callable[[Any], None]] = {}
seen = set()
for cases in found.values():
    for name, function in list(vars(cases).items()):
        test = name.removesuffix("_cpu")
        is_excluded = name.endswith("_cuda") or test.startswith("test_bernoulli")  # see exclusions.py
        if is_excluded or (not EXPANDED and test.endswith("_expanded")):
            delattr(cases, name)
        elif test in LISTED:
            reason, inputs = LISTED[test]
            setattr(cases, name, refused(function, reason))
            seen.add(test)
            if inputs:
                storing[name] = given(function, inputs)
globals().update(found)

WithStoredInputs = type("WithStoredInputs", (unittest.TestCase,), {"__module__": __name__, **storing})


@pytest.fixture(autouse=True)
def models_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ONNX's runner writes data of the real models there, also while another process reads it."""
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))


def test_the_list_names_tests() -> None:
    assert seen == {test for test in LISTED if EXPANDED or not test.endswith("_expanded")}
