"""Fuzzing: broken and hostile ONNX files, by the million.

    python -m tests.fuzz reader --executions 100000 --corpus FOLDER

A case is the bytes of a model, which is read beside a few data files (`cases.py`). Cases are mutations (`mutate.py`) of
seeds (`seeds.py`) and of earlier cases that ended in a way not seen before. A target (`loss.py`) takes a case down
the road, and `judge.py` holds what comes of it to the promises: a module of harmless syntax or an `OnnxgenError`, no
file outside the output folder, at most 10 seconds and 2 GB. `engine.py` runs cases in a child process that may die,
counts, and stores: the same command goes on where it was ended. In `guided.py` atheris chooses cases by coverage.
"""
