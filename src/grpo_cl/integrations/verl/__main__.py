"""``python -m grpo_cl.integrations.verl data.train_files=… …``: train with verl."""

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from grpo_cl.errors import ConfigError, GRPOCLError
from grpo_cl.integrations import require_packages
from grpo_cl.integrations.episode_context import episode_config, require_hosted_models
from grpo_cl.integrations.rows import read_table

SETTINGS = Path("configs/engines/verl.yaml")
"""Changes to verl's default settings; ``verl_loop.yaml`` beside it configures the agent loop."""
LOOP_CONFIG_KEY = "actor_rollout_ref.rollout.agent.agent_loop_config_path"
LOOP = "grpo_cl"
"""The name of the agent loop in that file."""


def verl_command(overrides: Sequence[str], settings: Path = SETTINGS) -> list[str]:
    """The command that starts verl with ``settings`` and ``key=value`` overrides."""
    if not settings.is_file():
        raise ConfigError(f"no settings at {str(settings)!r}; start from the project's folder")
    path = settings.resolve()
    config = [f"--config-path={path.parent}", f"--config-name={path.stem}"]
    # Absolute: Ray workers read the file too, from another working directory.
    loop = f"{LOOP_CONFIG_KEY}={path.parent / 'verl_loop.yaml'}"
    return [sys.executable, "-m", "verl.trainer.main_ppo", *config, loop, *overrides]


def check_users(overrides: Sequence[str], settings: Path = SETTINGS) -> None:
    """Refuse a table whose user is driven by a model that the agent loop's settings do not name."""
    given = dict(word.lstrip("+").split("=", 1) for word in overrides if "=" in word)
    files = yaml.safe_load(given.get("data.train_files", "null"))
    if files is None:
        files = yaml.safe_load(settings.read_text())["data"]["train_files"]
    loop_file = Path(given.get(LOOP_CONFIG_KEY, settings.parent / "verl_loop.yaml"))
    (loop,) = (entry for entry in yaml.safe_load(loop_file.read_text()) if entry["name"] == LOOP)
    for file in [files] if isinstance(files, str) else files:
        user = {"user_strategy": read_table(Path(file)).user}
        require_hosted_models(episode_config(user | loop.get("settings", {})))


def main(argv: Sequence[str]) -> int:
    """Train with verl's own settings; returns verl's exit status, or 2 for a config error."""
    try:
        require_packages("verl", "verl", "ray", "hydra")
        command = verl_command(argv)
        check_users(argv)
        return subprocess.run(command, check=False).returncode
    except GRPOCLError as error:
        logging.getLogger("grpo_cl").error("%s", error)  # noqa: TRY400  # the message is enough
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
