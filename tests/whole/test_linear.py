"""Generating grows with the graph: counted in calls, which no busy machine changes."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from benchmarks.generation import chain, irregular
from onnxgen.options import Options
from onnxgen.pipeline import build


def calls(graph: onnx.ModelProto, folder: Path) -> int:
    onnx.save(graph, folder / "net.onnx")
    profile = cProfile.Profile(subcalls=False)
    profile.enable()
    build(folder / "net.onnx", Options(), folder / "net.py")
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize(("graph", "nodes", "slack"), [(chain, 50, 1.01), (irregular, 140, 1.05)])
def test_twice_the_nodes_twice_the_calls(
    graph: Callable[[int], onnx.ModelProto], nodes: int, slack: float, tmp_path: Path
) -> None:
    calls(graph(20), tmp_path)  # what is done once a process
    first, small, large = (calls(graph(count), tmp_path) for count in (20, nodes, 2 * nodes))
    each, later = (small - first) / (nodes - 20), (large - first) / (2 * nodes - 20)
    assert later < slack * each, later / each
