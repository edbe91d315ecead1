"""Writes an SBOM in CycloneDX's format of the packages in locks: sbom.py OUT LOCK...

Runs in the environment of requirements/tools.lock: ``make sbom``.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

# Installed in the tools' own environment, not in .venv.
# pyright: reportMissingImports=false
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from lock import parse

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def main(arguments: Sequence[str]) -> None:
    """Write the SBOM and print its size."""
    out, *locks = map(Path, arguments)
    packages = [package for lock in locks for package in _versions(lock)]
    project = tomllib.loads(PROJECT.read_text())["project"]
    root = _component(project["name"], project["version"], ComponentType.APPLICATION)
    components = [_component(*package, ComponentType.LIBRARY) for package in packages]
    bom = Bom(components=components)
    bom.metadata.component = root
    bom.register_dependency(root, components)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise SystemExit(f"the SBOM does not fit CycloneDX's schema: {problem}")
    out.parent.mkdir(exist_ok=True)
    out.write_text(text + "\n")
    print(f"{len(components)} packages in {out}")


def _versions(lock: Path) -> list[tuple[str, str]]:
    entries = parse(lock.read_text())
    return [(name, entry.split()[0].partition("==")[2]) for name, entry in entries.items()]


def _component(name: str, version: str, kind: ComponentType) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    return Component(name=name, version=version, type=kind, purl=purl, bom_ref=str(purl))


if __name__ == "__main__":
    main(sys.argv[1:])
