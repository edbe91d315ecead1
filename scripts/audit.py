"""Looks up known vulnerabilities of the packages in locks with pip-audit: audit.py LOCK...

Runs in the environment of requirements/tools.lock: ``make audit``. It fails for a vulnerability;
what could not be looked up, for want of a network or of an index's data, is said and no failure.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def main(locks: Sequence[str]) -> int:
    """Print the vulnerabilities; 1 if there are any."""
    words = [word for lock in locks for word in ("--requirement", lock)]
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", *words]
    command += ["--format", "json", "--progress-spinner", "off"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if not found.stdout.strip():
        reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"not audited: pip-audit could not look anything up ({reason})")
        return 0
    packages: list[dict[str, Any]] = json.loads(found.stdout)["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    problems = [
        f"{package['name']} {package['version']}: {entry['id']}, fixed in "
        f"{', '.join(entry['fix_versions']) or 'no version yet'}"
        for package in packages
        for entry in package.get("vulns", ())
    ]
    print(
        *problems, f"{len(packages) - len(skipped)} of {len(packages)} packages audited", sep="\n"
    )
    if skipped:
        print(f"not audited, since the index has no vulnerability data: {', '.join(skipped)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
