"""Every real file of the shared collection: read, generated, run, trained a step, taken back, and written back.

All that the tests of one file share is made once (`tests.support.real_files`), so they stand together by file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_model

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.export.report import BACK
from onnxgen.options import Options
from onnxgen.pipeline import generate
from onnxgen.training import open_model, replace_head
from tests.conftest import SHARED, shared_models
from tests.export.test_heads import HEADS
from tests.export.trained import perturbed
from tests.export.written import LISTED, assert_comes_back, assert_nothing_else_differs, assert_runs_alike
from tests.output.test_frame import hold
from tests.shapes.agreeing import check, free_dims, outputs_of_all_nodes
from tests.support.real import (
    Run,
    assert_finite_gradients,
    assert_way_back,
    by_the_letter,
    compare,
    imported,
    run,
    tensor,
)
from tests.support.real_files import RUN, RealFile, checked
from tests.support.stripped import strip
from tests.test_rules import format_again, newer

MANIFEST = {param.id: param.values[0] for param in shared_models()}
# The recipe's image is smaller than a pooling window: onnxruntime then makes one output where the formula of ONNX says
# none. (PyTorch refuses such images.)
LARGER = {"ppocr/cls-model.onnx": {"x": (1, 3, 48, 192)}}
LARGE = 4_000_000  # elements


def files(*categories: str, among: Any = MANIFEST, but: Any = ()) -> pytest.MarkDecorator:
    """The test is of every file of these categories (without any: of all) that is among some, and not among others."""
    found = [
        pytest.param(param.id, id=param.id, marks=param.marks)
        for param in shared_models(*categories)
        if param.id == "absent" or param.id in among and param.id not in but
    ]
    return pytest.mark.parametrize("real", found, indirect=True, scope="module")


@pytest.fixture(scope="module")
def refs(shared: Path) -> ModuleType:
    return imported(SHARED / "models" / "refs.py")


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest, refs: ModuleType) -> Iterator[RealFile]:
    """A file of the collection, and what is made of it once."""
    entry = MANIFEST[request.param]
    with tempfile.TemporaryDirectory(prefix="onnxgen-real-") as folder:
        yield RealFile(entry, refs, Path(folder), entry["category"] in RUN or request.param in LISTED)


def assert_rules(source: str) -> None:
    """It needs no newer torch than the oldest one, black leaves it as it is, and little of it is about loading."""
    assert newer(source) == []
    hold(source)
    assert format_again(source) == source


@files()
def test_every_file_is_read(real: RealFile) -> None:
    """All of them, "broken" ones too: those break rules of single operators, not of the file."""
    assert real.outcome
    if real.misread is not None:
        raise real.misread


@files("op", "graph", "net")
def test_what_is_inferred_is_what_comes_out(real: RealFile) -> None:
    """Every dtype, shape and element that is inferred, also with every input dim made symbolic."""
    if "digest" not in real.entry:
        pytest.skip("no runtime runs this file")
    proto, feeds, actual = real.proto, real.feeds, real.values
    if real.name in LARGER:
        feeds = {name: np.resize(feeds[name], shape) for name, shape in LARGER[real.name].items()}
        actual = outputs_of_all_nodes(proto, feeds)
    if isinstance(actual, str):
        pytest.skip(f"onnxruntime does not run this with every value as an output: {actual[:200]}")
    check(free_dims(proto), feeds, actual)
    check(proto, feeds, actual)


@files("net", "graph")
@pytest.mark.parametrize("variant", ["tree", "flat", "stripped"])
def test_agrees_with_onnxruntime(real: RealFile, variant: str, tmp_path: Path) -> None:
    """As it is, without structure, and without any name in the file: all three compute what onnxruntime does."""
    path, options = real.path, Options(flat=variant == "flat")
    if variant == "stripped":
        path = strip(path, tmp_path / "stripped.onnx")
    if "feeds" not in real.entry:
        # no inputs are known with which onnxruntime runs this graph: it must generate and import all the same
        assert_rules(generate(path, tmp_path / "model.py", options).source)
        imported(tmp_path / "model.py").Model.from_pretrained()
        assert real.entry["ort"] != "ok"
        return
    if variant == "tree":
        outputs = (model := real.model())(*[tensor(a) for a in real.feeds.values()])
        made = Run(real.generated, real.module, model, outputs if isinstance(outputs, tuple) else (outputs,))
    else:
        with checked(variant == "stripped"):  # the passes are the same ones, whether or not there is structure
            made = run(path, tmp_path, real.feeds, options)
    assert_rules(made.generated.source)
    if real.entry["ort"] == "ok":
        assert len(real.expected) == len(made.outputs)
        try:
            compare(made, real.expected, not real.entry.get("random_outputs"), real.half)
        except AssertionError:
            if not real.half:
                raise
            compare(made, by_the_letter(real.path, real.feeds), True, real.half)
    assert_finite_gradients(made)
    assert_way_back(made, path)


@files("broken")
def test_broken_files_are_refused_or_run(real: RealFile) -> None:
    """Nothing but an `OnnxgenError` may come of a file that onnxruntime refuses; an unusual one may work."""
    if isinstance(real.outcome, OnnxgenError):
        assert real.outcome.problems and not list(real.folder.iterdir())
        return
    assert real.model()(*[tensor(a) for a in real.feeds.values()]) is not None


def test_the_list_has_what_was_measured() -> None:
    """114 files, of which onnxruntime runs 108 (it refuses the originals of the others, too)."""
    assert len(LISTED) == 114
    if MANIFEST.keys() >= LISTED:  # else the collection is absent
        assert sum(MANIFEST[file]["ort"] == "ok" for file in LISTED) == 108


@files(but=LISTED)
def test_no_other_file_has_anything_to_train(real: RealFile) -> None:
    """It is refused, or has nothing to train."""
    assert not real.has_trained


@files(among=LISTED)
def test_written_back(real: RealFile, tmp_path: Path) -> None:
    """onnxruntime's outputs on the new file are the module's; nothing but values differs from the old one."""
    assert real.has_trained
    model, out = real.model(), tmp_path / "tuned.onnx"
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(perturbed(model))
    save_model(model, str(tmp_path / "best.safetensors"))  # of tied tensors it keeps one
    runs = real.entry["ort"] == "ok"  # else onnxruntime refuses the original, too
    times = 1 if sum(array.size for array in real.feeds.values()) > LARGE else 3  # two inputs are millions of numbers
    given = real.folder / "model.py", real.path, tmp_path / "best.safetensors", out
    report = onnxgen.export(*given, verify=runs, runs=times)
    assert report.method == BACK and report.changed
    assert_nothing_else_differs(out, real.path, report.added)
    assert_comes_back(out, model, before, tmp_path)
    if runs:
        assert_runs_alike(out, model, real)


@files("net", but=HEADS)
def test_no_other_network_has_a_head(real: RealFile) -> None:
    """So none is left out of the tests in `tests/export/test_heads.py`."""
    with pytest.raises(OnnxgenError):
        assert real.generated
        replace_head(open_model(real.folder / "model.py"), 3)
