"""Which packages there are, the repository's address, and the list of parts in a wheel. The rest is in pyproject.toml.

`templates/` and `build_hooks/` stand at the top of the tree and are installed inside the package, which setuptools' own
search cannot express. Searching here means that a new subpackage is never forgotten.
"""

import json
import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel

# A placeholder: the one line to change when the repository has its address.
REPOSITORY = "https://example.org/onnxgen"

MOVED = {"onnxgen.templates": "templates", "onnxgen.build_hooks": "build_hooks"}

packages = find_packages(include=["onnxgen", "onnxgen.*"])
for name, folder in MOVED.items():
    packages += [name, *(f"{name}.{inner}" for inner in find_packages(folder))]


def readme() -> str:
    """Return README.md for a package index: without the commands of a checkout, and with whole addresses."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"```sh\nmake [^`]*```\n\n", "", text, count=1)
    text = re.sub(r"(!\[[^]]*\]\()(?=\w+/)", rf"\1{REPOSITORY}/raw/HEAD/", text)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?=[\w.]+[/)#])", rf"\1{REPOSITORY}/blob/HEAD/", text)


class Wheel(bdist_wheel):
    """A wheel that lists what it contains in `sboms/` (PEP 770), as CycloneDX 1.6: it has no code of others."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        one = self.distribution
        component = {"type": "library", "bom-ref": "onnxgen", "name": "onnxgen", "version": one.get_version()}
        component |= {"purl": f"pkg:pypi/onnxgen@{one.get_version()}", "licenses": [{"expression": "Apache-2.0"}]}
        bom = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": component}}
        file = Path(distinfo_path) / "sboms" / "onnxgen.cdx.json"
        file.parent.mkdir()
        file.write_text(json.dumps(bom | {"components": []}, indent=2) + "\n", encoding="utf-8")


setup(
    packages=packages,
    package_dir={"onnxgen": "onnxgen", **MOVED},
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls={
        "Repository": REPOSITORY,
        "Documentation": f"{REPOSITORY}/blob/HEAD/docs/index.md",
        "Changelog": f"{REPOSITORY}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
        "Security": f"{REPOSITORY}/blob/HEAD/SECURITY.md",
    },
    cmdclass={"bdist_wheel": Wheel},
)
