"""Options that are declared once: a dataclass's field says what the command, files, programs and pages need of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from onnxgen.common.values import Kind


@dataclass(frozen=True)
class About:
    """The declared facts about an option.

    Attributes:
        like: what stands for its value in the command's help.
        help: what it does, in sentences.
        kind: how its value is written; None: as its type says.
        group: the title that it stands under in the command's help.
        key: its name in files: that of the field, with `-`, unless another is given.
        option: its name on the command line: its key, unless another is given.
    """

    like: str
    help: str
    kind: Kind | None
    group: str
    key: str = ""
    option: str = ""


def declared(default: Any, like: str, help: str, kind: Kind | None = None, *, group: str, **names: str) -> Any:
    """A field of a dataclass that is an option; see `About`. `default` may be `dict`."""
    metadata = {"about": About(like, help, kind, group, **names)}
    return (
        field(default_factory=dict, metadata=metadata) if default is dict else field(default=default, metadata=metadata)
    )


def options_of(declaring: type) -> dict[str, About]:
    """The options of a dataclass by field, in order."""
    found = {}
    for one in fields(declaring):
        about: About = one.metadata["about"]
        key = about.key or one.name.replace("_", "-")
        found[one.name] = replace(about, key=key, option=f"--{about.option or key}")
    return found
