"""ONNX's own tests by ONNX's own runner: the verdict on each, and how far the outputs lie from what it states."""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.backend.test

from benchmarks.conformance.ulp import largest
from onnxgen.errors import OnnxgenError
from tests.backend.exclusions import EXCLUDED, ROUNDED
from tests.backend.road import Road

VERDICTS = ("right", "wrong", "refused", "left out")


@dataclass(frozen=True)
class Row:
    """One test.

    Attributes:
        name: as ONNX has it.
        operator: the operators of its model that it is about; of a network, "network".
        verdict: one of `VERDICTS`.
        ulp: the largest difference; None where there is no floating point to compare.
        note: why it is not right.
    """

    name: str
    operator: str
    verdict: str
    ulp: int | None = None
    note: str = ""


class Measured(onnx.backend.test.BackendTest):
    """ONNX's runner, which also measures what it compares."""

    found: list[int | None] = []

    @classmethod
    def assert_similar_outputs(cls, ref_outputs: Any, outputs: Any, *args: Any, **kwargs: Any) -> None:
        for stated, made in zip(ref_outputs, outputs, strict=False):
            if getattr(stated, "shape", None) == getattr(made, "shape", ()) and stated.dtype == made.dtype:
                cls.found.append(largest(stated, made))
        super().assert_similar_outputs(ref_outputs, outputs, *args, **kwargs)


def rows() -> Iterator[Row]:
    """Every test, in the order of names; takes some minutes."""
    warnings.simplefilter("ignore")
    runner = Measured(Road, __name__, test_kwargs=ROUNDED)
    found: dict[str, tuple[type[unittest.TestCase], str, Any]] = {}
    for category, cases in runner.test_cases.items():
        for name in (n for n in vars(cases) if n.endswith("_cpu")):
            item = runner._test_items[category.removeprefix("OnnxBackend").removesuffix("Test")][name]
            found[name.removesuffix("_cpu")] = cases, category, item.proto
    for name, (cases, category, proto) in sorted(found.items()):
        reason = next((why for pattern, why in EXCLUDED.items() if pattern in name), "")
        Measured.found = []
        verdict, note = ("left out", reason) if reason else _run(cases, name)
        measured = [ulp for ulp in Measured.found if ulp is not None]
        yield Row(name, _operator(category, proto), verdict, max(measured) if measured and not reason else None, note)


def _run(cases: type[unittest.TestCase], name: str) -> tuple[str, str]:
    try:
        with np.errstate(all="ignore"):
            getattr(cases(f"{name}_cpu"), f"{name}_cpu")()
    except OnnxgenError as error:
        return "refused", " ".join(str(error).split())[:150]
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
    return "right", ""


def _operator(category: str, proto: list[Any]) -> str:
    """What a test is about: the operator of its model, or the one that most of its nodes are besides constants."""
    if "Real" in category or "Simple" in category:
        return "network"
    model = proto[0]
    names = [node.op_type for node in model.graph.node if node.op_type != "Constant"] if model is not None else []
    return max(dict.fromkeys(names), key=names.count) if len(set(names)) == 1 else "several" if names else "-"
