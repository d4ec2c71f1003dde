"""The random generators that test modules keep: each test begins with them as they were when all were imported.

So what a test draws depends on no test before it, nor on which fixtures it is the first to use.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

_NOTED = list[tuple[Any, Any]]()  # each generator, and its state


def note() -> None:
    """Note the generators of all modules of tests, as they are now."""
    _NOTED[:] = {id(generator): (generator, state) for generator, state in _found()}.values()


def _found() -> Iterator[tuple[Any, Any]]:
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "tests"]
    for value in [value for module in modules for value in vars(module).values()]:
        if isinstance(value, random.Random):
            yield value, value.getstate()
        elif isinstance(value, np.random.Generator):
            yield value, value.bit_generator.state


def begin() -> None:
    """Give each generator the state that was noted."""
    for generator, state in _NOTED:
        if isinstance(generator, random.Random):
            generator.setstate(state)
        else:
            generator.bit_generator.state = state
