"""Every text of real files replaced by code: a few of the collection here, all of them by the module's command."""

from __future__ import annotations

from pathlib import Path

import onnx

from tests.injection.attacks import base
from tests.injection.collection import Found, attack, files, run
from tests.injection.renamed import CODE, renamed

EVERY, LARGEST = 30, 300_000


def test_files_of_the_collection(shared: Path) -> None:
    found = run(files(EVERY, LARGEST))
    assert found.files > 10 and found.made > 3 * found.files, found
    assert not found.broken and not found.lost, found.broken + found.lost


def test_every_text_is_replaced(tmp_path: Path) -> None:
    """What stays is only what names an operator, its attributes and their values; the file is still one."""
    for parts in (False, True):
        model = renamed(base(), "first", parts)
        onnx.checker.check_model(model, full_check=False)
        left = {old for old, new in zip(_texts(base()), _texts(model), strict=True) if old == new}
        assert left <= {"MatMul", "If", "Constant", "Identity", "Strange", "Shape", "Expand", "Neg", "Exp", "LeakyRelu",
                        "then_branch", "else_branch", "value_strings", "way", "there", "alpha"}, left  # fmt: skip
        assert renamed(base(), "first", parts) == model != renamed(base(), "another", parts)


def test_a_broken_promise_is_found(tmp_path: Path) -> None:
    """Not every file is fine: one that onnxgen fails on is told."""
    from tests.injection import collection

    path = tmp_path / "net.onnx"
    path.write_bytes(base().SerializeToString())
    found, before = Found(), collection.build

    def fails(*args: object) -> None:
        raise KeyError(CODE[0])

    collection.build = fails  # type: ignore[assignment]
    try:
        attack(path, tmp_path, found)
    finally:
        collection.build = before
    assert len(found.broken) == 4 and found.made == 0 and "KeyError" in found.broken[0]


def _texts(message: object) -> list[str]:
    """Every text in a protobuf."""
    found: list[str] = []
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        values = [value] if isinstance(value, (str, bytes, int, float)) or hasattr(value, "ListFields") else value
        for item in values:
            if hasattr(item, "ListFields"):
                found += _texts(item)
            elif isinstance(item, str) or (isinstance(item, bytes) and field.name in ("s", "strings")):
                found.append(item.decode() if isinstance(item, bytes) else item)
    return [text for text in found if text]
