"""Two networks in one canonical form: proofs that they are the same function, and weights moved between them.

`torch.export` follows a module's Python; what it calls becomes terms (`capture.py`, `rules.py`), in a form in which
equal functions are the same object: sums of products (`algebra.py`), views as patterns of axes (`views.py`), sums over
axes with labels (`contractions.py`).
"""
