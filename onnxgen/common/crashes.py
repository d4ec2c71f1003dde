"""Drawn inputs with which onnxruntime ended the whole process.

Kernels of onnxruntime divide by a size of 0, or read what is not there. No handler helps then. `cli/process.py` runs
the command in a process of its own, which tells here what it tries next. If it dies, another one begins, which knows
what not to try.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Crashes:
    """What was tried, and what has crashed.

    Attributes:
        to: the file descriptor that is told; None if nobody watches this process.
        sizes: of dynamic dims, by name: those of inputs that ended a process.
    """

    to: int | None = None
    sizes: list[dict[str, int]] = field(default_factory=list)

    def trying(self, sizes: Mapping[str, int]) -> None:
        """Tell that onnxruntime is about to run inputs with these sizes."""
        if self.to is not None:
            os.write(self.to, f"{json.dumps(dict(sizes))}\n".encode())

    def has(self, sizes: Mapping[str, int]) -> bool:
        """True for sizes that have crashed, and for smaller ones: what crashes mostly is too small."""
        return any(
            sizes.keys() == known.keys() and all(sizes[name] <= known[name] for name in known) for known in self.sizes
        )


CRASHES = Crashes()
