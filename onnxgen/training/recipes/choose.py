"""`--recipe`: other defaults for settings that the user does not give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from onnxgen.errors import OnnxgenError
from onnxgen.training.launch import launched
from onnxgen.training.settings import SETTINGS, Settings

# Howard & Ruder 1801.06146: the head first, lower rates for earlier layers, a warm-up, and a rate that falls.
FINE_TUNE: Mapping[str, Any] = {
    "head_first": 1,
    "layer_decay": 0.8,
    "find_lr": True,
    "warmup": 0.1,
    "schedule": "cosineannealinglr",
    "early_stop": 5,
}


def resolved(settings: Settings | None, overrides: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """Return the settings of a run without a recipe, and a note on what the recipe chose.

    Given are `overrides`, and what differs from the defaults in `settings`.

    Raises:
        OnnxgenError: the recipe does not fit the settings.
    """
    made = replace(settings or Settings(), **overrides)
    if made.recipe is None:
        return made, []
    if made.from_scratch:
        what = "recipe fine-tune and from_scratch exclude each other"
        raise OnnxgenError(what, help="the recipe keeps what the weights have learned: leave one of them out")
    default = Settings()
    given = {f.name for f in fields(Settings) if settings and getattr(settings, f.name) != getattr(default, f.name)}
    chosen = {name: value for name, value in FINE_TUNE.items() if name not in given | overrides.keys()}
    several = launched(made).devices * launched(made).nodes > 1
    for name, unfit in (
        ("find_lr", made.lr is not None or several),
        ("head_first", made.lora or several),
        ("warmup", made.schedule is not None),  # it may begin low itself
    ):
        if unfit:
            chosen.pop(name, None)
    said = ", ".join(SETTINGS[n].option + ("" if v is True else f" {v}") for n, v in chosen.items())
    return replace(made, recipe=None, **chosen), [f"recipe {made.recipe} chose {said or 'nothing: all is given'}"]
