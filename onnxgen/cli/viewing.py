"""`onnxgen view MODEL.onnx`."""

from __future__ import annotations

from pathlib import Path

from onnxgen.cli.say import progress, tell, tell_json
from onnxgen.common.atomic import replacing
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options


def view_command(
    model: Path, output: Path | None, options: Options, *, force: bool, quiet: bool, verbose: bool, as_json: bool
) -> int:
    """Write the page of a model. Returns the exit code.

    Raises:
        OnnxgenError: the model can't be converted, or the page would overwrite another file.
    """
    from onnxgen.pipeline import default_out
    from onnxgen.view.page import GENERATOR, view

    out = output or model.with_suffix(".html")
    if out.is_dir():
        raise OnnxgenError(f"cannot write {out}: it is a folder", help="name a file for the page")
    if out.exists() and not force and GENERATOR not in out.read_text(encoding="utf-8", errors="replace")[:2000]:
        raise OnnxgenError(f"{out} was not made by onnxgen view", help="name another file, or add --force")
    with progress(f"drawing {out.name}", quiet or as_json):
        page = view(model, options, default_out(model, None))
    with replacing([out.absolute().parent]) as files, files.file(out) as file:
        file.write(page.encode())
    if as_json:
        tell_json({"page": str(out)})
    elif not quiet:
        tell(f"wrote {out}")
    return 0
