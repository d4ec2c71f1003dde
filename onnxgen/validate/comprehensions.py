"""Evaluate comprehensions and lambdas on symbols.

A comprehension over known items is executed item by item. Any other is a node, whose variables are numbered by how
deep they are nested.
"""

from __future__ import annotations

import ast

from onnxgen.validate.expressions import Expressions
from onnxgen.validate.python import MAX_ITEMS
from onnxgen.validate.values import Graph, LocalVariables, Node, Once, Unreadable, Value


class Comprehensions(Expressions):
    """Evaluates expressions with variables of their own."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.rules |= {
            ast.ListComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.Lambda: self._lambda,
        }

    def _comprehension(self, tree: ast.ListComp | ast.GeneratorExp, scope: LocalVariables) -> Value:
        """Return a list, or, if the items are unknown, a node whose variables are numbered by nesting depth."""
        loop, *others = tree.generators
        if any(each.is_async for each in tree.generators):
            raise Unreadable("a comprehension that waits")
        source = self.evaluate(loop.iter, scope)
        items = self.iterate(source)
        if items is not None and not loop.ifs:
            made = []
            for item in items:
                inner = LocalVariables({}, scope)
                self.assign(loop.target, item, inner)
                made += self._made(others, tree.elt, inner)
            return made if isinstance(tree, ast.ListComp) else Once(made)
        if others:
            raise Unreadable("several loops of unknown length in a comprehension")
        self.bound += 1
        inner = LocalVariables({}, scope)
        self.assign(loop.target, self.make("bound", self.bound), inner)
        tests = tuple(self.node(self.evaluate(test, inner)) for test in loop.ifs)
        body = self.node(self.evaluate(tree.elt, inner))
        self.bound -= 1
        return self.operation("comprehension", type(tree).__name__, self.node(source), tests, body)

    def _made(self, loops: list[ast.comprehension], made: ast.expr, scope: LocalVariables) -> list[Value]:
        """Return the items that the inner loops of a comprehension make in one turn of the outer one."""
        if not loops:
            return [self.evaluate(made, scope)]
        items = self.iterate(self.evaluate(loops[0].iter, scope))
        if items is None or loops[0].ifs:
            raise Unreadable("several loops of unknown length in a comprehension")
        found: list[Value] = []
        for item in items:
            inner = LocalVariables({}, scope)
            self.assign(loops[0].target, item, inner)
            found += self._made(loops[1:], made, inner)
            if len(found) > MAX_ITEMS:
                raise Unreadable("a comprehension of too many items")
        return found

    def _lambda(self, tree: ast.Lambda, scope: LocalVariables) -> Node:
        given = tree.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.defaults or given.posonlyargs:
            raise Unreadable("a lambda with more than plain arguments")
        self.bound += 1
        names = {a.arg: self.make("bound", self.bound, i) for i, a in enumerate(given.args)}
        body = self.node(self.evaluate(tree.body, LocalVariables(names, scope)))
        self.bound -= 1
        return self.make("lambda", len(names), body)
