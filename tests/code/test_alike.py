"""Lists of items that are alike are written once, where that is shorter: the same layers in the same order."""

from __future__ import annotations

import ast

import black
from torch import nn

from onnxgen.code.alike import height, written_once
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.printer import GLANCE

WIDE = "nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU()"
LISTS = [
    # how the items are written, and how they are in the end
    (
        ", ".join(f"nn.Linear({8 * i}, {i * i + 5})" for i in range(1, 8)),
        "*[nn.Linear(a, b) for a, b in ((8, 6), (16, 9), (24, 14), (32, 21), (40, 30), (48, 41), (56, 54))]",
    ),
    (
        ", ".join(f"nn.Conv2d({8 * i}, {i * i}, 3)" for i in range(1, 8)),
        "*[nn.Conv2d(a, b, 3) for a, b in ((8, 1), (16, 4), (24, 9), (32, 16), (40, 25), (48, 36), (56, 49))]",
    ),
    (
        ", ".join(f"nn.Dropout({i * i / 100})" for i in range(1, 8)),
        "*[nn.Dropout(p) for p in (0.01, 0.04, 0.09, 0.16, 0.25, 0.36, 0.49)]",
    ),
    (
        ", ".join(f"nn.Linear({8 * i}, 5)" for i in range(1, 8)),
        "*[nn.Linear(in_features, 5) for in_features in range(8, 57, 8)]",
    ),
    (
        ", ".join(["nn.Linear(64, 64)", "nn.ReLU()"] * 4),
        "*[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]",
    ),
    (
        ", ".join(["nn.Linear(4, 64)", "nn.ReLU()", *["nn.Linear(64, 64)", "nn.ReLU()"] * 5, "nn.Linear(64, 2)"]),
        "nn.Linear(4, 64), nn.ReLU(), *[layer for _ in range(5) for layer in (nn.Linear(64, 64), nn.ReLU())], "
        "nn.Linear(64, 2)",
    ),
    (", ".join([WIDE] * 2), ", ".join([WIDE] * 2)),  # twice is not often
    ("nn.Linear(1, 2), nn.Linear(3, 4), nn.Linear(5, 6)", "nn.Linear(1, 2), nn.Linear(3, 4), nn.Linear(5, 6)"),
]


def layers(text: str) -> str:
    return repr(eval(f"nn.Sequential({text})", {"nn": nn}))


def test_items_that_are_alike_are_written_once() -> None:
    for given, expected in LISTS:
        items = [ast.parse(text.strip(), mode="eval").body for text in given.replace("), ", ")\n").split("\n")]
        (made,) = written_once([ClassTree("Net", items=items)], frozenset())
        found = ", ".join(map(ast.unparse, made.items))
        assert found == expected and layers(found) == layers(given)


def test_lines_are_counted_as_black_breaks_them() -> None:
    """An item in one line, in three with what it is given in the middle, and with a line for each of that."""
    row = ", ".join(f"nn.Linear({8 * i}, 64)" for i in range(5))
    texts = [
        *(f"nn.Sequential(nn.Linear({'1' * n}, {'2' * n}), nn.Conv2d({'3' * n}, {'4' * n}, 3), nn.ReLU())" for n in
          (1, 2, 3, 8, 9, 20, 29, 30, 31, 32, 37)),
        "nn.ModuleList([nn.Embedding(7, 4) for a in range(3)])", f"nn.Sequential({row})", f"nn.ModuleList([{row}])",
        f"nn.ModuleList([{', '.join(['nn.Linear(8, 8)'] * 4)}])",
        "nn.Sequential(*[nn.Conv2d(a, b, 3, 1, 1, 1, 1, False) for a, b in ((1, 2), (3, 4), (5, 6), (7, 8), (9, 10))])",
        "nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8), "
        "nn.Linear(8, 8), nn.ReLU())])",
        f"nn.ModuleList([nn.Embedding(a, b) for a, b in ({', '.join(['(12, 6), (31, 16)'] * 5)})])",
    ]  # fmt: skip
    for text in texts:
        source = black.format_str(
            f"class Net:\n    def f(self):\n        self.layers = {text}\n",
            mode=black.Mode(line_length=GLANCE, magic_trailing_comma=False),
        )
        tree = ast.parse(text, mode="eval").body
        assert height(tree, 8, len("self.layers = ")) == source.count("\n") - 2, source
