"""verl's own training with our agent loop and settings."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo_cl.errors import ConfigError

SETTINGS = Path("configs/engines/verl.yaml")
"""What differs from verl's own defaults, and where the agent loop is."""
LOOP = "actor_rollout_ref.rollout.agent.agent_loop_config_path"


def command(words: Sequence[str], settings: Path = SETTINGS) -> list[str]:
    """The command that starts verl with ``settings``, and with ``key=value`` words over them."""
    if not settings.is_file():
        raise ConfigError(f"no settings at {str(settings)!r}; start from the project's folder")
    place = settings.resolve()
    named = [f"--config-path={place.parent}", f"--config-name={place.stem}"]
    # Ray's workers read it too, and they are started in another folder.
    loop = f"{LOOP}={place.parent / 'verl_loop.yaml'}"
    return [sys.executable, "-m", "verl.trainer.main_ppo", *named, loop, *words]


def train(words: Sequence[str]) -> int:
    """Train, on Ray; returns verl's exit status when the training is over."""
    return subprocess.run(command(words), check=False).returncode
