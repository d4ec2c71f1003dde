"""Integer expressions as text for people: `2*seq + 1`, `(h - 1)//2 + 1`."""

from __future__ import annotations

from onnxgen.shapes.expression import Atom, Call, Dim, Monomial, Sym, Symbol


def readable(dim: Dim | float) -> str:
    if not isinstance(dim, Sym):
        return str(dim)
    parts: list[str] = []
    for monomial, coefficient in _tidy(dim):
        alone = len(monomial) == 1 and (coefficient == 1 or (coefficient == -1 and bool(parts)))
        body = "*".join(atom_text(a, alone) if p == 1 else f"{atom_text(a, False)}**{p}" for a, p in monomial)
        number = abs(coefficient)
        body = str(number) if not body else body if number == 1 else f"{number}*{body}"
        if not parts:
            parts.append(f"-{body}" if coefficient < 0 else body)
        else:
            parts.append(f"{'-' if coefficient < 0 else '+'} {body}")
    return " ".join(parts)


def _tidy(dim: Sym) -> tuple[tuple[Monomial, int], ...]:
    """Return the terms with constants moved into divisions: `(h + 1)//2 - 1` becomes `(h - 1)//2`."""
    *terms, (last, constant) = dim.terms
    if last:
        return dim.terms
    for i, (monomial, coefficient) in enumerate(terms):
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], Call):
            function, args = monomial[0][0].function, monomial[0][0].args
            if function == "floordiv" and isinstance(args[1], int) and not isinstance(args[0], float):
                moved = Call(function, (args[0] + constant * args[1], args[1]))
                return (*terms[:i], (((moved, 1),), 1), *terms[i + 1 :])
    return dim.terms


def atom_text(atom: Atom, alone: bool) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    if atom.function in ("floordiv", "mod"):
        left, right = (readable(a) if _simple(a) else f"({readable(a)})" for a in atom.args)
        text = f"{left}{'//' if atom.function == 'floordiv' else ' % '}{right}"
        return text if alone else f"({text})"
    return f"{atom.function}({', '.join(map(readable, atom.args))})"


def _simple(dim: Dim | float) -> bool:
    """Return True if the text of the dim needs no parentheses as an operand of a division."""
    if not isinstance(dim, Sym):
        return True
    (monomial, coefficient), *rest = dim.terms
    if rest or coefficient != 1 or len(monomial) != 1 or monomial[0][1] != 1:
        return False
    atom = monomial[0][0]
    return isinstance(atom, Symbol) or atom.function not in ("floordiv", "mod")
