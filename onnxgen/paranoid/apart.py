"""onnxruntime in a separate process, for kernels that may crash the process that they run in.

Those of the standard check what they are given. Others have been seen to read what is not there (`com.microsoft`'s
Attention without a bias, onnxruntime 1.31.1).
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HAS_ONNXRUNTIME = find_spec("onnxruntime") is not None  # the checker reports that it is missing
TIMEOUT_SECONDS = 60.0  # seconds that the other process has to end
CHILD = "from onnxgen.paranoid.apart import serve; serve()"


def session(model: bytes) -> Any:
    """Make an onnxruntime session that does not change the model."""
    import onnxruntime  # not above: the check that every generation makes seldom needs it

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Crashed(Exception):
    """The other process has ended unexpectedly."""


class Apart:
    """Runs models of one node each, in a process that starts with the first model."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.crashed: set[bytes] = set()

    def run(self, model: bytes, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of a model. Raises `Crashed`, or onnxruntime's error as a RuntimeError."""
        if model in self.crashed:
            raise Crashed("onnxruntime ends in a crash")
        if self.process is None:
            paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            pickle.dump((model, dict(feeds)), self.process.stdin)
            self.process.stdin.flush()
            outputs, error = pickle.load(self.process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            self.crashed.add(model)
            self.close()
            raise Crashed("onnxruntime ends in a crash") from None
        if error:
            raise RuntimeError(error)
        return list(outputs)

    def close(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            for pipe in (self.process.stdin, self.process.stdout):
                with suppress(OSError):  # the other process no longer reads what is left to write
                    assert pipe is not None
                    pipe.close()
            self.process.wait(TIMEOUT_SECONDS)
            self.process = None


APART = Apart()  # one process for all models, since it takes a second to start
atexit.register(APART.close)


def serve() -> None:
    """Run as the other process: read models and inputs from stdin, write outputs or errors to stdout, until
    stdin ends.
    """
    sessions: dict[bytes, Any] = {}
    while True:
        try:
            model, feeds = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if model not in sessions:
                sessions[model] = session(model)
            answer: tuple[Any, str] = sessions[model].run(None, feeds), ""
        except Exception as error:
            answer = None, str(error) or type(error).__name__
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()
