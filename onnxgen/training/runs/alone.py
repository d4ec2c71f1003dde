"""A run alone in its folder: no second one writes there at once, and no file of other programs is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onnxgen.common.atomic import held
from onnxgen.errors import OnnxgenError
from onnxgen.training.launch import first_process
from onnxgen.training.runs.folder import BEST, CONFIG, LAST, METRICS, MODULE, RECORD

RUNNING = ".running"  # locked while a run writes to its folder
_WRITTEN = (MODULE, CONFIG, METRICS, BEST, LAST)


@contextmanager
def alone_in(out: Path, resume: bool) -> Iterator[None]:
    """Hold the folder of a run, which is made. Further processes of the run do nothing here.

    Raises:
        OnnxgenError: another process trains there, or, without `resume`, the folder has files that no run wrote.
        OSError: the folder can't be made.
    """
    if not first_process():
        yield
        return
    there = [name for name in _WRITTEN if (out / name).exists()]
    began = (out / RECORD).exists() or (out / RUNNING).exists()  # the latter is all that tells of a run that was killed
    if there and not resume and not began:
        what = (
            f"{out} has {' and '.join(there)}, but no {RECORD}: it is not the folder of a run, and nothing is replaced"
        )
        raise OnnxgenError(what, help="name another --out")
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with held(out / RUNNING) as alone:
            if not alone:
                what = f"another process is training in {out} at this moment"
                raise OnnxgenError(what, help="name another --out, or wait for its end")
            yield
    finally:
        with suppress(OSError):
            if new:
                out.rmdir()  # only if nothing was written to it
