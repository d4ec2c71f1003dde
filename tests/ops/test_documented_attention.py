"""Attention for which onnxruntime has no kernel on CPUs, against what its documentation says, in numpy.

None of these was run against onnxruntime.
"""

from __future__ import annotations

import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import refusal

# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op, out", [
    ("ConvStateReplay", "keep the state in Python"),
    ("GatedDeltaNetStateReplay", "keep the state in Python"),
    ("SpeculativePrefixCommit", "keep the state in Python"),
    ("SparseAttentionIndexer", "without a cache"),
    ("PackedSparseAttentionIndexer", "without a cache"),
    ("PackedSparseAttentionIndexerMerge", "without a cache"),
    ("SparsePagedAttention", "without a cache"),
])  # fmt: skip
def test_a_state_of_a_server_is_refused(op: str, out: str) -> None:
    text = refusal(op, [floats(1)], domain="com.microsoft")
    assert f"com.microsoft.{op}" in text and "node" in text and out in text, text
