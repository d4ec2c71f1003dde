"""A Python process of its own, for what may crash or hang."""

from __future__ import annotations

import os
import subprocess
import sys


def python(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run this Python, which can import there what can be imported here.

    Raises:
        subprocess.TimeoutExpired: it was not done in `timeout` seconds.
        OSError: it could not be started.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
