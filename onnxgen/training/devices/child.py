"""Runs code that may crash or hang in a separate Python process."""

from __future__ import annotations

import os
import subprocess
import sys


def python(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments and this process's import path.

    Raises:
        subprocess.TimeoutExpired: it did not end within `timeout` seconds.
        OSError: it could not be started.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
