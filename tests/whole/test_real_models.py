"""Every real network and graph of the shared collection: generated, imported, run, trained a step, and taken back."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.conftest import SHARED, shared_models
from tests.output.test_frame import hold
from tests.support.real import (
    Run,
    assert_finite_gradients,
    assert_same,
    assert_way_back,
    by_the_letter,
    computes_in_half,
    imported,
    run,
)
from tests.support.stripped import strip
from tests.test_rules import format_again, newer


@pytest.fixture(scope="module")
def refs(shared: Path) -> ModuleType:
    return imported(SHARED / "models" / "refs.py")


def reference(refs: ModuleType, entry: dict[str, Any], feeds: dict[str, Any]) -> dict[str, Any]:
    outputs: dict[str, Any] = refs.outputs(entry["path"], feeds, entry.get("ort_level", "off"))
    return outputs


def compare(made: Run, expected: dict[str, Any], values: bool, half: bool) -> None:
    for (name, theirs), ours in zip(expected.items(), made.outputs):
        assert_same(name, ours, theirs, values, half)


def assert_rules(source: str) -> None:
    """It needs no newer torch than 2.4, black leaves it as it is, and little of it is about loading."""
    assert newer(source) == []
    hold(source)
    assert format_again(source) == source


@pytest.mark.parametrize("entry", shared_models("net", "graph"))
@pytest.mark.parametrize("variant", ["tree", "flat", "stripped"])
def test_agrees_with_onnxruntime(entry: dict[str, Any], variant: str, refs: ModuleType, tmp_path: Path) -> None:
    """As it is, without structure, and without any name in the file: all three compute what onnxruntime does."""
    path, options = entry["path"], Options(flat=variant == "flat")
    if variant == "stripped":
        path = strip(path, tmp_path / "stripped.onnx")
    if "feeds" not in entry:
        # no inputs are known with which onnxruntime runs this graph: it must generate and import all the same
        assert_rules(generate(path, tmp_path / "model.py", options).source)
        imported(tmp_path / "model.py").Model.from_pretrained()
        assert entry["ort"] != "ok"
        return
    feeds = refs.inputs(entry["path"], recipe=entry["feeds"])
    made = run(path, tmp_path, feeds, options)
    assert_rules(made.generated.source)
    if entry["ort"] == "ok":
        half = computes_in_half(entry["path"])
        expected = reference(refs, entry, feeds)
        assert len(expected) == len(made.outputs)
        try:
            compare(made, expected, not entry.get("random_outputs"), half)
        except AssertionError:
            if not half:
                raise
            compare(made, by_the_letter(entry["path"], feeds), True, half)
    assert_finite_gradients(made)
    assert_way_back(made, path)


@pytest.mark.parametrize("entry", shared_models("broken"))
def test_broken_files_are_refused_or_run(entry: dict[str, Any], refs: ModuleType, tmp_path: Path) -> None:
    """Nothing but an `OnnxgenError` may come of a file that onnxruntime refuses; an unusual one may work."""
    try:
        generate(entry["path"], tmp_path / "model.py")
    except OnnxgenError as error:
        assert error.problems and not list(tmp_path.iterdir())
        return
    feeds = refs.inputs(entry["path"], recipe=entry.get("feeds") or None)
    made = run(entry["path"], tmp_path, feeds)
    assert made.outputs
