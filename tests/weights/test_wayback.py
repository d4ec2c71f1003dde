"""Sources against numpy, and their way back against the tensors they were made of."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxgen.errors import OnnxgenError
from onnxgen.weights.provenance import Source, concat, rebuild, way_back
from onnxgen.weights.stored import Copied, note_copy, twins
from tests.support.tiers import drawn

F32, F64, BF16 = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16


def numbers(*shape: int, dtype: Any = np.float32, start: int = 0) -> np.ndarray:
    return (np.arange(math.prod(shape)) + start).reshape(shape).astype(dtype)


def source(array: np.ndarray, name: str = "w") -> Source:
    return Source.of(ir.tensor(array), name)


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(want).tobytes()


def record(keys: Mapping[str, Source]) -> dict[str, Any]:
    """The record as it comes out of a file."""
    loaded: dict[str, Any] = json.loads(json.dumps(way_back(keys)))
    return loaded


def goes_back(keys: Mapping[str, Source], originals: Mapping[str, np.ndarray]) -> dict[str, Any]:
    made, found = {key: s.numpy() for key, s in keys.items()}, record(keys)
    for name, want in originals.items():
        same(rebuild(found, name, made.__getitem__), want)
    return found


# ---- gates, heads and other shuffles --------------------------------------------------------------------------------


def test_unshuffling_lstm_gates_gives_the_weight_itself() -> None:
    h, w = 5, numbers(20, 3)
    s = source(w)
    onnx_order = concat([s.slice(0, 0, h), s.slice(0, 3 * h, 4 * h), s.slice(0, h, 3 * h)], 0).unsqueeze(0)
    assert not onnx_order.is_identity
    same(onnx_order.numpy(), np.concatenate([w[:5], w[15:], w[5:15]])[None])
    i, o, f, c = (onnx_order.squeeze(0).slice(0, g * h, (g + 1) * h) for g in range(4))
    torch_order = concat([i, f, c, o], 0)
    assert torch_order.is_identity and torch_order.names == ("w",)
    assert goes_back({"lstm.weight_ih_l0": torch_order}, {"w": w}) == {"w": "lstm.weight_ih_l0"}


@pytest.mark.parametrize("order", [(0, 3, 1, 2), (2, 1, 0, 3), (1, 0, 3, 2)])
@pytest.mark.parametrize("h", [1, 2, 7])
def test_gates_of_both_directions_in_every_order(order: tuple[int, ...], h: int) -> None:
    w = numbers(2, 4 * h, 3)
    keys = {}
    for direction, suffix in enumerate(("", "_reverse")):
        one = source(w).slice(0, direction, direction + 1).squeeze(0)
        keys["weight_ih_l0" + suffix] = concat([one.slice(0, g * h, (g + 1) * h) for g in order], 0)
        gates = [w[direction, g * h : (g + 1) * h] for g in order]
        same(keys["weight_ih_l0" + suffix].numpy(), np.concatenate(gates))
    goes_back(keys, {"w": w})


def test_gru_bias_packs_two_keys() -> None:
    h = 4
    b = source(numbers(1, 6 * h), "B").squeeze(0)
    keys = {}
    for key, begin in (("bias_ih_l0", 0), ("bias_hh_l0", 3 * h)):
        z, r, n = (b.slice(0, begin + g * h, begin + (g + 1) * h) for g in range(3))
        keys[key] = concat([r, z, n], 0)
    found = goes_back(keys, {"B": numbers(1, 6 * h)})
    assert "partial" not in found["B"] and {part["key"] for part in found["B"]["parts"]} == set(keys)


def test_several_tensors_make_one_key() -> None:
    parts = {name: numbers(3, 5, start=100 * i) for i, name in enumerate(("q", "k", "v"))}
    packed = concat([source(a, name) for name, a in parts.items()], 0)
    assert packed.names == ("q", "k", "v")
    found = goes_back({"in_proj_weight": packed}, parts)
    assert found["k"]["parts"] == [{"key": "in_proj_weight", "slice": [[3, 6], [0, 5]], "size": [15], "stride": [1]}]


def test_heads_interleaved_with_qkv() -> None:
    """(heads, 3, size) rows, as GPT-NeoX packs them, taken apart and put together again."""
    heads, size, width = 4, 3, 6
    w = numbers(heads * 3 * size, width)
    split = source(w).reshape((heads, 3, size, width)).transpose((1, 0, 2, 3))
    keys = {key: split.slice(0, i, i + 1).reshape((heads * size, width)) for i, key in enumerate("qkv")}
    same(keys["k"].numpy(), w.reshape(heads, 3, size, width)[:, 1].reshape(-1, width))
    assert all(len(s.pieces) == 1 for s in keys.values())
    goes_back(keys, {"w": w})
    again = concat([s.reshape((heads, 1, size, width)) for s in keys.values()], 1).reshape(w.shape)
    assert again.is_identity


def test_transposed_linear_and_its_undoing() -> None:
    w = numbers(784, 10)
    s = source(w).transpose()
    assert s.shape == (10, 784) and not s.is_identity and s.transpose().is_identity
    assert not s.numpy().flags.owndata, "a view is enough"
    part = {"key": "fc.weight", "size": [10, 784], "stride": [1, 10]}
    assert goes_back({"fc.weight": s}, {"w": w}) == {"w": {"shape": [784, 10], "dtype": "FLOAT", "parts": [part]}}


# ---- what is shared, and what is left out ---------------------------------------------------------------------------


def test_a_shared_tensor_lists_every_key_and_the_first_one_counts() -> None:
    w = numbers(4, 3)
    keys = {"embed.weight": source(w), "head.weight": source(w).transpose(), "again": source(w)}
    found = record(keys)
    first, second, third = found["w"]
    assert first == "embed.weight" and second["parts"][0]["key"] == "head.weight" and third == "again"
    trained = {"embed.weight": w + 1, "head.weight": w.T + 2, "again": w}
    same(rebuild(found, "w", trained.__getitem__), w + 1)
    same(rebuild(found, "w", trained.__getitem__, entry=1), w + 2)
    with pytest.raises(OnnxgenError, match="does not say how 'w' is rebuilt"):
        rebuild(found, "w", trained.__getitem__, entry=3)


def test_copies_that_folding_made_get_what_was_trained_too() -> None:
    """A stored tensor that has the elements of another one twice, of which a key has the second half."""
    w = numbers(6, 4)
    steps = ir.val(
        "steps", const_value=ir.tensor(np.concatenate([numbers(3, 4, start=99), w, w, numbers(7, 4, start=77)]))
    )
    note_copy(steps, [Copied("w", 12), Copied("w", 36), Copied("w", 12)])
    keys = {"half": source(w).slice(0, 3, 6), "other": source(numbers(3), "x")}
    made = twins(keys, [steps])
    assert [key for key, _ in made] == ["half", "half"]
    for _, copy in made:
        same(copy.numpy(), w[3:])
        assert copy.names == ("steps",)
    found = json.loads(json.dumps(way_back(keys, twins=made)))
    trained, original = {"half": w[3:] + 100, "other": numbers(3)}, steps.const_value.numpy()
    want = original.copy()
    want[6:9] += 100
    want[12:15] += 100
    same(rebuild(found, "steps", trained.__getitem__, original=original), want)


def test_what_no_key_holds_stays_what_the_file_has() -> None:
    w = numbers(6, 4)
    found = record({"a": source(w).slice(1, 1, 3)})
    assert found["w"]["partial"] is True
    with pytest.raises(OnnxgenError, match="original"):
        rebuild(found, "w", lambda key: w[:, 1:3])
    want = w.copy()
    want[:, 1:3] += 50
    same(rebuild(found, "w", lambda key: want[:, 1:3], original=w), want)


def test_overlapping_slices_are_complete_and_the_first_wins() -> None:
    w = numbers(10)
    keys = {"a": source(w).slice(0, 0, 7), "b": source(w).slice(0, 3, 10)}
    found = goes_back(keys, {"w": w})
    assert "partial" not in found["w"]
    changed = {"a": w[:7] + 100, "b": w[3:] + 200}
    same(rebuild(found, "w", changed.__getitem__), np.concatenate([w[:7] + 100, w[7:] + 200]))


def test_a_tensor_used_twice_in_one_key_is_not_written_twice() -> None:
    w = numbers(2, 3)
    found = goes_back({"k": concat([source(w), source(w)], 0)}, {"w": w})
    assert len(found["w"]) == 2  # the tensor, and what else holds it
    stacked = concat([source(w).slice(1, 0, 2).unsqueeze(0), source(w).slice(1, 1, 3).unsqueeze(0)], 0)
    same(stacked.numpy(), np.stack([w[:, :2], w[:, 1:]]))
    goes_back({"k": stacked}, {"w": w})


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two different"):
        way_back({"a": source(numbers(2)), "b": source(numbers(3))})


def test_size_that_changed_is_refused() -> None:
    found = record({"a": source(numbers(4, 2)).transpose()})
    with pytest.raises(OnnxgenError, match="size"):
        rebuild(found, "w", lambda key: numbers(2, 5))


# ---- dtypes ---------------------------------------------------------------------------------------------------------


def test_lossless_casts_undo_each_other_and_lossy_ones_are_marked() -> None:
    w = numbers(6)
    assert source(w).cast(F64).cast(F32).is_identity
    assert not source(w).cast(BF16).cast(F32).is_identity
    assert "lossy" not in record({"a": source(w).cast(F64)})["w"]["parts"][0]
    assert record({"a": source(w).cast(BF16)})["w"]["parts"][0]["lossy"] is True
    same(source(w).cast(BF16).numpy(), w.astype(ml_dtypes.bfloat16))
    goes_back({"a": source(w).cast(F64).unsqueeze(0)}, {"w": w})
    assert record({"a": source(numbers(3, dtype=np.int64)).cast(F64)})["w"]["parts"][0]["lossy"] is True


SPECIAL = {
    "float32": np.array([0x7F800001, 0xFFC12345, 0x80000000, 0xFF800000, 1], np.uint32).view(np.float32),
    "float64": np.array([0x7FF0000000000001, 0x8000000000000000], np.uint64).view(np.float64),
    "float16": np.arange(1 << 16, dtype=np.uint16).view(np.float16),
    "bfloat16": np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2),
    "bool": np.array([True, False]),
    "int64": np.array([-(2**63), 2**63 - 1]),
    "complex64": np.array([1 - 0j, -0.0 + 1j], np.complex64),
}


@pytest.mark.parametrize("array", SPECIAL.values(), ids=SPECIAL.keys())
def test_every_bit_survives_rearranging(array: np.ndarray) -> None:
    w = np.stack([array, array[::-1]])
    goes_back({"a": source(w).transpose().slice(0, 0, 1), "b": source(w).transpose().slice(0, 1, None)}, {"w": w})


@pytest.mark.parametrize(
    ("dtype", "carrier"),
    [("int4", np.int8), ("uint4", np.uint8), ("float4_e2m1fn", ml_dtypes.float8_e4m3fn)],
)
def test_types_that_travel_wider_come_back(dtype: str, carrier: Any) -> None:
    values = np.arange(16, dtype=np.uint8)
    w = values.view(ml_dtypes.float4_e2m1fn) if "float" in dtype else values.astype(np.int8).astype(dtype)
    s = source(w.reshape(2, 8))
    assert s.nbytes == 16 and s.is_identity
    got = rebuild(record({"a": s}), "w", lambda key: s.numpy().astype(carrier))
    assert got.dtype == w.dtype
    same(got.view(np.uint8), w.reshape(2, 8).view(np.uint8))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1), (1,)])
def test_scalars_and_tensors_without_elements(shape: tuple[int, ...]) -> None:
    w = numbers(*shape)
    assert goes_back({"a": source(w)}, {"w": w}) == {"w": "a"}
    moved = source(w).reshape((1, *shape)).transpose()
    same(moved.numpy(), w.reshape((1, *shape)).T)
    goes_back({"a": moved}, {"w": w})


def test_external_tensors_are_not_copied(tmp_path: Path) -> None:
    w = numbers(6, 4)
    (tmp_path / "w.bin").write_bytes(b"12" + w.tobytes())
    tensor = ir.ExternalTensor("w.bin", 2, w.nbytes, F32, shape=ir.Shape(w.shape), name="w", base_dir=tmp_path)
    s = Source.of(tensor, "w")
    assert s.is_identity and np.shares_memory(s.numpy(), tensor.numpy())
    turned = s.transpose()
    array = turned.numpy()
    assert np.shares_memory(array, tensor.numpy())
    turned.release()
    same(np.ascontiguousarray(array), np.ascontiguousarray(w.T))  # its mapping lives as long as it does
    same(s.numpy(), w)


# ---- anything at all -------------------------------------------------------------------------------------------------


def test_reshaping_across_factors_cuts_into_blocks_and_heals() -> None:
    w = numbers(4, 6)
    for made, want in (
        (source(w).transpose().reshape((4, 6)), w.T.reshape(4, 6)),
        (source(w).slice(0, 1, 4).reshape((9, 2)).slice(0, 2, 7).reshape((5, 2)), w[1:4].reshape(9, 2)[2:7]),
        (source(w).transpose().reshape((8, 3)).transpose(), w.T.reshape(8, 3).T),
    ):
        same(made.numpy(), want)
    assert source(w).transpose().reshape((4, 6)).reshape((6, 4)).transpose().is_identity
    beside = concat([source(w), source(w, "v")], 1).reshape((48,))
    same(beside.numpy(), np.concatenate([w, w], 1).reshape(-1))
    assert len(beside.reshape((4, 12)).pieces) == 2


def test_shredding_is_refused_and_not_endless() -> None:
    tensor = ir.tensor(np.zeros((65537, 65539 // 1000), np.float32))
    with pytest.raises(OnnxgenError, match="tears"):
        Source.of(tensor, "w").transpose().reshape((65537, 65))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.transpose((0, 0)),
        lambda s: s.reshape((5, 5)),
        lambda s: s.squeeze(0),
        lambda s: s.unsqueeze(4),
        lambda s: s.slice(2, 0, 1),
        lambda s: concat([s, s.transpose()], 0),
        lambda s: concat([s, s.cast(F64)], 0),
        lambda s: concat([s, s.unsqueeze(2)], 0),
    ],
)
def test_steps_that_do_not_fit_are_errors(wrong: Any) -> None:
    with pytest.raises(ValueError):
        wrong(source(numbers(3, 4)))


def test_strings_are_no_weights() -> None:
    with pytest.raises(OnnxgenError, match="STRING"):
        Source.of(ir.StringTensor([b"a"], shape=ir.Shape([1])), "s")


def factorise(data: st.DataObject, size: int) -> tuple[int, ...]:
    dims = []
    while len(dims) < 4 and size > 1:
        dims.append(data.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0])))
        size //= dims[-1]
    return (*dims, size) if size > 1 or not dims else tuple(dims)


def step(data: st.DataObject, made: Source, array: np.ndarray) -> list[tuple[Source, np.ndarray]]:
    """One random step; taking a tensor apart gives several, which together still hold every element."""
    kind = data.draw(st.sampled_from(["transpose", "reshape", "unsqueeze", "split", "shuffle", "cast"]))
    if kind == "transpose":
        perm = data.draw(st.permutations(range(array.ndim)))
        return [(made.transpose(perm), array.transpose(perm))]
    if kind == "reshape":
        shape = factorise(data, array.size)
        return [(made.reshape(shape), array.reshape(shape))]
    if kind == "unsqueeze" or not array.ndim:
        axis = data.draw(st.integers(0, array.ndim))
        return [(made.unsqueeze(axis), np.expand_dims(array, axis))]
    if kind == "cast":
        dtype = data.draw(st.sampled_from([F32, F64]))
        return [(made.cast(dtype), array.astype(dtype.numpy()))]
    axis = data.draw(st.integers(0, array.ndim - 1))
    inner = data.draw(st.lists(st.integers(0, array.shape[axis]), max_size=3))
    cuts = sorted({0, array.shape[axis], *inner})
    runs = data.draw(st.permutations(list(itertools.pairwise(cuts))))
    taken = [(made.slice(axis, a, b), np.take(array, range(a, b), axis)) for a, b in runs]
    if kind == "split":
        return taken
    return [(concat([s for s, _ in taken], axis), np.concatenate([a for _, a in taken], axis))]


@settings(max_examples=drawn(300), deadline=None)
@given(st.data())
def test_random_chains_agree_with_numpy_and_go_back(data: st.DataObject) -> None:
    shapes = st.lists(st.integers(1, 6), max_size=3).map(tuple)
    originals = {name: numbers(*data.draw(shapes), start=1000 * i) for i, name in enumerate("wv")}
    work = [(source(array, name), array) for name, array in originals.items()]
    for _ in range(data.draw(st.integers(0, 6))):
        if data.draw(st.booleans()) and len(work) > 1:  # join two flat
            (a, x), (b, y) = work.pop(), work.pop(0)
            flat = [a.cast(F32).reshape((-1,)), b.cast(F32).reshape((-1,))]
            work.append((concat(flat, 0), np.concatenate([x.astype("f4").reshape(-1), y.astype("f4").reshape(-1)])))
        else:
            chosen = work.pop(data.draw(st.integers(0, len(work) - 1)))
            work += step(data, *chosen)
    for made, array in work:
        assert made.shape == array.shape and made.nbytes == array.nbytes
        same(made.numpy(), array)
    goes_back({f"key{i}": made for i, (made, _) in enumerate(work)}, originals)


@settings(max_examples=drawn(100), deadline=None)
@given(st.data())
def test_undoing_a_shuffle_always_ends_in_the_identity(data: st.DataObject) -> None:
    made = source(numbers(*data.draw(st.tuples(st.integers(2, 8), st.integers(1, 4), st.integers(1, 4)))))
    undo = []
    for _ in range(data.draw(st.integers(1, 4))):
        axis = data.draw(st.integers(0, 2))
        cuts = sorted({0, made.shape[axis], *data.draw(st.lists(st.integers(0, made.shape[axis]), max_size=4))})
        runs = list(itertools.pairwise(cuts))
        order = data.draw(st.permutations(range(len(runs))))
        ends = np.cumsum([0] + [runs[i][1] - runs[i][0] for i in order])
        back = [(axis, int(ends[order.index(i)]), int(ends[order.index(i) + 1])) for i in range(len(runs))]
        made = concat([made.slice(axis, *runs[i]) for i in order], axis)
        undo.append(back)
    for back in reversed(undo):
        made = concat([made.slice(*one) for one in back], back[0][0])
    assert made.is_identity
