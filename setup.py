"""Which packages there are; everything else is in pyproject.toml.

`templates/` and `build_hooks/` stand at the top of the tree and are installed inside the package, which setuptools' own
search cannot express. Searching here means that a new subpackage is never forgotten.
"""

from setuptools import find_packages, setup

MOVED = {"onnxgen.templates": "templates", "onnxgen.build_hooks": "build_hooks"}

packages = find_packages(include=["onnxgen", "onnxgen.*"])
for name, folder in MOVED.items():
    packages += [name, *(f"{name}.{inner}" for inner in find_packages(folder))]

setup(packages=packages, package_dir={"onnxgen": "onnxgen", **MOVED})
