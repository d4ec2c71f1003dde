"""Hypothesis strategies for valid graphs: what must be made, and never refused."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from tests.support import graph_layers
from tests.support.graphs import Case


def graphs(most_steps: int = 12) -> st.SearchStrategy[Case]:
    """Random graphs of up to so many steps, which shrink to fewer."""
    return st.builds(graph_layers.make, st.integers(0, 2**32 - 1), st.integers(1, most_steps))


def mutated(data: bytes, other: bytes) -> st.SearchStrategy[bytes]:
    """Mutations of a file, with parts of another."""
    from tests.fuzz.mutate import mutate

    seeds = st.integers(
        0, 2**32 - 1
    )  # a mutation passes over errors, and would pass over those of Hypothesis's own draws
    return st.builds(mutate, seeds.map(random.Random), st.just(data), st.just(other))
