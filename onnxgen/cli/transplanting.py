"""`onnxgen transplant MODEL.onnx --into module:factory`."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.cli.files import refuse_overwriting
from onnxgen.cli.say import progress, tell, tell_json
from onnxgen.errors import OnnxgenError, counted
from onnxgen.options import Options

if TYPE_CHECKING:
    from onnxgen.canonical.transplant import Report


def transplant_command(
    model: Path, options: Options, *, into: str, arguments: Sequence[str], back: Path | None, out: Path, **say: Any
) -> int:
    """Fill a module, and write its weights; with `back`, write trained weights into the ONNX file.

    Returns:
        the exit code.
    """
    from onnxgen.canonical.transplant import NotTheSame, transplant  # PyTorch takes seconds

    quiet, as_json = say["quiet"], say["as_json"]
    refuse_overwriting([out], [model, *([back] if back else [])], say["force"])
    if not out.absolute().parent.is_dir():
        raise OnnxgenError(f"there is no folder {out.absolute().parent}", help="make it, or name another one with -o")
    module = built(into, arguments)
    try:
        with progress(f"matching {into} with {model.name}", quiet or as_json):
            report = transplant(model, module, runs=say["runs"], seed=say["seed"], options=options)
    except NotTheSame as error:
        if as_json:
            tell_json({"same": False, "why": str(error), "places": [vars(place) for place in error.places]})
        else:
            tell(str(error))
        return 1
    if back is not None:
        from onnxgen.runtime.checkpoint import read_weights

        module.load_state_dict(read_weights(back))
        report.export(module, out, force=say["force"])
    else:
        from safetensors.torch import save_model

        save_model(module, str(out), metadata={"format": "pt", "onnxgen.transplant": model.name})
    if as_json:
        tell_json({"same": True, "out": str(out), **_facts(report)})
    elif not quiet:
        _print(report, out, into)
    return 0


def built(into: str, arguments: Sequence[str]) -> Any:
    """Return what a factory makes.

    Args:
        into: module:factory, such as torchvision.models:resnet18.
        arguments: NAME=VALUE; a value is a Python literal, or else text.

    Raises:
        OnnxgenError: the module or the factory is not there, or fails.
    """
    name, _, factory = into.partition(":")
    keywords = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise OnnxgenError(f"--arg {argument} is not NAME=VALUE", help="--arg num_classes=10")
        try:
            keywords[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            keywords[key] = text
    sys.path.insert(0, "")
    try:
        made = importlib.import_module(name)
        for part in factory.split(".") if factory else ():
            made = getattr(made, part)
        return made(**keywords)  # type: ignore[operator]
    except Exception as error:
        what = f"--into {into} fails: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise OnnxgenError(
            what, help="name a module and a function or class in it: torchvision.models:resnet18"
        ) from error
    finally:
        sys.path.remove("")


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:5])}{' ...' if names[5:] else ''}"


def _facts(report: Report) -> dict[str, Any]:
    return {
        "filled": report.filled,
        "folded": report.folded,
        "chosen": report.chosen,
        "fitted": report.fitted,
        "partly": report.partly,
        "kept": report.kept,
        "assumed": report.assumed,
        "difference": report.difference,
        "runs": report.runs,
    }


def _print(report: Report, out: Path, into: str) -> None:
    tell(f"wrote {out}: {counted(len(report.filled), 'tensor')} of {into}")
    if report.folded:
        norms = counted(len(report.folded), "BatchNorm")
        tell(f"  {norms} became the identity: the file has them folded into other layers ({_some(report.folded)})")
    if report.chosen:
        tell(f"  the file has these folded into others: {_some([f'{p} = {n:g}' for p, n in report.chosen.items()])}")
    if report.fitted:
        tell(f"  the file has only what these make, and others would make the same: {_some(report.fitted)}")
    if report.partly:
        tell(f"  the file has only a part of these; the rest is as it was: {_some(report.partly)}")
    if report.assumed:
        tell(f"  assumed: {report.assumed}")
    unused = [path for path in report.kept if not path.endswith("num_batches_tracked")]
    if unused:
        tell(f"  not in the file, and left as they were: {_some(unused)}")
    sets = counted(report.runs, "set")
    tell(f"  on {sets} of drawn inputs, in float64, outputs differ by {report.difference:.2g} of the largest")
