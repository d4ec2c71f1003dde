"""`--paranoid`: compare every pass with what it replaces (see `check`).

Nothing here shares code with the passes; of what they know, only the facts of `propagate` (types and sizes).
"""
