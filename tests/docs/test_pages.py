"""The README and the pages of docs/ say what is."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import click
import pytest

import onnxgen
import onnxgen.training
from benchmarks.conformance.page import from_csv
from docs import commands, gallery, pictures
from onnxgen.cli import app as cli
from onnxgen.cli.group import DEFAULT
from onnxgen.options import Options
from onnxgen.pipeline import build
from tests.conftest import ROOT
from tests.docs.blocks import blocks
from tests.support import forked

DOCS = ROOT / "docs"
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = (*(ROOT / name for name in ROOT_PAGES), *sorted(DOCS.glob("*.md")))
README = (ROOT / "README.md").read_text(encoding="utf-8")
START = (DOCS / "GETTING_STARTED.md").read_text(encoding="utf-8")
COMMANDS = (DOCS / "COMMANDS.md").read_text(encoding="utf-8")


def test_it_opens_with_the_two_commands() -> None:
    first = blocks(ROOT / "README.md")[0]
    assert [line.split()[:2] for line in first.commands()] == [["make", "demo"], ["make", "test"]]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_example_is_what_is_generated() -> None:
    source = build(ROOT / "samples/mnist/mnist.onnx", Options(), Path("model.py")).source
    example = re.search(r"```python\n(class .*?)```", START, re.DOTALL)
    assert example is not None and example[1] in source


def test_the_picture_is_what_is_generated() -> None:
    source = build(ROOT / "samples/mnist/mnist.onnx", Options(), Path("model.py")).source
    picture = (DOCS / "images" / "mnist.svg").read_text(encoding="utf-8")
    assert picture == pictures.side_by_side(source), "make it again: python -m docs.pictures"


def test_the_gallery_is_what_is_generated(shared: Path) -> None:
    page = (DOCS / "GALLERY.md").read_text(encoding="utf-8")
    assert page == gallery.page(shared / "models"), "make it again: python -m docs.gallery"


def test_the_session_has_the_commands_and_what_generating_prints(tmp_path: Path) -> None:
    """Not what `verify` prints: its last digits differ from machine to machine."""
    (tmp_path / "mnist.onnx").write_bytes(pictures.SAMPLE.read_bytes())
    said = pictures.run(pictures.COMMANDS[0], str(tmp_path))
    shown = re.sub(r"<[^>]+>", "", (DOCS / "images" / "session.svg").read_text(encoding="utf-8")).replace("&#160;", " ")
    assert said and all(line in shown for line in (*pictures.COMMANDS, *said.splitlines(), "equal, to rtol"))


def section(command: str) -> str:
    """The part of the page of commands that is about one of them."""
    title = "onnxgen MODEL.onnx" if command == DEFAULT else f"onnxgen {command}"
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", COMMANDS, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def test_every_command_option_and_exit_code_is_there() -> None:
    every = COMMANDS[COMMANDS.index("## Options of every command") : COMMANDS.index("## Exit codes")]
    generated = section(DEFAULT).split("### What is generated")[1]
    first = COMMANDS[: COMMANDS.index("## Options of every command")]
    for name, command in cli.app.commands.items():
        assert f"(#onnxgen-{'modelonnx' if name == DEFAULT else name}) |" in first, name
        page = section(name) + every + (generated if "(#what-is-generated)" in section(name) else "")
        for parameter in command.params:
            for option in parameter.opts if isinstance(parameter, click.Option) else []:
                assert re.search(rf"`{re.escape(option)}[` ]", page), f"{name} {option}"
    for code in re.findall(r"^  (\d+) ", cli.EXIT_CODES, re.MULTILINE):
        assert re.search(rf"^\| {code} \|", COMMANDS, re.MULTILINE), code


def test_the_tables_of_options_are_those_of_the_commands() -> None:
    assert commands.page() == COMMANDS, "write them again: python docs/commands.py"


def test_every_option_there_is_one() -> None:
    parameters = [p for command in cli.app.commands.values() for p in command.params]
    known = {o for p in parameters for o in (*p.opts, *p.secondary_opts)} | {"--help", "-h", "--version"}
    elsewhere = {"--logdir", "--no-"}  # of tensorboard, and the beginning of several
    guides = "COMMANDS CONVERT EDITING EVALUATE EXPORT GETTING_STARTED LARGE_MODELS QUANTIZED TRAINING VERIFY".split()
    for page in (ROOT / "README.md", *(DOCS / f"{name}.md" for name in guides)):
        named = set(re.findall(r"`(--?[a-z][a-z-]*)", page.read_text(encoding="utf-8")))
        assert named - elsewhere <= known, page.name


@pytest.mark.parametrize(("page", "package"), [("API.md", onnxgen), ("API_TRAINING.md", onnxgen.training)])
def test_the_reference_of_the_library_has_every_public_name(page: str, package: object) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    name = getattr(package, "__name__", "")
    headings = re.findall(r"^      heading: (\S+)$", text, re.MULTILINE)
    assert sorted(headings) == sorted(f"{name}.{one}" for one in getattr(package, "__all__", ()) if one[0] != "_")
    targets = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert [one.rpartition(".")[2] for one in targets] == [one.rpartition(".")[2] for one in headings]


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"([\w/]+\.md)$", settings, re.MULTILINE))
    there = {page.name for page in DOCS.glob("*.md")} | {f"benchmarks/{p.name}" for p in ROOT.glob("benchmarks/*.md")}
    assert listed == there | {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}


def without_code(text: str) -> str:
    """A page without blocks of code and what stands in backticks: a link there is none."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?: {4}|\t).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "``", text)


