"""`python -m onnxgen.passes.rehearsed`: read and simplify one file within limits of memory and time.

`reader.rehearsal` starts it and passes the path and the options through standard input.
"""

from __future__ import annotations

import pickle
import sys

from onnxgen.errors import OnnxgenError
from onnxgen.reader.parsing import OUT_OF_MEMORY


def _limit(memory: int, seconds: int) -> None:
    try:
        import resource
    except ImportError:  # Windows: only the caller's clock limits the process
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _main() -> int:
    places, path, options = pickle.load(sys.stdin.buffer)
    sys.path[:] = places
    from onnxgen.passes import simplify
    from onnxgen.plugins import plugged
    from onnxgen.reader import read

    _limit(options.limits.memory, options.limits.seconds)
    try:
        with plugged(options):
            simplify(read(path, options, rehearsed=True), options)
    except OnnxgenError:  # the caller will get the same error
        return 0
    except MemoryError:
        return OUT_OF_MEMORY
    return 0


if __name__ == "__main__":
    sys.exit(_main())
