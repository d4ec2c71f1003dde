"""Every file of the shared collection that has something to train: generated, perturbed, written back, run.

`trained_files.txt` lists them, so that none is left out unnoticed: a listed file that has nothing to train fails, and
so does one with trained tensors that is not listed.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_model

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.export.report import BACK
from onnxgen.options import Options
from onnxgen.pipeline import build, generate
from tests.conftest import shared_models
from tests.export.trained import blank, perturbed
from tests.ops.harness import unformatted
from tests.support.real import Run, by_the_letter, computes_in_half, imported, tensor
from tests.whole.test_real_models import compare, refs

__all__ = ["refs"]
# The collection's inputs for it are negative ids, which torch's embedding refuses.
NEGATIVE_IDS = ("ort/ort_minimal_e2e_test_data/test_voice_commands.onnx",)
LISTED = frozenset((Path(__file__).parent / "trained_files.txt").read_text(encoding="utf-8").split())


def test_the_list_has_what_was_measured() -> None:
    """114 files, of which onnxruntime runs 108 (it refuses the originals of the others, too)."""
    manifest = {param.id: param.values[0] for param in shared_models()}
    assert len(LISTED) == 114
    if manifest.keys() >= LISTED:  # else the collection is absent
        assert sum(manifest[file]["ort"] == "ok" for file in LISTED) == 108


def rows(value: Any) -> Any:
    """What ZipMap makes, a list of dicts, as rows of numbers; everything else as it is."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return np.array([[float(v) for v in row.values()] for row in value], np.float32)
    return value


@pytest.mark.parametrize("entry", shared_models())
def test_written_back(entry: dict[str, Any], refs: ModuleType, tmp_path: Path) -> None:
    """onnxruntime's outputs on the new file are the module's; nothing but values differs from the old one."""
    path, out = entry["path"], tmp_path / "tuned.onnx"
    if entry["file"] not in LISTED:
        assert not has_trained(path)
        pytest.skip("it is refused, or has nothing to train")
    generated = generate(path, tmp_path / "model.py")
    assert any(yes for yes, _ in generated.report.trainable.values())
    model = imported(tmp_path / "model.py").Model.from_pretrained().eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(perturbed(model))
    save_model(model, str(tmp_path / "best.safetensors"))  # of tied tensors it keeps one
    runs = entry["ort"] == "ok"  # else onnxruntime refuses the original, too
    report = onnxgen.export(tmp_path / "model.py", path, tmp_path / "best.safetensors", out, verify=runs)
    assert report.method == BACK and report.changed
    assert_nothing_else_differs(out, path, report.added)
    assert_comes_back(out, model, before, tmp_path)
    if runs:
        assert_runs_alike(out, model, entry, refs)


def has_trained(path: Path) -> bool:
    """Whether a file has anything to train; not if it is refused."""
    try:
        with unformatted():
            generated = build(path, Options(), Path("model.py"))
    except OnnxgenError:
        return False
    return any(yes for yes, _ in generated.report.trainable.values())


def assert_nothing_else_differs(out: Path, path: Path, added: list[str]) -> None:
    new, old = onnx.load(out), onnx.load(path)
    added_tensors = [t for t in new.graph.initializer if t.name in added]
    assert len(added_tensors) == len(added)
    for extra in added_tensors:
        new.graph.initializer.remove(extra)
    if added:  # a user of each takes it now, and that is all
        names = {
            i: n for new_node, node in zip(new.graph.node, old.graph.node) for i, n in zip(new_node.input, node.input)
        }
        assert set(added) == {i for i, n in names.items() if i != n}
        for node in new.graph.node:
            node.input[:] = [names[i] for i in node.input]
    assert blank(new) == blank(old)


def assert_comes_back(out: Path, model: torch.nn.Module, before: dict[str, Any], folder: Path) -> None:
    """What is generated from the new file has the very values that were written."""
    generate(out, folder / "again.py")
    again, state = load_file(folder / "again.safetensors"), model.state_dict()
    for key in state.keys() & again.keys():
        assert again[key].dtype == before[key].dtype
        assert torch.equal(again[key].nan_to_num(), state[key].nan_to_num()), key
    assert state.keys() & again.keys()


def assert_runs_alike(out: Path, model: torch.nn.Module, entry: dict[str, Any], refs: ModuleType) -> None:
    feeds = refs.inputs(entry["path"], recipe=entry["feeds"])
    arguments = [tensor(a) for a in feeds.values()]
    if entry["file"] in NEGATIVE_IDS:
        with pytest.raises(IndexError):
            model(*arguments)
        return
    with torch.no_grad():
        found = model(*arguments)
    found = tuple(tensor(rows(m)) if isinstance(m, list) else m for m in found) if isinstance(found, tuple) else found
    expected = {k: rows(v) for k, v in refs.outputs(str(out), feeds, entry.get("ort_level", "off")).items()}
    half, values = computes_in_half(entry["path"]), not entry.get("random_outputs")
    made = Run(None, None, model, found if isinstance(found, tuple) else (found,))  # type: ignore[arg-type]
    assert len(made.outputs) == len(expected)
    try:
        compare(made, expected, values, half)
    except AssertionError:
        if not half:
            raise
        compare(made, by_the_letter(out, feeds), True, half)
