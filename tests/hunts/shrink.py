"""A failing graph, made small: outputs and nodes are left out, as long as it fails alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx

from tests.hunts.judge import Case, Verdict, judge
from tests.whole.test_random_graphs import _all_nodes

ATTEMPTS = 400


def shrink(case: Case, verdict: Verdict) -> Case:
    """The smallest case that is found with that verdict."""
    left = ATTEMPTS
    while left > 0:
        for smaller in _smaller(case):
            left -= 1
            again = judge(smaller)
            if (again.kind, again.what) == (verdict.kind, verdict.what):
                case = smaller
                break
            if left <= 0:
                break
        else:
            break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """The case with one output less, or with a node's first output replaced by one of its inputs."""
    graph = case.model.graph
    for k in range(len(graph.output)) if len(graph.output) > 1 else ():
        yield _without(case, output=k)
    for k, node in reversed(list(enumerate(graph.node))):
        for name in dict.fromkeys(node.input):
            if name:
                yield _without(case, node=k, instead=name)


def _without(case: Case, output: int = -1, node: int = -1, instead: str = "") -> Case:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    if output >= 0:
        del graph.output[output]
    if node >= 0:
        gone = graph.node[node].output[0]
        del graph.node[node]
        for other in _all_nodes(graph):
            for i, name in enumerate(other.input):
                if name == gone:
                    other.input[i] = instead
        for out in graph.output:
            if out.name == gone:
                out.name = instead
    return _pruned(replace(case, model=model))


def _pruned(case: Case) -> Case:
    """Without what no output needs."""
    graph = case.model.graph
    needed = {o.name for o in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input)
            inner = [a.g for a in node.attribute if a.HasField("g")]
            needed |= {i for g in inner for n in _all_nodes(g) for i in n.input} | {
                o.name for g in inner for o in g.output
            }
    stored = [t for t in graph.initializer if t.name in needed]
    for field, left in ((graph.node, kept[::-1]), (graph.initializer, stored)):
        del field[:]
        field.extend(left)
    return case
