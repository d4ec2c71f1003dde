"""What a network is for: told from the end of its graph, the shapes of its outputs, and names.

`purpose_of(model)` asks every rule (`deciding.py`). A rule sees the graph from its inputs and outputs
(`network.py`, `ends.py`) and casts votes for one kind, each with its evidence. `deciding.py` decides: a kind is told if
the graph is built like it, or named like it, and nothing speaks for another kind. Else the kind is "", with candidates.
"""

from onnxgen.purpose.deciding import purpose_of as purpose_of
