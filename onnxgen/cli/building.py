"""`onnxgen build`: run the build hooks by hand.

Mostly there is nothing to do, as in a check before a commit. So this imports neither the other commands nor the
generator: the whole process takes under 100 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxgen.cli.group import MANNERS, WRITES, AnyPath, Command, DefaultGroup, option
from onnxgen.cli.options import saying_options
from onnxgen.cli.process import sympy_later
from onnxgen.cli.say import PARTLY, progress, tell, tell_json

if TYPE_CHECKING:
    from onnxgen.build_hooks.build import Built
    from onnxgen.build_hooks.settings import Project


@click.command(
    "build",
    cls=Command,
    short_help="Build the models of a project.",
    examples=[
        ("onnxgen build", "Build what the nearest pyproject.toml lists."),
        ("onnxgen build --check", "Exit with 1 if something is stale (for CI)."),
    ],
    codes=WRITES,
)
@click.argument("project", type=AnyPath(), required=False)
@option("--check", is_flag=True, group="Build", help="Write nothing. Exit with 1 if a model is not fresh.")
@option("--watch", is_flag=True, group="Build", help="Build again whenever a file is saved, until Ctrl-C.")
@option("--force", is_flag=True, group="Build", help="Overwrite modules even if they were edited by hand.")
@saying_options
def build(project: Path | None, check: bool, watch: bool, force: bool, **saying: bool) -> int:
    """Generate the models that [tool.onnxgen] of a pyproject.toml lists. Fresh ones are left alone.

    PROJECT is that file or its folder. The default is the nearest one, from the current folder upwards.
    """
    if check and (watch or force):
        raise click.UsageError(f"--check writes nothing, and --{'watch' if watch else 'force'} does")
    root = _root(project)
    if watch:
        return _watch(root, force, **saying)
    return _build(root, check, force, **saying)


alone = DefaultGroup(commands={"build": build}, context_settings=MANNERS)


def _build(root: Path, check: bool, force: bool, *, quiet: bool, verbose: bool, as_json: bool) -> int:
    from onnxgen.build_hooks.build import BuildError, build_project

    project = read(root)
    silent = quiet or as_json
    if project.missing and not quiet:
        tell(f"note: {project.file.name}: {project.missing}", to_errors=True)
    try:
        with sympy_later(), progress(f"{'checking' if check else 'building'} {project.root.name}", silent) as begin:
            built = build_project(project, check=check, force=force, progress=begin)
    except BuildError as error:
        if not silent:
            _tell(error.built, project, verbose)
        raise
    code = int(any(one.status == "stale" for one in built))
    if as_json:
        tell_json({"status": "stale" if code else "fresh" if check else "done", **_as_json(built)})
    elif not quiet:
        _tell(built, project, verbose)
    return code


def _root(project: Path | None) -> Path:
    """Return the project's folder. With None, it is the nearest one upwards that has a pyproject.toml."""
    from onnxgen.build_hooks.settings import FILE, nearest
    from onnxgen.errors import OnnxgenError

    if project is None:
        folder: Path | None = nearest(Path.cwd())
        if folder is None:
            way_out = "go into the project, or name it: onnxgen build PROJECT"
            raise OnnxgenError(f"there is no {FILE} here or in a parent folder", help=way_out)
        return folder
    if project.is_file() and project.name == FILE:
        return project.parent
    if not project.is_dir():
        what = f"{project} is not a {FILE}" if project.exists() else f"there is no {project}"
        raise OnnxgenError(what, help=f"name a project's folder or its {FILE}")
    return project


def read(root: Path) -> Project:
    """Return the settings of a project. Raises `OnnxgenError` if there are none."""
    from onnxgen.build_hooks.settings import FILE, TABLE, read_project
    from onnxgen.errors import OnnxgenError

    project = read_project(root)
    if project is None and not (root / FILE).exists():
        raise OnnxgenError(f"there is no {FILE} in {root}")
    if project is None or not project.entries:
        what = f"{root / FILE} has no [{TABLE}]" if project is None else f"{root / FILE}: {TABLE} has no models"
        way_out = f'write [[{TABLE}.models]], source = "model.onnx" and output = "model.py" into it'
        raise OnnxgenError(what, help=way_out)
    return project


# ---- output ----------------------------------------------------------------------------------------------------------


def _as_json(built: Sequence[Built]) -> dict[str, Any]:
    """Return the models as `--json` prints them."""
    return {
        "models": [
            {
                "key": one.entry.key,
                "status": one.status,
                "source": str(one.entry.source),
                "module": str(one.files[0] if one.files else one.entry.output),
                "files": [str(path) for path in one.files],
                "digest": one.key,
                "seconds": round(one.seconds, 6),
                **({"note": one.note} if one.note else {}),
            }
            for one in built
        ]
    }


def _tell(built: Sequence[Built], project: Project, verbose: bool) -> None:
    """Print one line for each model, with paths as in the project's settings."""
    for one in built:
        line = _line(one)
        if verbose:
            line += f" ({one.entry.key}: {one.entry.shown(one.entry.source)}, {one.seconds:.2f} s)"
        tell(line)
        if one.note:
            tell(f"  note: {one.note}")
    sys.stdout.flush()


def _line(one: Built) -> str:
    module = one.entry.shown(one.entry.output)
    if one.status in ("written", "merged"):
        *others, last = [one.entry.shown(path) for path in one.files[1:] + one.files[:1]]
        wrote = f"wrote {', '.join(others)} and {last}" if others else f"wrote {last}"
        check = f"next: onnxgen verify {one.entry.shown(one.entry.source)} {module}{PARTLY}"
        return wrote if one.status == "written" else f"{wrote}: merged your edits into the new module; {check}"
    if one.status == "stale":
        return f"{module} is {'stale' if one.entry.output.exists() else 'missing'}: onnxgen build"
    if one.status == "kept":
        why = "is yours" if one.entry.edited == "mine" else "was edited by hand and its source has not changed"
        return f"{module} {why}: kept"
    return f"{module} is fresh"


# ---- watching --------------------------------------------------------------------------------------------------------


def _watch(root: Path, force: bool, *, quiet: bool, verbose: bool, as_json: bool) -> int:
    """Build now and after each save, until Ctrl-C, which is not an error here."""
    from onnxgen.build_hooks.watch import rounds
    from onnxgen.errors import counted

    with suppress(KeyboardInterrupt):
        for number, one in enumerate(rounds(root, read, force=force)):
            if as_json:
                errors = {"error": str(one.error), "problems": [*map(vars, one.error.problems)]} if one.error else {}
                tell_json({"status": "failed" if errors else "done", **_as_json(one.built), **errors}, flush=True)
            for problem in one.error.problems if one.error else ():
                tell(f"error: {problem}", to_errors=True, flush=True)
            if not quiet and not as_json:
                _tell([b for b in one.built if number == 0 or b.status != "fresh"], one.project, verbose)
                if number == 0:
                    tell(f"watching {counted(len(one.watched), 'file')}; Ctrl-C ends it", flush=True)
    return 0
