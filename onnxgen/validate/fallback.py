"""Retry a text that differs from its specification: the smallest module that differs is written plainly."""

from __future__ import annotations

from collections.abc import Callable

from onnxgen.common.names import ModulePath
from onnxgen.errors import WrongTranslation, counted, is_strict
from onnxgen.output.compose import Generated, Report
from onnxgen.validate.check import Difference


def translated(
    made: Callable[[frozenset[ModulePath]], Generated],
    differs: Callable[[Generated], Difference | None],
    report: Report,
) -> Generated:
    """Return the first text that matches its specification.

    Args:
        made: makes a text in which the given modules are left plain.
        differs: compares a text with its specification.
        report: receives the modules that were left plain, and a note.

    Raises:
        WrongTranslation: even the plain text differs; or any text differs and `ONNXGEN_STRICT=1` is set.
    """
    plain: frozenset[ModulePath] = frozenset()
    notes = list(report.notes)
    while True:
        generated = made(plain)
        difference = differs(generated)
        if difference is None:
            break
        if () in plain or is_strict():
            where = difference.path or "the network"
            raise WrongTranslation(f"the text of {where} is not what the graph computes: {difference.what}")
        path = tuple(difference.path.split(".")) if difference.path else ()
        while path in plain:
            path = path[:-1]
        plain |= {path}
        report.notes[:] = notes
    if plain:
        report.plain = sorted(".".join(path) for path in plain)
        names = ", ".join(name or "the network itself" for name in report.plain)
        report.notes.append(
            f"{counted(len(plain), 'module')} left plain, since structure changed what they do: {names}"
        )
    return generated
