"""Random graphs (`graph_layers.make`): generated, run at three sizes, and held to onnxruntime, as a tree and flat.

`python -m tests.whole.test_random_graphs FIRST LAST [FOLDER]` tries a range of seeds, and prints the smallest graph
of each failure (and saves it in the folder).
"""

from __future__ import annotations

import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

from onnxgen.options import Options
from tests.support.graph_layers import make
from tests.support.graphs import Case
from tests.support.real import Run, assert_finite_gradients, assert_same, assert_way_back, run, tensor
from tests.support.real_files import checked

SEEDS, CHUNK = 160, 8


def oracle(case: Case, path: Path) -> list[Any] | None:
    """What onnxruntime makes of a graph, at every size; None where it refuses it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        names = [o.name for o in case.model.graph.output]
        return [session.run(names, feed) for feed in case.feeds]
    except Exception:
        return None


def results(made: Run, feed: dict[str, Any]) -> tuple[Any, ...]:
    outputs = made.model(*[tensor(a) for a in feed.values()])
    return outputs if isinstance(outputs, tuple) else (outputs,)


def hold(case: Case, folder: Path) -> bool:
    """Everything that is asked of one graph; False where onnxruntime refuses it."""
    path = folder / "graph.onnx"
    onnx.save(case.model, path)
    expected = oracle(case, path)
    if expected is None:
        return False
    half = any("FLOAT16" in str(v.type) or v.type.tensor_type.elem_type == 10 for v in case.model.graph.input)
    half = half or b"FLOAT16" in case.model.SerializeToString() or _casts_to_half(case.model)
    made = []
    for flat in (False, True):
        (folder / str(flat)).mkdir()
        with checked(not flat):  # the passes are the same ones
            made.append(run(path, folder / str(flat), case.feeds[0], Options(flat=flat)))
    tree, flat_one = made
    for own in (t for one in made for t in (*one.model.parameters(), *one.model.buffers())):
        own.data = own.data.clone()  # a product with a vector rounds by the place of its weights in memory
    names = [o.name for o in case.model.graph.output]
    for feed, theirs in zip(case.feeds, expected):
        ours, also = results(tree, feed), results(flat_one, feed)
        assert len(ours) == len(theirs), (len(ours), len(theirs))
        for name, a, b, c in zip(names, ours, also, theirs):
            assert_same(name, a, c, True, half)
            assert a.dtype == b.dtype and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)), f"{name}: flat differs"
    branches = any(n.op_type in ("If", "Loop") for n in case.model.graph.node)  # what does not run has no gradient
    if not branches and all(a.size for a in case.feeds[0].values()):
        assert_finite_gradients(tree)
    assert_way_back(tree, path)
    hold_fresh(tree, case, expected[0])
    return True


def _casts_to_half(model: onnx.ModelProto) -> bool:
    return any(a.i == 10 for n in model.graph.node if n.op_type == "Cast" for a in n.attribute)


def hold_fresh(made: Run, case: Case, expected: list[Any]) -> None:
    """A fresh module has the same shapes, and with the state dict the same results."""
    fresh = made.module.Model().eval()
    outputs = fresh(*[tensor(a) for a in case.feeds[0].values()])
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for ours, theirs in zip(outputs, expected):
        assert tuple(ours.shape) == theirs.shape, "fresh: shape"
    keys = set(made.model.state_dict())
    assert keys == set(fresh.state_dict()), "fresh: other keys"
    fresh.load_state_dict(made.model.state_dict(), strict=True)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_random_graphs_agree_with_onnxruntime(first: int, tmp_path: Path) -> None:
    held = 0
    for seed in range(first, first + CHUNK):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                held += hold(make(seed), folder)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error}") from error
    assert held >= CHUNK // 2, "onnxruntime refused too many of these graphs"


def smallest(case: Case, kind: str) -> Case:
    """The case with the one output, of those in the graph, that fails alike with the fewest nodes."""
    graph = case.model.graph
    best = case
    for node in graph.node:
        for name in node.output:
            small = _only(case, name)
            if len(small.model.graph.node) < len(best.model.graph.node) and _failure(small)[0] == kind:
                best = small
    return best


def _only(case: Case, name: str) -> Case:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    needed, kept = {name}, []
    for node in reversed(graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input)
            for a in node.attribute:
                if a.HasField("g"):
                    needed |= {i for n in _all_nodes(a.g) for i in n.input} | {o.name for o in a.g.output}
    del graph.node[:]
    graph.node.extend(kept[::-1])
    stored = [t for t in graph.initializer if t.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(stored)
    inputs = [i for i in graph.input if i.name in needed]
    del graph.input[:]
    graph.input.extend(inputs)
    del graph.output[:]
    graph.output.add().name = name
    try:
        inferred = onnx.shape_inference.infer_shapes(model).graph.output[0]
        graph.output[0].type.tensor_type.elem_type = inferred.type.tensor_type.elem_type
    except Exception:
        pass
    names = {i.name for i in inputs}
    return Case(case.seed, model, [{k: v for k, v in f.items() if k in names} for f in case.feeds])


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = list(graph.node)
    for node in graph.node:
        for a in node.attribute:
            if a.HasField("g"):
                found += _all_nodes(a.g)
    return found


def _failure(case: Case) -> tuple[str, str]:
    """What kind of failure a case has ("" for none, "refused"), and its traceback."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ("" if hold(case, Path(folder)) else "refused"), ""
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = "" if frame.filename.endswith("model.py") else f"{Path(frame.filename).name}:{frame.lineno}"
            what = str(error).partition("): ")[2][:40] if place.startswith("errors.py") else place
            return f"{type(error).__name__} {what}", traceback.format_exc()


def main(first: int, last: int, folder: Path | None = None) -> None:
    """Try the seeds of a range; the two first failures of each kind are printed (and saved), made small."""
    seen: dict[str, int] = {}
    for seed in range(first, last):
        case = make(seed)
        kind, trace = _failure(case)
        seen[kind] = seen.get(kind, 0) + 1
        if kind in ("", "refused") or seen[kind] > 2:
            continue
        small = smallest(case, kind)
        print("=" * 40, f"seed {seed}: {kind}\n{_failure(small)[1][-900:] or trace[-900:]}", flush=True)
        print(onnx.printer.to_text(small.model)[:2500], flush=True)
        if folder is not None:
            onnx.save(small.model, folder / f"{seed}.onnx")
    print(seen)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), *map(Path, sys.argv[3:4]))
