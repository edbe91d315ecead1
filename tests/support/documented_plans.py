"""The block of an engine's page that writes a plan and trains its first stage."""

import os
import re
import shlex
import subprocess
from pathlib import Path

from grpo_cl.cli import main


def documented_arguments(page: Path, engine: str, folder: Path) -> list[str]:
    """What the engine's command gets from the block that begins with ``grpo-cl plan``.

    The plan is written to ``folder``, and its script runs with ``echo`` as the engine's Python.
    """
    (block,) = re.findall(r"```sh\n(grpo-cl plan .*?)```", page.read_text(), re.DOTALL)
    plan, *_, train = map(shlex.split, block.replace("\\\n", " ").splitlines())
    assert plan[-2] == "--out"
    assert main([*plan[1:-1], str(folder)]) == 0
    place = next(index for index, word in enumerate(train) if word.endswith(f"/{engine}.sh"))
    script = folder / Path(train[place]).relative_to(plan[-1])
    done = subprocess.run(
        [script, *train[place + 1 : train.index(">")]],
        env={**os.environ, "PYTHON": "echo", "GRPO_CL": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.split()
    assert words[:2] == ["-m", f"grpo_cl.integrations.{engine}"]
    return words[2:]
