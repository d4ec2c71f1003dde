"""Generating grows with the graph: counted in calls, which no busy machine changes."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from benchmarks.generation import chain, irregular
from onnxgen.options import Options
from onnxgen.pipeline import build


def calls(graph: onnx.ModelProto, folder: Path) -> int:
    onnx.save(graph, folder / "net.onnx")
    profile = cProfile.Profile()
    profile.enable()
    build(folder / "net.onnx", Options(), folder / "net.py")
    profile.disable()
    total: int = vars(pstats.Stats(profile))["total_calls"]
    return total


@pytest.mark.parametrize("graph", [chain, irregular])
def test_twice_the_nodes_twice_the_calls(graph: Callable[[int], onnx.ModelProto], tmp_path: Path) -> None:
    calls(graph(20), tmp_path)  # what is done once a process
    small, large = calls(graph(200), tmp_path), calls(graph(600), tmp_path)
    assert large < 3 * 1.1 * small, large / small
