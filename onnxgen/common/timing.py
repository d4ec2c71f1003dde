"""Time measurement of a generation: seconds for each stage, without overlap."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

STAGES = ("read", "simplify", "lower", "structure", "render", "validate", "write")  # in order, as progress shows them
# Timed inside the stages but not counted there: imports of modules, reading, hashing and writing of weights, black.
IMPORTS, WEIGHTS, FORMAT = "imports", "weights", "format"


class _Clock:
    """Adds up seconds by stage. Time in a nested stage does not count for the outer one."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.within, self.since = seconds, [""], time.perf_counter()

    def turn(self) -> None:
        """Add the time since the last call to the current stage."""
        now = time.perf_counter()
        if stage := self.within[-1]:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.since
        self.since = now


_running: ContextVar[_Clock | None] = ContextVar("running", default=None)


@contextmanager
def recorded(seconds: dict[str, float]) -> Iterator[None]:
    """Let every `stage` inside add to `seconds`."""
    token = _running.set(_Clock(seconds))
    try:
        yield
    finally:
        _running.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Count the time inside to this stage of the running generation, if any."""
    clock = _running.get()
    if clock is None:
        yield
        return
    clock.turn()
    clock.within.append(name)
    try:
        yield
    finally:
        clock.turn()
        clock.within.pop()


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector in the block. The graph and the syntax trees live until the end, and each
    collection would walk all of them: half the time of a large generation.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
