"""Which tensors are one parameter by the names that a file has of them, without a file."""

from __future__ import annotations

import ast

import numpy as np
import onnx_ir as ir

from onnxgen.code.module_def import Member
from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import PARAMETER_NAMES
from onnxgen.lowering.sharing import Place, Sharing, _names_at
from onnxgen.options import Options
from onnxgen.weights.provenance import Source

ONE, OTHER = frozenset({"a.w"}), frozenset({"b.w"})
NAMES: dict[ModulePath, frozenset[str]] = {("a",): ONE, ("b",): OTHER, ("c", "d"): ONE, ("c", "e", "f"): ONE}


def sharing(names: dict[str, dict[ModulePath, frozenset[str]]], **options: str) -> Sharing:
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=8)
    PARAMETER_NAMES.set(model, names)
    return Sharing(model, Options(**options))  # type: ignore[arg-type]


def stored(name: str, *shape: int) -> Source:
    values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    return Source.of(ir.tensor(values, name=name), name)


def test_names_are_those_of_the_nearest_scope() -> None:
    """The module itself, then those around it, then those inside it."""
    for path, wanted in (
        (("a",), ONE),
        (("b",), OTHER),
        (("b", "x", "y"), OTHER),
        (("c",), ONE),
        (("c", "e"), ONE),
        (("c", "x"), frozenset()),
        (("z",), frozenset()),
        ((), ONE | OTHER),
    ):
        assert _names_at(NAMES, path) == wanted, path


def test_a_tensor_is_apart_where_it_has_another_name() -> None:
    source = stored("w", 3, 3)
    found, untied = sharing({"w": NAMES}), sharing({"w": NAMES}, untied="w")
    for one, other, apart in (
        (("a",), ("b",), True),
        (("a", "x"), ("b",), True),
        (("c",), ("b",), True),
        (("a",), ("c",), False),
        (("a",), ("z",), False),
        (("b",), ("b",), False),
        (("z",), ("z",), False),
    ):
        assert found.apart([source], one, other) is apart, (one, other)
        assert untied.apart([source], one, other) is (one != other), (one, other)


def member(path: ModulePath, *tensors: Source) -> Member:
    keys = dict(zip(("weight", "bias"), tensors, strict=False))
    return Member(path, ast.Constant(None), "module", keys)


def test_ties_are_those_of_the_modules_that_are_there() -> None:
    """Whether a tensor without a name is a copy tells the other one of its module, if that has a name in each."""
    paths = ("layers", "0"), ("layers", "1")
    weight, bias, more = stored("w", 3, 3), stored("bias", 3), stored("other", 3)
    each = {"bias": {path: frozenset({".".join(path)}) for path in paths}}
    one = {"bias": {path: frozenset({"layers.0"}) for path in paths}}
    for names, tensors, keys in (
        (each, [(weight, bias), (weight, bias)], []),
        (one, [(weight, bias), (weight, bias)], ["weight", "bias"]),
        ({}, [(weight, bias), (weight, bias)], ["weight", "bias"]),
        (each, [(weight, more), (weight, bias)], ["weight"]),
        (each, [(weight,), (weight, bias)], ["weight"]),
    ):
        members = [member(path, *found) for path, found in zip(paths, tensors, strict=True)]
        assert [tie.tied_key for tie in sharing(names).ties(members)] == keys, (names, tensors)
    moved = sharing(each)
    members = [member(path, weight, bias) for path in (("fc",), ("fc",))]
    assert moved.read_inside(members, [], []) == []
    for found, path in zip(members, paths, strict=True):
        found.path = path
    assert moved.ties(members) == []


def test_a_module_reads_an_equal_vector_of_one_inside() -> None:
    """If the file names it so. Vectors of equal numbers are equal by chance; others are one."""
    source, found = stored("block.norm.weight", 3), sharing({})
    inside, outside = member(("block", "norm"), source), member(("block",), source)
    for name, one, other, plain, same in (
        ("block.norm.weight", inside, outside, True, True),
        ("block.norm.weight", outside, inside, True, True),
        ("block.weight", inside, outside, True, False),
        ("other.norm.weight", inside, outside, True, False),
        ("weight", inside, outside, True, False),
        ("weight", inside, outside, False, True),
        ("block.norm.weight", member(("other",)), inside, True, False),
    ):
        a, b = (Place(m, "weight", stored(name, 3), m.path) for m in (one, other))
        assert found._by_home(a, b, plain) is same, (name, one.path, other.path)
