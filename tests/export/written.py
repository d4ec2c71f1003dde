"""Files that were written back, held to the originals and to their modules; which real files have something to train.

`trained_files.txt` lists those, so that none is left out unnoticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file

from onnxgen.pipeline import generate
from tests.export.trained import blank
from tests.ops.harness import unformatted
from tests.support.real import Run, by_the_letter, compare, tensor
from tests.support.real_files import RealFile

# The collection's inputs for it are negative ids, which torch's embedding refuses.
NEGATIVE_IDS = ("ort/ort_minimal_e2e_test_data/test_voice_commands.onnx",)
LISTED = frozenset((Path(__file__).parent / "trained_files.txt").read_text(encoding="utf-8").split())


def rows(value: Any) -> Any:
    """What ZipMap makes, a list of dicts, as rows of numbers; everything else as it is."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return np.array([[float(v) for v in row.values()] for row in value], np.float32)
    return value


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
    with unformatted():
        generate(out, folder / "again.py")
    again, state = load_file(folder / "again.safetensors"), model.state_dict()
    for key in state.keys() & again.keys():
        assert again[key].dtype == before[key].dtype
        assert torch.equal(again[key].nan_to_num(), state[key].nan_to_num()), key
    if not state.keys() & again.keys():  # other elements made another reading of the file's names the shorter one
        kept = {_content(tensor) for tensor in state.values()}
        assert again and all(_content(tensor) in kept for tensor in again.values())


def assert_runs_alike(out: Path, model: torch.nn.Module, real: RealFile) -> None:
    entry, feeds = real.entry, real.feeds
    arguments = [tensor(a) for a in feeds.values()]
    if entry["file"] in NEGATIVE_IDS:
        with pytest.raises(IndexError):
            model(*arguments)
        return
    with torch.no_grad():
        found = model(*arguments)
    found = tuple(tensor(rows(m)) if isinstance(m, list) else m for m in found) if isinstance(found, tuple) else found
    expected = {k: rows(v) for k, v in real.refs.outputs(str(out), feeds, entry.get("ort_level", "off")).items()}
    half, values = real.half, not entry.get("random_outputs")
    made = Run(None, None, model, found if isinstance(found, tuple) else (found,))  # type: ignore[arg-type]
    assert len(made.outputs) == len(expected)
    try:
        compare(made, expected, values, half)
    except AssertionError:
        if not half:
            raise
        compare(made, by_the_letter(out, feeds), True, half)


def _content(tensor: torch.Tensor) -> tuple[tuple[int, ...], bytes]:
    return tuple(tensor.shape), tensor.contiguous().numpy().tobytes()
