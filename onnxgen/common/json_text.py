"""JSON of files that may be damaged or hostile."""

from __future__ import annotations

import json
from typing import Any


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse JSON text that must be an object. Raises `ValueError` if it is anything else."""
    try:
        found = json.loads(text)
    except (RecursionError, TypeError) as error:
        raise ValueError("the JSON is nested too deeply" if isinstance(error, RecursionError) else str(error)) from None
    if not isinstance(found, dict):
        raise ValueError("the JSON is not an object")
    return found
