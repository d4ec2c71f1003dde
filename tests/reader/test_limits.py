"""Sizes past which a file is refused: each says how to raise it. What asks for too much is bounded."""

from __future__ import annotations

import dataclasses
import itertools
import re
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as oh
from onnx.numpy_helper import from_array

from onnxgen import Limits, OnnxgenError, Options, generate
from onnxgen.cli import run as command
from onnxgen.common.limits import NAMES
from onnxgen.pipeline import build
from onnxgen.reader import parsing, read
from onnxgen.reader.parsing import survey
from tests.conftest import ROOT
from tests.support.clean_source import assert_safe
from tests.support.reader_models import (
    ADD,
    RELU,
    Write,
    branch,
    conditional,
    model,
    node,
    refusal,
    value,
    weight,
    write,
)

__all__ = ["write"]  # a fixture


def numbers(name: str, *values: int) -> TensorProto:
    return from_array(np.array(values, np.int64), name)


def chain(count: int) -> onnx.ModelProto:
    nodes = [node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    nodes[0].input[0], nodes[-1].output[0] = "x", "y"
    return model(nodes)


def nested(depth: int) -> onnx.ModelProto:
    inner = branch([node("Neg", ["x"], ["b0"])], "b0")
    for i in range(1, depth):
        both = node("If", ["c"], [f"b{i}"], then_branch=inner, else_branch=branch([node("Abs", ["x"], ["q"])], "q"))
        inner = branch([both], f"b{i}")
    return conditional(inner)


def sparse(*dims: int) -> onnx.ModelProto:
    made = model([node("Add", ["x", "w"])])
    made.graph.sparse_initializer.append(
        oh.make_sparse_tensor(from_array(np.ones(1, np.float32), "w"), numbers("i", 0), list(dims))
    )
    return made


def doubling(times: int) -> onnx.ModelProto:
    """A local function that calls another twice, and so on: 2 ** times nodes."""
    opsets = [oh.make_opsetid("", 17), oh.make_opsetid("f", 1)]

    def function(name: str, nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
        return oh.make_function("f", name, ["a"], ["b"], nodes, opsets)

    made = [function("F0", [node("Neg", ["a"], ["b"])])]
    for inner, name in itertools.pairwise(f"F{i}" for i in range(times + 1)):
        calls = [node(inner, ["a"], ["t"], domain="f"), node(inner, ["t"], ["b"], domain="f")]
        made.append(function(name, calls))
    return model([node(f"F{times}", domain="f", name="call")], opsets={"": 17, "f": 1}, functions=made)


def text(length: int) -> onnx.ModelProto:
    return model([node("Constant", [], ["t"], name="words", value_string="a" * length), RELU])


CASES: dict[str, tuple[onnx.ModelProto, int, str]] = {
    "fields": (chain(3), 30, "the file has more than 30 fields; the limit is 30"),
    "nodes": (chain(9), 8, "the file has 9 nodes; the limit is 8"),
    "initializers": (model([ADD], [weight("w", 4), weight("v", 4)]), 1, "the file has 2 initializers; the limit is 1"),
    "depth": (nested(5), 4, r"node b\d \(If-17\): graphs are nested 5 deep; the limit is 4"),
    "rank": (model([ADD], [weight("w", 1, 1, 1, 4)]), 3, "initializer w: the tensor has 4 dims; the limit is 3"),
    "name_length": (model([node("Relu", name="n" * 10)]), 9, r"node n+ \(Relu-17\): the name, .* has 10 characters"),
    "text_length": (
        text(101),
        100,
        r"node words \(Constant-17\): attribute value_string has 101 bytes; the limit is 100",
    ),
    "fold_elements": (sparse(3, 4), 11, "initializer w: the tensor is sparse, and has 12 elements when dense"),
    "written": (
        model([node("Concat", ["w"] * 8, ["ww"], axis=1), node("MatMul", ["x", "ww"])], [weight("w", 4, 4000)]),
        1,
        r"the weights have 512,000 bytes; the size of the file|computed from stored tensors only, has 512,000 bytes",
    ),
    "source_length": (chain(9), 20, r"the source has at least \d+ characters; the limit is 20"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_limit_says_how_to_raise_it(name: str, write: Write, tmp_path: Path) -> None:
    proto, limit, says = CASES[name]
    path, out = write(proto), tmp_path / "net.py"
    with pytest.raises(OnnxgenError) as caught:
        generate(path, out, Options(limits=Limits(**{name: limit})))
    message = str(caught.value)
    assert re.search(says, message) and not out.exists()
    way_out = re.search(rf"\(raise it with --limit ({name}=\d+)\)", message)
    assert way_out is not None
    assert command([str(path), "-o", str(out), "-q", "--limit", way_out[1]]) == 0 or name == "source_length"
    generate(path, out, Options())


def test_the_command_and_the_project_take_the_same(
    tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(chain(3))
    assert command([str(path), "-o", str(tmp_path / "net.py"), "--limit", "nodes=2"]) == 2
    for wrong, says in {
        "nodes": "'nodes' is not like nodes=500000; there are fields, nodes,",
        "nodes=x": "'nodes=x' is not like nodes=500000",
        "nodes=1__0": "is not like nodes=500000",
        "nodes=-1": "--limit nodes=-1: the number must be whole, from 1 to",
        "knots=3": "there are fields, nodes,",
        "=3": "there are fields, nodes,",
    }.items():
        assert command([str(path), "--limit", wrong]) == 2
        assert says in capsys.readouterr().err
    for bad in ({"nodes": 0}, {"nodes": True}, {"depth": 101}, {"nodes": 2**63}):
        with pytest.raises(OnnxgenError, match=f"--limit {next(iter(bad))}="):
            Limits(**bad)
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.onnxgen]\nlimit = {nodes = 2}\n[[tool.onnxgen.models]]\nsource = "model.onnx"\n')
    assert command(["build", str(tmp_path)]) == 2
    project.write_text(project.read_text().replace("2", "3"))
    assert command(["build", str(tmp_path)]) == 0
    project.write_text(project.read_text().replace("nodes", "knots"))
    assert command(["build", str(tmp_path)]) == 2


def test_the_page_has_every_limit() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", page, re.MULTILINE))
    assert rows == {field.name: f"{field.default:,}" for field in dataclasses.fields(Limits)}
    assert tuple(rows) == NAMES


# ---- what asks for too much ------------------------------------------------------------------------------------------

HUGE = 2**40
X = value("x", [2, 3, 4])
BOMBS: dict[str, onnx.ModelProto] = {
    "ConstantOfShape": model(
        [node("ConstantOfShape", ["n"], ["k"]), node("Add", ["x", "k"])], [numbers("n", HUGE, HUGE)]
    ),
    "Expand": model([node("Expand", ["x", "n"])], [numbers("n", HUGE, 2, 3, 4)]),
    "Expand of a constant": model(
        [node("Expand", ["one", "n"], ["k"]), node("Add", ["x", "k"])], [numbers("one", 1), numbers("n", HUGE, 1)]
    ),
    "Tile": model(
        [node("Tile", ["one", "n"], ["k"]), node("Cast", ["k"], ["f"], to=1), node("Add", ["x", "f"])],
        [numbers("one", 1), numbers("n", HUGE)],
    ),
    "Range": model(
        [node("Range", ["a", "n", "o"], ["k"]), node("Cast", ["k"], ["f"], to=1), node("Add", ["x", "f"])],
        [from_array(np.array(i), name) for name, i in (("a", 0), ("n", HUGE), ("o", 1))],
    ),
    "OneHot": model(
        [node("OneHot", ["i", "n", "v"], ["k"]), node("Cast", ["k"], ["f"], to=1), node("Add", ["x", "f"])],
        [numbers("i", 1), numbers("n", HUGE), numbers("v", 0, 1)],
    ),
    "Reshape to negative": model([node("Reshape", ["x", "n"])], [numbers("n", -1, -2)]),
    "Reshape to two unknown": model([node("Reshape", ["x", "n"])], [numbers("n", -1, -1)]),
    "Pad": model([node("Pad", ["x", "n"])], [numbers("n", *[HUGE] * 6)]),
    "Resize": model([node("Resize", ["x", "", "", "n"])], [numbers("n", HUGE, HUGE, HUGE)]),
    "Split": model([node("Split", ["x", "n"])], [numbers("n", HUGE)]),
    "squares of a dim": model(
        [
            node("Shape", ["x"], ["s0"]),
            *(node("Mul", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(60)),
            node("ConstantOfShape", ["s60"], ["y"]),
        ],
        inputs=[value("x", ["a", "b"])],
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_asks_for_too_much_costs_little(name: str, write: Write, tmp_path: Path) -> None:
    """Made, to be computed by who runs it, or refused; either way at once, and in little memory."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        made: Any = build(write(BOMBS[name]), Options(), tmp_path / "net.py")
        assert_safe(made.source)
    except OnnxgenError as error:
        assert all(problem.node or problem.op for problem in error.problems), error
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KB


def test_a_loop_of_huge_trip_count_is_not_unrolled(write: Write, tmp_path: Path) -> None:
    body = oh.make_graph(
        [node("Neg", ["h"], ["h2"]), node("Identity", ["go"], ["go2"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("h")],
        [value("go2", [], TensorProto.BOOL), value("h2", None)],
    )
    count = from_array(np.array(2**31), "m")
    made = build(write(model([node("Loop", ["m", "", "x"], body=body)], [count])), Options(), tmp_path / "net.py")
    assert made.source.count("\n") < 120 and str(2**31) in made.source


@pytest.mark.parametrize(("times", "nodes"), [(10, "1,024"), (40, "1,099,511,627,776")])
def test_functions_that_double(times: int, nodes: str, write: Write) -> None:
    path = write(doubling(times))
    assert f"makes {nodes} nodes; the limit is 1,000 (raise it with --limit nodes=" in refusal(
        path, Options(limits=Limits(nodes=1000))
    )
    if times == 10:
        build(path, Options(limits=Limits(nodes=1024)), Path("net.py"))


def test_many_constants_that_are_large(write: Write, tmp_path: Path) -> None:
    """Each may be computed, but not all of them: past the budget the module computes them itself."""
    count = 400
    nodes = [node("ConstantOfShape", ["n"], [f"k{i}"], value=numbers("v", i)) for i in range(count)]
    nodes += [node("Sum", [f"k{i}" for i in range(count)], ["s"]), node("Cast", ["s"], ["f"], to=1)]
    proto = model([*nodes, node("ReduceSum", ["f"], ["r"]), node("Add", ["x", "r"])], [numbers("n", 65_536)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_safe(build(write(proto), Options(limits=Limits(fold_elements=2_000_000)), tmp_path / "net.py").source)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250_000


def test_nested_loops_do_not_multiply(write: Write, tmp_path: Path) -> None:
    """What holds in every round is found by trying, which would be 5 ** 20 rounds."""
    inner, names = [node("Neg", ["x"], ["b0"])], ["b0"]
    for i in range(1, 21):
        go = node("Identity", [f"g{i}"], [f"go{i}"])
        given = [value(f"i{i}", [], TensorProto.INT64), value(f"g{i}", [], TensorProto.BOOL), value(f"h{i}", None)]
        ends = [value(f"go{i}", [], TensorProto.BOOL), value(names[-1], None)]
        body = oh.make_graph([*inner, go], f"body{i}", given, ends)
        names.append(f"b{i}")
        inner = [node("Loop", ["m", "", "x"], [names[-1]], body=body)]
    inner[0].output[0] = "y"
    began = time.process_time()
    build(write(model(inner, [from_array(np.array(2), "m")])), Options(), tmp_path / "net.py")
    assert time.process_time() - began < 10


def test_concatenations_that_double(write: Write, tmp_path: Path) -> None:
    """Weights of a gigabyte, of a file of 1 KB: refused before any of it is made."""
    nodes = [node("Concat", [f"w{i}", f"w{i}"], [f"w{i + 1}"], axis=1) for i in range(24)]
    path = write(model([*nodes, node("MatMul", ["x", "w24"])], [weight("w0", 4, 4)]))
    began = time.process_time()
    with pytest.raises(
        OnnxgenError, match=r"node .*\(Concat\): w24, computed from stored tensors only, has 1,073,741,824"
    ):
        generate(path, tmp_path / "net.py")
    assert time.process_time() - began < 5 and not (tmp_path / "net.py").exists()


def test_one_data_file_of_many_tensors(tmp_path: Path) -> None:
    """Each data file counts once, however many tensors lie in the same bytes."""
    tensors = []
    for i in range(60):
        tensor = TensorProto(name=f"w{i}", data_type=1, dims=[500_000], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="data")
        tensors.append(tensor)
    (tmp_path / "data").write_bytes(np.random.default_rng(0).normal(size=500_000).astype(np.float32).tobytes())
    nodes = [node("Add", [f"v{i}" if i else "x", f"w{i}"], [f"v{i + 1}" if i < 59 else "y"]) for i in range(60)]
    made = model(nodes, tensors, inputs=[value("x", [500_000])])
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(
        OnnxgenError, match=r"the weights have 120,000,000 bytes; .* \(raise it with --limit written=120000000"
    ):
        generate(tmp_path / "model.onnx", tmp_path / "net.py")
    generate(tmp_path / "model.onnx", tmp_path / "net.py", Options(limits=Limits(written=120_000_000)))


# ---- counted first, and read by a process of its own ----


def test_the_survey_counts_what_protobuf_finds(write: Write) -> None:
    for proto in (chain(7), nested(5), doubling(3), conditional(branch([node("Neg", ["x"], ["q"])], "q"))):
        found = survey(proto.SerializeToString(), Limits())
        assert found.nodes == len(re.findall(r"^ *op_type:", str(proto), re.MULTILINE))
        assert found.is_small
    both = survey(model([ADD], [weight("w", 4), weight("v", 4)]).SerializeToString(), Limits())
    assert both.initializers == 2
    data = nested(3).SerializeToString()
    counts = [survey(data[:end], Limits()).fields for end in range(1, len(data) + 1)]
    assert counts == sorted(counts) and counts[0] == 1  # of a part that is cut off anywhere, too


def test_empty_messages_are_counted_before_they_are_parsed(write: Write) -> None:
    """Two bytes each, of which protobuf makes 170: 4 MB of them would be 340 MB."""
    empty = b"\x0a\x00" * 2_000_000  # nodes
    size = len(empty)
    data = (
        b"\x08\x08\x3a" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21]) + empty
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "the file has 2,000,000 nodes; the limit is 250,000" in refusal(write(data))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_tensor_in_the_deepest_graph_that_is_allowed(write: Write) -> None:
    """An attribute that holds none is no graph."""
    proto = nested(3)
    inner = proto.graph
    for _ in range(3):
        inner = next(a.g for n in inner.node for a in n.attribute if a.name == "then_branch")
    constant = node("Constant", [], ["k"], value=from_array(np.ones((2, 3, 4), np.float32)))
    inner.node.insert(0, constant)
    inner.node[1].input[0] = "k"
    read(write(proto), Options(limits=Limits(depth=3)))
    assert "graphs are nested 3 deep; the limit is 2" in refusal(write(proto), Options(limits=Limits(depth=2)))


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of more than 5 nodes are past the defaults."""
    monkeypatch.setattr("onnxgen.reader.parsing.DEFAULTS", Limits(nodes=5))


def test_a_file_past_the_defaults_is_read_by_a_process_first(
    low: None, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = parsing.subprocess.run
    monkeypatch.setattr(parsing.subprocess, "run", lambda *a, **k: calls.append(real(*a, **k)) or calls[-1])
    build(write(chain(5)), Options(), tmp_path / "net.py")
    assert not calls
    build(write(chain(9)), Options(), tmp_path / "net.py")
    assert [done.returncode for done in calls] == [0]
    path = write(model([node("Relu", ["ghost"], [f"y{i}" if i else "y"]) for i in range(9)]))
    assert "ghost" in refusal(path)  # the file's own problem, not the process's


def test_a_process_that_ends_badly(
    low: None, write: Write, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What it writes is not the user's to read."""
    hungry = chain(9)
    hungry.graph.sparse_initializer.extend(sparse(2**29).graph.sparse_initializer)
    limits = Limits(memory=1_500_000_000, fold_elements=2**30)
    assert "takes more than 1,500,000,000 bytes of memory" in refusal(write(hungry), Options(limits=limits))
    path = write(chain(9))
    real = parsing.subprocess.run
    endings = {
        "kill -SEGV $$": "crashes (SIGSEGV)",
        "kill -XCPU $$": "takes more than 600 seconds -> raise the limit with --limit seconds=N",
        "exit 7": "crashes (exit code 7)",
    }
    for script, says in endings.items():
        shell = ["sh", "-c", f"echo noise; echo noise >&2; {script}"]
        monkeypatch.setattr(parsing.subprocess, "run", lambda _, shell=shell, **k: real(shell, **k))
        assert says in refusal(path)
    assert capfd.readouterr() == ("", "")
