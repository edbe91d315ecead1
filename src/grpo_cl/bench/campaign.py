"""What a campaign is: one frozen, validated description of the runs that are compared."""

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, JsonValue, PositiveInt, ValidationError, model_validator

from grpo_cl.algorithms import algorithm_for
from grpo_cl.config import GRPOConfig
from grpo_cl.domains.overlay import deep_update
from grpo_cl.errors import ConfigError
from grpo_cl.types import Record

Order = Annotated[tuple[str, ...], Field(min_length=1)]
Orders = Literal["all"] | Annotated[tuple[Order, ...], Field(min_length=1)]

OWN = ("cl_algorithm", "cl_options", "log_dir", "resume_from", "seed", "task_order")
"""Settings of a run that the campaign decides."""


class Entry(Record):
    """One algorithm of a campaign."""

    name: str
    cl_options: dict[str, JsonValue] = Field(default_factory=dict)
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings that differ from the campaign's."""
    label: str = ""
    """What it is called in tables; empty for its name."""
    orders: Orders | None = None
    """Orders of this algorithm; None for the campaign's."""

    @property
    def title(self) -> str:
        """What it is called in tables."""
        return self.label or self.name


class Campaign(Record):
    """Algorithms × seeds × orders."""

    name: str = "campaign"
    out: Path
    """Where runs, results and the page are written."""
    base: dict[str, JsonValue]
    """Settings of every run, as a config file has them."""
    algorithms: Annotated[tuple[Entry, ...], Field(min_length=1)]
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    orders: Orders | None = None
    """Orders of the domains, or ``all``; None for the one of the settings."""
    workers: PositiveInt = 2
    """Runs trained at once, each a process with one thread."""
    compute: Literal["steps", "rollouts"] = "steps"
    """What is the same in all runs: the updates, or the training episodes."""
    reference: str = "sequential"
    """The label that the others are compared with."""

    @model_validator(mode="after")
    def _labels_and_seeds_are_distinct(self) -> Self:
        titles = [entry.title for entry in self.algorithms]
        for title in titles:
            if titles.count(title) > 1:
                raise ValueError(f"two entries are called {title!r}; give each a label of its own")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds repeats one: {', '.join(map(str, self.seeds))}")
        return self

    @model_validator(mode="after")
    def _settings_are_left_to_the_campaign(self) -> Self:
        for where, given in (
            ("base", self.base),
            *((e.title, e.settings) for e in self.algorithms),
        ):
            taken = [
                name for name in OWN if name in given and (where, name) != ("base", "task_order")
            ]
            if taken:
                raise ValueError(
                    f"{where} sets {taken[0]!r}, which the campaign decides; use its algorithms, "
                    "seeds, orders and out"
                )
        return self

    def orders_of(self, entry: Entry) -> tuple[tuple[str, ...], ...]:
        """The orders in which an algorithm learns the domains."""
        own = GRPOConfig.model_validate(self.base).task_order
        chosen = entry.orders or self.orders or (own,)
        return tuple(permutations(own)) if chosen == "all" else chosen

    def config(self, entry: Entry, order: tuple[str, ...], seed: int) -> GRPOConfig:
        """The description of one run, but for where it is written."""
        own: dict[str, Any] = {
            "cl_algorithm": entry.name,
            "cl_options": entry.cl_options,
            "task_order": order,
            "seed": seed,
        }
        return GRPOConfig.model_validate({**deep_update(self.base, entry.settings), **own})


def read_campaign(path: Path, **changes: Any) -> Campaign:
    """The campaign in a YAML file, with some of its fields changed."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the campaign {str(path)!r}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"the campaign {str(path)!r} is no valid YAML: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"the campaign {str(path)!r} holds no settings by name")
    return checked({"name": path.stem, **found, **changes})


def checked(fields: Mapping[str, Any]) -> Campaign:
    """The campaign, once every run of it is known to have a description that makes sense."""
    try:
        campaign = Campaign.model_validate(fields)
        configs = [
            campaign.config(entry, order, campaign.seeds[0])
            for entry in campaign.algorithms
            for order in campaign.orders_of(entry)
        ]
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from error
    for config in configs:
        algorithm_for(config)
    for entry in campaign.algorithms:
        _require_equal_domains(campaign, entry)
        _require_equal_steps(campaign, entry)
    return campaign


def _sentence(error: ValidationError) -> str:
    found = error.errors()[0]
    name = ".".join(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden":
        return f"the campaign has the unknown setting {name!r}; docs/campaigns.md lists them"
    message = str(found["msg"]).removeprefix("Value error, ")
    return f"{name}: {message} (got {found['input']!r})" if name else message


def _require_equal_domains(campaign: Campaign, entry: Entry) -> None:
    first = campaign.orders_of(campaign.algorithms[0])[0]
    for order in campaign.orders_of(entry):
        if set(order) != set(first):
            raise ConfigError(
                f"the order {' → '.join(order)} has other domains than {' → '.join(first)}; "
                "scores over different domains are not compared, make two campaigns"
            )


def _require_equal_steps(campaign: Campaign, entry: Entry) -> None:
    if campaign.compute == "steps" and "num_steps_per_task" in entry.settings:
        raise ConfigError(
            f"{entry.title} sets num_steps_per_task, but compute is 'steps', which makes the "
            "updates the same in all runs; leave it out, or set compute: rollouts"
        )