def links(text: str) -> list[str]:
    """Where a page points to inside the repository: links, pictures, references and HTML."""
    text = without_code(text)
    found = re.findall(r"\]\(\s*<?([^)\s>]+)", text) + re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    found += re.findall(r"(?:href|src)=[\"']([^\"']+)", text)
    return [link for link in found if not re.match(r"[a-z][a-z+.-]*:", link)]


def anchors(text: str) -> set[str]:
    """The names of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ +(.+?)\s*#*$", text, re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_there = target.exists() and (not anchor or anchor in anchors(target.read_text(encoding="utf-8")))
        found += [] if is_there else [link]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    """The test above can fail."""
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One `two`\n\n## Again\n\n## Again\n")
    page.write_text(
        "# Here\n[a](other.md#one-two) [b](other.md#again-1) [c](#here) ![d](none.svg) [e](other.md#gone)\n"
        '[f](#there) `[g](in-code.md)` [h](https://example.org/x) <img src="gone.png">\n\n    [i](in-block.md)\n\n'
        "[j]: lost.md\n"
    )
    assert broken(page) == ["none.svg", "other.md#gone", "#there", "lost.md", "gone.png"]


def test_the_page_of_operators_is_the_registry() -> None:
    done = forked.run([ROOT / "docs" / "operators.py"])
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "OPERATORS.md").read_text(encoding="utf-8")
    assert page == done.stdout, "print it again: python docs/operators.py > docs/OPERATORS.md"


def test_the_page_of_onnxruntimes_operators_names_tests() -> None:
    """Each case that the page calls right is one of a test that the suite runs."""
    rows = from_csv((ROOT / "benchmarks" / "conformance" / "contrib.csv").read_text(encoding="utf-8"))
    named = {tuple(re.split(r"::|\[| #", row.name)[:2]) for row in rows}
    texts = {file: (ROOT / "tests" / "ops" / file).read_text(encoding="utf-8") for file, _ in named}
    gone = [f"{file}::{test}" for file, test in sorted(named) if f"\ndef {test}(" not in texts[file]]
    assert not gone, f"{gone}: write the page again: python -m benchmarks.conformance --contrib --write"


def test_the_page_of_tests_has_the_score_of_the_mutants_and_every_room() -> None:
    page = (DOCS / "TESTING.md").read_text(encoding="utf-8")
    scored = (ROOT / "benchmarks" / "MUTATION.md").read_text(encoding="utf-8")
    found = re.search(r"`(.* --seed \d+)`.*?\*\*(\d+) of (\d+) .*?: ([\d.]+%)\*\*", scored, re.DOTALL)
    assert found is not None
    command, right, made, share = found.groups()
    assert all(fact in page for fact in (f"`{command}`", f"Of {made} wrong", f"{right} were", f"({share})"))
    rooms = {path.name for path in (ROOT / "tests").iterdir() if list(path.glob("test_*.py"))} | {"golden"}
    table = page.partition("## The folders")[2].partition("## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(rooms)


def test_files_that_the_pages_name_exist() -> None:
    for page in PAGES:
        for name in re.findall(
            r"`((?:onnxgen|tests|docs|samples|benchmarks|templates|build_hooks)/[\w/.]*)`", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
