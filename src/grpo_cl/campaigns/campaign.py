"""The description of a campaign: algorithms × seeds × task orders."""

from collections.abc import Mapping
from io import StringIO
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, JsonValue, PositiveInt, ValidationError, model_validator

from grpo_cl.algorithms import algorithm_for
from grpo_cl.config import GRPOConfig, deep_update
from grpo_cl.errors import ConfigError
from grpo_cl.runs.settings import LOCATION
from grpo_cl.trainer.preflight import check_training
from grpo_cl.types import Record, first_problem

Order = Annotated[tuple[str, ...], Field(min_length=1)]
Orders = Literal["all"] | Annotated[tuple[Order, ...], Field(min_length=1)]

ScoreName = Literal[
    "average_performance",
    "learning_accuracy",
    "backward_transfer",
    "forgetting",
    "forward_transfer",
]
"""The scores that algorithms are compared by."""

CAMPAIGN_SETTINGS = ("cl_algorithm", "cl_options", "seed", "task_order", *LOCATION)
"""Settings of a run that the campaign sets."""


class Entry(Record):
    """One algorithm of a campaign."""

    name: str
    cl_options: dict[str, JsonValue] = Field(default_factory=dict)
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings that override ``base``."""
    label: str = ""
    """Its name in tables; empty for the name of the algorithm."""
    orders: Orders | None = None
    """Task orders of this algorithm; None for those of the campaign."""

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.label or self.name


class Campaign(Record):
    """Algorithms × seeds × task orders, trained from common settings."""

    name: str = "campaign"
    out: Path
    """Directory of the runs, the results and the page."""
    base: dict[str, JsonValue]
    """Settings of every run, as in a config file."""
    algorithms: Annotated[tuple[Entry, ...], Field(min_length=1)]
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    orders: Orders | None = None
    """Task orders, or ``all`` permutations; None for ``task_order`` of ``base``."""
    workers: PositiveInt = 2
    """Runs trained in parallel, each a process with one thread."""
    compute: Literal["steps", "rollouts"] = "steps"
    """What is equal in all runs: the number of updates, or of training episodes."""
    reference: str = "sequential"
    """The label of the algorithm that the others are compared with."""
    primary: ScoreName = "average_performance"
    """The score that decides; its p-values have Holm's correction, other scores are exploratory."""
    variance: Literal["separate", "pooled"] = "separate"
    """Whether each difference has its own variance between seeds, or one is estimated from all
    algorithms, which needs them to be equally variable."""

    @model_validator(mode="after")
    def _labels_and_seeds_are_distinct(self) -> Self:
        titles = [entry.title for entry in self.algorithms]
        for title in titles:
            if titles.count(title) > 1:
                raise ValueError(
                    f"two algorithms have the label {title!r}; give each its own label"
                )
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be distinct: {', '.join(map(str, self.seeds))}")
        return self

    @model_validator(mode="after")
    def _reference_is_an_algorithm(self) -> Self:
        titles = [entry.title for entry in self.algorithms]
        # One algorithm is compared with nothing, so the default may name another.
        is_needed = len(titles) > 1 or "reference" in self.model_fields_set
        if is_needed and self.reference not in titles:
            raise ValueError(
                f"reference {self.reference!r} is none of the campaign's algorithms; set "
                f"reference to one of {', '.join(titles)}"
            )
        return self

    @model_validator(mode="after")
    def _reserved_settings_are_not_set(self) -> Self:
        for where, settings in (
            ("base", self.base),
            *((e.title, e.settings) for e in self.algorithms),
        ):
            reserved = [
                name
                for name in CAMPAIGN_SETTINGS
                if name in settings and (where, name) != ("base", "task_order")
            ]
            if reserved:
                raise ValueError(
                    f"{where} sets {reserved[0]!r}, which the campaign sets; use its algorithms, "
                    "seeds, orders and out"
                )
        return self

    def orders_of(self, entry: Entry) -> tuple[tuple[str, ...], ...]:
        """The task orders of an algorithm."""
        default = GRPOConfig.model_validate(self.base).task_order
        orders = entry.orders or self.orders or (default,)
        return tuple(permutations(default)) if orders == "all" else orders

    def config(self, entry: Entry, order: tuple[str, ...], seed: int) -> GRPOConfig:
        """The configuration of one run, without its directory."""
        settings: dict[str, Any] = {
            "cl_algorithm": entry.name,
            "cl_options": entry.cl_options,
            "task_order": order,
            "seed": seed,
        }
        return GRPOConfig.model_validate({**deep_update(self.base, entry.settings), **settings})


def read_campaign(path: Path, **changes: Any) -> Campaign:
    """The campaign in a YAML file, with ``changes`` to its fields."""
    try:
        # YAML's errors about a stream quote no line, which may have a secret.
        fields = yaml.safe_load(StringIO(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the campaign {str(path)!r}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the campaign {str(path)!r} is not valid YAML: {reason}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"the campaign {str(path)!r} must be a YAML mapping")
    return make_campaign({"name": path.stem, **fields, **changes})


def make_campaign(fields: Mapping[str, Any]) -> Campaign:
    """The campaign with these fields, after the configuration of every run was validated."""
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
        check_training(config)
    for entry in campaign.algorithms:
        _require_equal_domains(campaign, entry)
        _require_equal_steps(campaign, entry)
    return campaign


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] == "extra_forbidden":
        name = ".".join(map(str, first["loc"]))
        return f"the campaign has the unknown setting {name!r}; docs/campaigns.md lists them"
    return first_problem(error)


def _require_equal_domains(campaign: Campaign, entry: Entry) -> None:
    first = campaign.orders_of(campaign.algorithms[0])[0]
    for order in campaign.orders_of(entry):
        if set(order) != set(first):
            raise ConfigError(
                f"the order {' → '.join(order)} has other domains than {' → '.join(first)}; "
                "scores over different domains cannot be compared; make two campaigns"
            )


def _require_equal_steps(campaign: Campaign, entry: Entry) -> None:
    if campaign.compute == "steps" and "num_steps_per_task" in entry.settings:
        raise ConfigError(
            f"{entry.title} sets num_steps_per_task, but compute is 'steps', which "
            "requires the same updates in all runs; remove it, or set compute: rollouts"
        )
