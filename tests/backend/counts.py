"""How many of ONNX's backend tests have each operator, for docs/OPERATORS.md: collecting them takes half a minute.

python -m tests.backend.counts > tests/backend/counts.txt
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx.backend.test.loader import DATA_DIR

from onnxgen.graph.operators import key
from tests.backend.exclusions import EXCLUDED
from tests.ops import harness

HEAD = f"# operator, tests that pass, all; of onnx {onnx.__version__}: python -m tests.backend.counts\n"


def lines() -> str:
    """The file: a line for each operator that stands in the model of some test."""
    passed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    tests = 0
    for name, model in _models():
        tests += 1
        names = set(_operators(model.graph.node))
        total.update(names)
        if not any(pattern in name for pattern in EXCLUDED):
            passed.update(names)
            passed["*"] += 1
    total["*"] = tests
    return HEAD + "".join(f"{name} {passed[name]} {total[name]}\n" for name in sorted(total))


def _models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Every test that ONNX's runner has: made by code, or a file of the wheel."""
    for case in harness._cases():
        yield case.name, case.model
    for folder in sorted(p for p in Path(DATA_DIR).glob("*/test_*") if p.is_dir()):
        path = folder / "model.onnx"
        if not path.exists():
            path = Path(DATA_DIR) / "light" / Path(json.loads((folder / "data.json").read_text())["url"]).name
        yield folder.name, onnx.load(path)


def _operators(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield key(node.domain, node.op_type)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _operators(graph.node)


if __name__ == "__main__":
    print(lines(), end="")
