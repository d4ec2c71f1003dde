"""`python measured.py SECONDS COMMAND…` runs a command; the last line it prints is what that cost, as JSON.

A process of its own, and a small one: Linux counts the memory of the process that forked among the child's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main(seconds: float, command: list[str]) -> None:
    process = subprocess.Popen(command)
    deadline = time.monotonic() + seconds
    while True:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            process.kill()
            deadline = float("inf")
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps([used.ru_utime + used.ru_stime, memory, process.returncode]), flush=True)


main(float(sys.argv[1]), sys.argv[2:])
