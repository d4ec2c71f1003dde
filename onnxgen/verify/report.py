"""The report of a verification, for people and for `--json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class OutputCheck:
    """The comparison of one output in one run.

    Attributes:
        name: the output's name in the ONNX file.
        expected, got: dtype and shape, `float32 [2, 10]`.
        absolute: the largest difference between finite elements.
        relative: the largest difference relative to the expected element, over those that are not 0; None if only
            elements differ that should be 0, or if `limit` counts instead.
        compared: "values", or "shape and dtype" if the graph draws random numbers.
        why: the difference; empty if there is none.
        rms: for a module that approximates a quantised file, the difference in root mean square; else None.
        limit: the largest `rms` that is allowed; else None.
    """

    name: str
    expected: str
    got: str
    absolute: float
    relative: float | None
    compared: str
    why: str
    rms: float | None = None
    limit: float | None = None

    @property
    def agrees(self) -> bool:
        return not self.why


@dataclass(frozen=True)
class Run:
    """The comparison on one set of inputs.

    Attributes:
        seed: the seed of the inputs.
        inputs: dtype and shape of each, by name.
        sizes: the sizes of dynamic dims, by symbol.
        oracle: "onnxruntime" or "onnx.reference".
        outputs: in graph order; empty if the module failed.
        error: why the module failed where the oracle did not.
    """

    seed: int
    inputs: dict[str, str]
    sizes: dict[str, int]
    oracle: str
    outputs: list[OutputCheck] = field(default_factory=list)
    error: str = ""

    @property
    def agrees(self) -> bool:
        return not self.error and all(o.agrees for o in self.outputs)


@dataclass
class Gradients:
    """The results of the backward passes (of the sum of all floating-point outputs).

    Attributes:
        parameters: the number of parameters that require a gradient.
        reached: the number of them that got a finite gradient in some run.
        missing: those that got none in any run, although the ONNX graph's differentiable part reaches them.
        unreached: those that got none for a known reason (a branch not taken, the user's choice, not in the ONNX file).
        not_finite: those with an infinite or NaN gradient while every output was finite.
        error: why a backward pass failed.
        groups: the number of groups of parameters and inputs whose gradients can be compared with finite differences
            (`onnxgen.verify.gradients`).
        held: the number of groups that agree.
        wrong: the groups that differ, with both numbers.
        unclear: the groups whose two one-sided differences disagree, with a gradient that is not between them.
        not_compared: the number of groups left out because time ran out (`directions.MAX_SECONDS`).
    """

    parameters: int = 0
    reached: int = 0
    missing: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    error: str = ""
    groups: int = 0
    held: int = 0
    wrong: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    not_compared: int = 0

    @property
    def agrees(self) -> bool:
        return not (self.missing or self.not_finite or self.error or self.wrong)


@dataclass(frozen=True)
class Integrity:
    """The full comparison of the sidecar with the ONNX file: number of tensors, and those that differ in any bit."""

    tensors: int
    differences: list[str]

    @property
    def agrees(self) -> bool:
        return not self.differences


@dataclass(frozen=True)
class Located:
    """The first place where a module differs from its file.

    Attributes:
        node: the name of the ONNX node, or of its first output if it has none.
        op_type: its operator.
        line: the line of the module; 0 if weights differ.
        absolute: the largest difference of that result; infinite if the shapes differ; NaN for weights, and for a
            correct result that is used in a wrong place.
    """

    node: str
    op_type: str
    line: int
    absolute: float


@dataclass
class VerifyReport:
    """The result of `verify`.

    Attributes:
        model, module: the names of both.
        mode: "eval", or "training" if the graph records that.
        tolerance: in words.
        runs: one for each set of inputs, without those that the oracle refused.
        gradients: see `Gradients`.
        integrity: see `Integrity`; None if not asked for.
        moved: the file's tensors that differ from the module's weights.
        located: see `Located`; None if not asked for, or not found.
        notes: what could not be compared, what the oracle refused, and other information.
        untold: outputs for which a wrong module could pass, with the reason: they vary no more than quantisation
            explains (`onnxgen.verify.compare`), or the oracle's own rounding changes them as much.
        partial: what of its weights an edited module has; "" if it has all. Then outputs may differ, and only the
            tensors that both have must be equal. Gradients are not compared.
    """

    model: str
    module: str
    mode: str = "eval"
    tolerance: str = ""
    runs: list[Run] = field(default_factory=list)
    gradients: Gradients = field(default_factory=Gradients)
    integrity: Integrity | None = None
    moved: list[str] = field(default_factory=list)
    located: Located | None = None
    notes: list[str] = field(default_factory=list)
    untold: dict[str, str] = field(default_factory=dict)
    partial: str = ""

    @property
    def agrees(self) -> bool:
        """True if everything that was compared is equal; False if nothing was compared, or runs are inconclusive."""
        return not self.differs and not self.untold

    @property
    def differs(self) -> bool:
        """True if something is not equal, or nothing was compared."""
        checked = (self.integrity is None or self.integrity.agrees) and not self.moved
        ran = self.runs and all(not r.error if self.partial else r.agrees for r in self.runs)
        return not (ran and self.gradients.agrees and checked)

    def __bool__(self) -> bool:
        return self.agrees

    def problems(self) -> list[str]:
        """Describe every difference."""
        lines = [f"run {i}: {r.error}" for i, r in enumerate(self.runs) if r.error]
        outputs = [(i, o) for i, r in enumerate(self.runs) for o in r.outputs if o.why and not self.partial]
        lines += [f"run {i}, output {o.name}: {o.why}" for i, o in outputs]
        g = self.gradients
        lines += [f"backward: {g.error}"] if g.error else []
        lines += [f"parameter {name}: no gradient reaches it" for name in g.missing]
        lines += [f"parameter {name}: the gradient is not finite" for name in g.not_finite]
        lines += [f"gradient of {line}" for line in g.wrong]
        lines += [f"weights: {ascii(name)[1:-1]} differs from the tensor in the file" for name in self.moved]
        return lines + (self.integrity.differences if self.integrity else [])

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain types, with infinite numbers as text."""
        return {"agrees": self.agrees, "problems": self.problems(), **asdict(self)}
