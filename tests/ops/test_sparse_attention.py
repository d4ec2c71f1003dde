"""SparseAttention against onnxruntime, whose cache is written in place: it runs by a binding of memory only."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.ops.harness import assert_same, node_model, refusal, run_model, run_node

F, I32 = np.float32, np.int32
BLOCK = 16


def compressed(layouts: Any) -> list[Any]:
    """Where rows begin, and the columns of what they have, filled up with -1."""
    rows = [np.concatenate([[0], np.cumsum(layout.sum(1))]) for layout in layouts]
    columns = [np.nonzero(layout)[1] for layout in layouts]
    longest = max(map(len, columns))
    return [np.array(rows, I32), np.array([[*c, *[-1] * (longest - len(c))] for c in columns], I32)]


def drawn(draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """A prompt or a step, of rows of several lengths, with one layout or one for each of two heads."""
    rng = np.random.default_rng(draw.randrange(10**6))
    (heads, shared), size, blocks = draw.choice([(4, 2), (4, 4), (2, 1)]), draw.choice([16, 32]), draw.choice([2, 4])
    room, batch = blocks * BLOCK, draw.choice([1, 2])
    new = draw.choice([1, 7, 16, 20])
    lengths = [draw.randint(2, room) for _ in range(batch)] if new == 1 else [new] * batch

    def some(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(F)

    query: list[Any] = [some(batch, new, n * size) for n in (heads, shared, shared)]
    query = draw.choice([query, [np.concatenate(query, -1), None, None]])
    cache = [some(batch, shared, room, size) if new == 1 else np.zeros((batch, shared, room, size), F) for _ in "kv"]
    layouts = np.tril(rng.random((draw.choice([1, 2]), blocks, blocks)) < 0.5) | np.eye(blocks, dtype=bool)
    inputs = [*query, *cache, *compressed(layouts), np.array([max(lengths)], I32), np.array(lengths, I32)]
    attrs: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared, "sparse_block_size": BLOCK}
    if draw.random() < 0.5:
        angles = rng.uniform(0, 6, (room, size // 2))
        inputs += [np.cos(angles).astype(F), np.sin(angles).astype(F)]
        attrs |= {"do_rotary": 1, "rotary_interleaved": draw.randint(0, 1)}
    return inputs, attrs | ({"scale": 0.3} if draw.random() < 0.5 else {})


def in_place(model: Any, feeds: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    binding = session.io_binding()
    given = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value.copy()) for name, value in feeds.items()}
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    outputs = [o.name for o in session.get_outputs()]
    binding.bind_output(outputs[0])
    for name, cache in zip(outputs[1:], ("i3", "i4")):
        binding.bind_ortvalue_output(name, given[cache])
    session.run_with_iobinding(binding)
    return [value.numpy().copy() for value in binding.get_outputs()]


@pytest.mark.parametrize("seed", range(40))
def test_drawn(seed: int) -> None:
    inputs, attrs = drawn(random.Random(seed))
    model = node_model("SparseAttention", inputs, attrs, outputs=3, domain="com.microsoft")
    feeds = {f"i{n}": v for n, v in enumerate(inputs) if v is not None}
    expected = in_place(model, feeds)
    made = run_model(model, feeds).outputs
    lengths = inputs[8]
    for row, length in enumerate(lengths):
        if length == max(lengths):  # scores of shorter rows, onnxruntime 1.32's kernel reads elsewhere than it wrote
            assert_same(made[0][row], expected[0][row], 1e-4, 1e-4)
        for a, e in zip(made[1:], expected[1:]):  # what lies behind the last key is unspecified
            assert_same(a[row, :, :length], e[row, :, :length], 1e-5, 1e-5)


@pytest.mark.parametrize("seed", [3, 12, 43, 52, 63, 81, 89])
def test_a_shorter_row(seed: int) -> None:
    """What a row gives beside a longer one is what it gives alone."""
    inputs, attrs = drawn(random.Random(seed))
    lengths = inputs[8]
    row = int(lengths.argmin())
    alone = [x if x is None else x[row : row + 1] for x in inputs[:5]]
    alone += [*inputs[5:7], lengths[row : row + 1], lengths[row : row + 1], *inputs[9:]]
    made: list[Any] = []
    expected: list[Any] = []
    for values, into in ((inputs, made), (alone, expected)):
        model = node_model("SparseAttention", values, attrs, outputs=3, domain="com.microsoft")
        feeds = {f"i{n}": v for n, v in enumerate(values) if v is not None}
        into.extend(run_model(model, feeds).outputs if into is made else in_place(model, feeds))
    assert_same(made[0][row], expected[0][0], 1e-4, 1e-4)


def test_a_query_that_sees_no_key() -> None:
    """onnxruntime gives it the mean of what lies before it."""
    inputs, attrs = drawn(random.Random(1))
    inputs[5], inputs[6] = np.zeros_like(inputs[5]), np.full_like(inputs[6], -1)
    model = node_model("SparseAttention", inputs, attrs, outputs=3, domain="com.microsoft")
    feeds = {f"i{n}": v for n, v in enumerate(inputs) if v is not None}
    assert_same(run_model(model, feeds).outputs[0], in_place(model, feeds)[0], 1e-4, 1e-4)


def test_blocks_are_no_weights() -> None:
    inputs, attrs = drawn(random.Random(0))
    kwargs: dict[str, Any] = {"outputs": 3, "domain": "com.microsoft", "compare": False}
    ran = run_node("SparseAttention", inputs, attrs, initializers={5, 6, 9, 10} & set(range(len(inputs))), **kwargs)
    assert list(ran.model.parameters()) == []


def test_refused() -> None:
    inputs, attrs = drawn(random.Random(0))
    assert "num_heads 4 is not a multiple of kv_num_heads 3" in refusal(
        "SparseAttention", inputs, attrs | {"kv_num_heads": 3}, domain="com.microsoft", outputs=3
    )
