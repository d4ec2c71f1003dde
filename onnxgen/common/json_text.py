"""JSON of files that may be damaged or hostile."""

from __future__ import annotations

import json
from typing import Any


def json_object(text: str | bytes) -> dict[str, Any]:
    """The object that a JSON text is. Raises `ValueError` for everything else, whatever is wrong with it."""
    try:
        found = json.loads(text)
    except (RecursionError, TypeError) as error:
        raise ValueError("the JSON is nested too deeply" if isinstance(error, RecursionError) else str(error)) from None
    if not isinstance(found, dict):
        raise ValueError("the JSON is not an object")
    return found
