"""Who is to be measured by ``grpo-cl evaluate``: words of its own among the settings of a run."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.errors import ConfigError

_OWN = ("model", "base_url", "out")
_SHORT = {"domain": "task_order", "user": "rollout.user"}
"""Short words for settings that everybody gives who evaluates."""


class Asked(NamedTuple):
    """What ``evaluate`` was asked for."""

    model: str | None
    """The hosted model to measure; None for the policy of the settings."""
    base_url: str | None
    out: str | None
    """A file for the measurements as a whole."""
    settings: list[str]
    """The rest, which describes a run."""


def take_agent(words: Sequence[str]) -> Asked:
    """Take --model, --base_url and --out out of the settings, and write short words out."""
    taken: dict[str, str] = {}
    rest: list[str] = []
    following = iter(words)
    for word in following:
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_") if word.startswith("--") else ""
        if name in _OWN:
            taken[name] = value if equals else next(following, "")
        else:
            rest.append(f"--{_SHORT[name]}{equals}{value}" if name in _SHORT else word)
    is_named = all(value and not value.startswith("--") for value in taken.values())
    if not is_named or ("base_url" in taken and "model" not in taken):
        raise ConfigError(
            "--model takes the name of a hosted model, as in openai/gpt-4o, and --base_url the "
            "address of its endpoint; a local policy is named by --model_name_or_path; "
            "--out takes a file"
        )
    return Asked(taken.get("model"), taken.get("base_url"), taken.get("out"), rest)
