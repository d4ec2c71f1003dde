"""What a loop carries and never changes is a value from outside, and what nobody reads is not carried.

Exporters of other frameworks carry everything that a loop's body uses: each weight is a state that the body returns as
it came. Goes in: a graph. Comes out: its loops (Loop, Scan) with the states that say something. A weight in the body
then is the stored tensor itself.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import LOOPS, all_nodes, origin, passed_on

FIRST_SCAN = 9  # the opset whose Scan has no batch axis


def settle_states(model: ir.Model) -> None:
    """Take such states out of every loop, inner loops first."""
    opset = model.opset_imports.get("", 0)
    for node in reversed(all_nodes(model.graph)):
        if node.domain == "" and node.graph is not None and node.op_type in LOOPS:
            if not _scans(node) or opset >= FIRST_SCAN:
                _Loop(node).run()


def _scans(node: ir.Node) -> int:
    """Return how many sequences a node takes apart: none if it is a Loop."""
    count = node.attributes.get("num_scan_inputs")
    return 0 if count is None else count.as_int()


class _Loop:
    """A loop and its states.

    Attributes:
        given: the place of the first state among the inputs of the node, and of its body.
        made: its place among the outputs of the body.
        count: how many states there are.
    """

    def __init__(self, node: ir.Node) -> None:
        self.node, self.body = node, node.attributes["body"].as_graph()
        scanned = _scans(node)
        self.given, self.made = (0, 0) if scanned else (2, 1)
        self.count = len(self.body.inputs) - self.given - scanned

    def run(self) -> None:
        gone = [i for i in range(self.count) if self._is_settled(i)]
        for i in reversed(gone):
            self._take_out(i)
        if not gone:
            return
        node, graph = self.node, self.node.graph
        assert graph is not None
        inputs = [v for i, v in enumerate(node.inputs) if i - self.given not in gone]
        outputs = [v for i, v in enumerate(node.outputs) if i not in gone]
        if not outputs:
            self._remove()
            return
        new = ir.Node(
            "", node.op_type, inputs, list(node.attributes.values()), num_outputs=len(outputs), name=node.name
        )
        for old, fresh in zip(outputs, new.outputs):
            fresh.name, fresh.shape, fresh.type = old.name, old.shape, old.type
            ir.convenience.replace_all_uses_with(old, fresh, replace_graph_outputs=True)
        graph.insert_before(node, new)
        graph.remove(node, safe=True)

    def _remove(self) -> None:
        """Remove a loop that makes nothing any more. No node of its body counts as a user of what it had used."""
        assert self.node.graph is not None
        for inner in all_nodes(self.body):
            for i in range(len(inner.inputs)):
                inner.replace_input_with(i, None)
        self.node.graph.remove(self.node, safe=True)

    def _is_settled(self, i: int) -> bool:
        """True if nothing has to carry a state."""
        inner, result = self.body.inputs[self.given + i], self.body.outputs[self.made + i]
        after = self.node.outputs[i]
        if self.node.inputs[self.given + i] is None:
            return False
        if origin(result) is inner:
            return True
        return not inner.uses() and not any(v is inner for v in self.body.outputs) and not _is_read(after)

    def _take_out(self, i: int) -> None:
        inner, result = self.body.inputs[self.given + i], self.body.outputs[self.made + i]
        outer = self.node.inputs[self.given + i]
        assert outer is not None
        self.body.outputs.pop(self.made + i)
        if origin(result) is inner:
            for j, other in enumerate(self.body.outputs):
                if other is inner:
                    self.body.outputs[j] = self._in_body(outer, inner)
            ir.convenience.replace_all_uses_with(inner, outer)
            self._hand_on(outer, self.node.outputs[i])
        self.body.inputs.pop(self.given + i)

    def _in_body(self, outer: ir.Value, inner: ir.Value) -> ir.Value:
        """Return a value of the body that is one from outside: only the body's own values can be its outputs."""
        same = passed_on(outer)
        self.body.append(same)
        (new,) = same.outputs
        new.shape, new.type = inner.shape, inner.type
        return new

    def _hand_on(self, outer: ir.Value, after: ir.Value) -> None:
        """Let a value take the place of a result of the loop. An output of a graph keeps its name."""
        if after.is_graph_output():
            assert self.node.graph is not None
            same = passed_on(outer)
            (new,) = same.outputs
            new.name, new.shape, new.type = after.name, after.shape, after.type
            self.node.graph.insert_after(self.node, same)
            outer = new
        ir.convenience.replace_all_uses_with(after, outer, replace_graph_outputs=True)


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
