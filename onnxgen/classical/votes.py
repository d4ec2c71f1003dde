"""Labels and scores of tree ensembles that classify, as in onnxruntime.

For two classes the standard does not say what the scores are if there are weights for only one of them. onnxruntime
decides it for each row, by the weights that the row reaches.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir

from onnxgen.classical.scores import as_dtype, elements, labels, second_class, transformed
from onnxgen.errors import WRITER
from onnxgen.lowering.arg import Arg

if TYPE_CHECKING:
    from onnxgen.classical.trees import Ensemble

FLOAT = ir.DataType.FLOAT
Ints: TypeAlias = "Sequence[int] | None"
Strings: TypeAlias = "Sequence[str] | None"


def classified(
    ensemble: Ensemble, base: Arg | None, classes: Sequence[int], transform: str, ints: Ints, strings: Strings
) -> list[ast.expr]:
    """Return the expressions of labels and scores; `classes`: the class of each weight."""
    found = 0 if base is None else elements(ensemble.b, base).size
    if ensemble.count == 2:
        return _Binary(ensemble, base, found, classes, transform).outputs(ints, strings)
    if found not in (0, ensemble.count):
        raise ensemble.b.error(f"the node has {found} base_values for {ensemble.count} classes", WRITER)
    b = ensemble.b
    sums = ensemble.aggregated("SUM")
    if base is not None:
        sums = b("s + c", s=sums, c=ensemble.base(base))
    scores = b.let(sums, "scores")
    out = as_dtype(b, scores, ensemble.dtype, FLOAT)
    if ensemble.count == 1:
        if strings:
            raise b.error("the node has one class with a text label", "give it two labels")
        label = b("(s.squeeze(1) > 0).long()", s=scores)
        return [label, transformed(b, out, transform if transform == "PROBIT" else "NONE")]
    compared: Any = scores
    if base is None and not all(ensemble.reached(k) for k in range(ensemble.count)):
        compared = b("s.where(r, low)", s=scores, r=ensemble.reached_at_run_time(), low=float("-inf"))
    return [labels(b, b("s.argmax(1)", s=compared), ints, strings), transformed(b, out, transform)]


class _Binary:
    """Two classes: rows that reach a weight of the second one, and rows that do not."""

    def __init__(
        self, ensemble: Ensemble, base: Arg | None, found: int, classes: Sequence[int], transform: str
    ) -> None:
        self.ensemble, self.b, self.base, self.found, self.transform = ensemble, ensemble.b, base, found, transform
        if found > 2:
            raise self.b.error(f"the node has {found} base_values for 2 classes", WRITER)
        self.one_class = len(set(classes)) == 1
        self.mixed = not self.one_class or bool((elements(self.b, ensemble.weights) < 0).any())

    def outputs(self, ints: Ints, strings: Strings) -> list[ast.expr]:
        b, second = self.b, self.ensemble.reached(1)
        sums = b.let(self.ensemble.aggregated("SUM"), "scores")
        if second is None:
            if self.found == 1:  # onnxruntime does not write all scores of such rows
                raise b.error(
                    "the node has one base value, and only some leaves have weights of the second class",
                    "give a base value for each class",
                )
            is_two = b.let(b("r[:, 1:]", r=self.ensemble.reached_at_run_time()), "has_second")
            (decides, out), (other, alone) = self._two(sums), self._one(sums)
            return self._labelled(b("torch.where(c, x, y)", c=is_two, x=decides, y=other), ints, strings) + [
                b("torch.where(c, x, y)", c=is_two, x=out, y=alone)
            ]
        decides, out = self._two(sums) if second else self._one(sums)
        return [*self._labelled(decides, ints, strings), out]

    def _labelled(self, decides: ast.expr, ints: Ints, strings: Strings) -> list[ast.expr]:
        b = self.b
        limit = 0.5 if self.one_class and not self.mixed else 0
        index = b("(x.squeeze(1) > t).long()", x=decides, t=limit)
        return [labels(b, index, ints if self.one_class else None, strings)]

    def _two(self, sums: Any) -> tuple[ast.expr, ast.expr]:
        """Return the deciding score and both scores, for rows with a weight of the second class."""
        b = self.b
        scores = sums
        if self.found == 2 and self.base is not None:
            positive = b.let(b("s[:, :1] + c[1]", s=sums, c=self.ensemble.base(self.base)))
            scores = b.let(b("torch.cat([-x, x], 1)", x=positive))
        elif self.base is not None:
            scores = b.let(b("torch.cat([s[:, :1] + c, s[:, 1:]], 1)", s=sums, c=self.ensemble.base(self.base)))
        if self.base is not None and not self.ensemble.reached(0):  # without a weight the score is 0, as in onnxruntime
            scores = b.let(b("s.where(r, 0.0)", s=scores, r=self.ensemble.reached_at_run_time()))
        out = as_dtype(b, scores, self.ensemble.dtype, FLOAT)
        return b("s[:, 1:]", s=scores), transformed(b, out, self.transform)

    def _one(self, sums: Any) -> tuple[ast.expr, ast.expr]:
        """Return the same for rows without a weight of the second class."""
        b = self.b
        score = b("s[:, :1]", s=sums)
        if self.base is not None:
            score = b("s + c[:1]", s=score, c=self.ensemble.base(self.base))
        score = b.let(score)
        out = as_dtype(b, score, self.ensemble.dtype, FLOAT)
        if self.found == 2:
            both = b("torch.cat([x, torch.zeros_like(x)], 1)", x=out)
            return score, transformed(b, both, self.transform)
        return score, second_class(b, out, self.transform, self.mixed)
