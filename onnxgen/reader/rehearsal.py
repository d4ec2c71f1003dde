"""Read a large file in a separate process first, which may crash without harm.

Protobuf's parser and onnx's shape inference are native code. Within the default limits they are trusted. If the
caller allows a file beyond them, a process with bounds on its memory and time reads and simplifies it first. Only how
that process ends counts: the caller finds errors in the file again, and reports them.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from pathlib import Path

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options

OUT_OF_MEMORY = 3
CHILD = "onnxgen.passes.rehearsed"  # the module that the child process runs


def rehearse(path: Path, options: Options) -> None:
    """Read the file in a child process with the caller's options.

    Raises:
        OnnxgenError: the process crashed, or took more memory or time than the limits allow.
    """
    limits, shown = options.limits, printable(str(path), 200)
    command = [sys.executable, "-m", CHILD]
    given = pickle.dumps((sys.path, path.absolute(), options))  # safe to unpickle: none of it comes from the file
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=4 * limits.seconds, check=False)
        code = done.returncode
    except subprocess.TimeoutExpired:
        code = -int(getattr(signal, "SIGXCPU", signal.SIGTERM))
    if code == 0:
        return
    if code == OUT_OF_MEMORY:
        what, way_out = f"{limits.memory:,} bytes of memory", "raise the limit with --limit memory=N"
    elif -code in (getattr(signal, "SIGXCPU", None), getattr(signal, "SIGKILL", None), signal.SIGTERM):
        what, way_out = f"{limits.seconds:,} seconds", "raise the limit with --limit seconds=N"
    else:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise OnnxgenError(
            f"the process that reads {shown} crashes ({how})",
            help="the file may be damaged: export or download it again",
        )
    raise OnnxgenError(f"reading {shown} takes more than {what}", help=way_out)
