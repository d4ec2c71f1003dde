"""Every layout of a project that setuptools builds, and every way to say it; each in every kind of build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.build_hooks.projects import (
    LAYOUTS,
    Layout,
    backend,
    check_record,
    compare,
    execute,
    members,
    unpack,
    unpack_sdist,
    write_project,
)

FLAT = LAYOUTS["flat"]
NAMED = 'packages = ["pkg"]\n'
MODELS = [{"source": source, "output": output} for source, output in FLAT.outputs.items()]
CASES = {
    "src": LAYOUTS["src"],
    "flat": FLAT,
    # Packages that lie elsewhere than their names say.
    "mapped": Layout(
        {"models/one.onnx": "lib/code/one.py", "models/two.onnx": "lib/nets/two.py"},
        ["pkg.one", "pkg.nets.two"],
        {"lib/code/__init__.py": "", "lib/nets/__init__.py": ""},
        '[tool.setuptools]\npackages = ["pkg", "pkg.nets"]\n'
        '[tool.setuptools.package-dir]\npkg = "lib/code"\n"pkg.nets" = "lib/nets"\n',
    ),
    # Namespace packages (PEP 420), one of which has nothing but a model.
    "namespace": Layout(
        {"src/group/pkg/one.onnx": "src/group/pkg/one.py", "src/group/nets/two.onnx": "src/group/nets/two.py"},
        ["group.pkg.one", "group.nets.two"],
        {"src/group/pkg/__init__.py": ""},
    ),
    # A folder that is no package yet, in one that is.
    "new folder": Layout(
        {"models/one.onnx": "pkg/made/one.py", "models/two.onnx": "pkg/two.py"},
        ["pkg.made.one", "pkg.two"],
        {"pkg/__init__.py": ""},
        f"[tool.setuptools]\n{NAMED}",
    ),
    # Nothing but modules that are generated, in no package.
    "modules": Layout(
        {"models/one.onnx": "one.py", "models/two.onnx": "two.py"},
        ["one", "two"],
        settings="[tool.setuptools]\npackages = []\npy-modules = []\n",
    ),
    "setup.py": replace(
        FLAT,
        files={**FLAT.files, "setup.py": f"from setuptools import setup\nsetup(onnxgen_models={MODELS!r})\n"},
    ),
}


def without_table(project: Path) -> None:
    """Remove the models from pyproject.toml, for a project that says them in setup.py."""
    file = project / "pyproject.toml"
    file.write_text(file.read_text().partition("[[tool.onnxgen")[0])


def sources(layout: Layout, project: Path) -> dict[str, Path]:
    return {m: project / s for m, s in zip(layout.modules, layout.outputs, strict=True)}


def expected(layout: Layout) -> set[str]:
    """The files that an installation of a project has; `__init__.py` where the project has one."""
    modules = [module.replace(".", "/") for module in layout.modules]
    return {*(f"{m}.py" for m in modules), *(f"{m}.safetensors" for m in modules)}


IMPORT = """
import importlib.util, site, sys
site.addsitedir(sys.argv[1])
for name in sys.argv[2:]:
    print(importlib.util.find_spec(name).origin)
"""


def every_kind_of_build(name: str, builder: Path, folder: Path, env: dict[str, str]) -> None:
    """A wheel, an sdist, the wheel of that, and both kinds of editable install, without isolation."""
    layout = CASES[name]
    project = write_project(folder / "project", layout)
    if name == "setup.py":
        without_table(project)
    wheel = backend("build_wheel", project, folder / "wheel", builder, env)
    assert {name for name in members(wheel) if not name.endswith("__init__.py")} == expected(layout)
    check_record(wheel)
    assert sum(name.endswith("__init__.py") for name in members(wheel)) == sum("__init__" in f for f in layout.files)
    assert not any((project / output).exists() for output in layout.outputs.values())
    site = unpack(wheel, folder / "site")
    compare(sources(layout, project), folder, path=site)

    unpacked = unpack_sdist(backend("build_sdist", project, folder / "sdist", builder, env), folder / "unpacked")
    assert not list(unpacked.rglob("*.safetensors"))
    again = backend("build_wheel", unpacked, folder / "again", builder, env)
    assert members(again) == members(wheel)
    second = unpack(again, folder / "second")
    assert all((site / name).read_bytes() == (second / name).read_bytes() for name in members(wheel))

    for mode in ("lenient", "strict"):
        wheel = backend("build_editable", project, folder / mode, builder, env, {"editable_mode": mode})
        site = unpack(wheel, folder / f"site-{mode}")
        printed = execute(builder, "-c", IMPORT, site, *layout.modules, cwd=folder, env=env)
        found = [Path(line) for line in printed.splitlines()]
        assert [file.resolve() for file in found] == [project / output for output in layout.outputs.values()]
        assert all(file.with_suffix(".safetensors").is_file() for file in found)
        assert all(file.is_relative_to(project / "build") == (mode == "strict") for file in found)
