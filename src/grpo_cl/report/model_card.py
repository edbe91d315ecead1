"""The part of a model card that says how the model was trained: R-matrix, settings, commit."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from grpo_cl.config import GRPOConfig
from grpo_cl.metrics.rmatrix import BASE, RMatrix
from grpo_cl.runs.layout import recorded_settings
from grpo_cl.runs.settings import LOCATION

CARD_FILE = "README.md"


class TrainedStage(NamedTuple):
    """What a card says of the run."""

    config: GRPOConfig
    matrix: RMatrix
    """Up to the stage of the model."""
    environment: Mapping[str, Any]
    """The contents of ``environment.json``."""
    needs_domain: bool
    """Whether each domain is evaluated with a policy of its own."""


def describe_training(model_dir: Path, stage: TrainedStage) -> None:
    """Add the run to the card of its model; a directory without a card stays without."""
    card = model_dir / CARD_FILE
    if card.is_file():
        card.write_text(card.read_text() + "\n".join(_lines(stage)))


def _lines(stage: TrainedStage) -> Iterator[str]:
    config, environment = stage.config, stage.environment
    trained = [row.after for row in stage.matrix.rows if row.after != BASE]
    version = environment.get("versions", {}).get("grpo-cl", "")
    commit = environment.get("commit")
    yield "## Training"
    yield ""
    yield (
        f"GRPO with the continual-learning algorithm `{config.cl_algorithm}` on "
        f"{' → '.join(trained)}, seed {config.seed}, with grpo-cl {version}"
        f"{f', commit `{commit}`' if commit else ''}."
    )
    yield ""
    yield (
        "The R-matrix: mean reward on the test tasks of each domain, before training and after "
        "each stage."
        + (" Each domain is evaluated with its own policy." if stage.needs_domain else "")
    )
    yield ""
    yield from _matrix(stage.matrix)
    yield ""
    yield "Settings that differ from the defaults:"
    yield ""
    yield "```yaml"
    yield yaml.safe_dump(_settings(config), sort_keys=False, allow_unicode=True).rstrip()
    yield "```"
    yield ""


def _matrix(matrix: RMatrix) -> Iterator[str]:
    yield f"| after | {' | '.join(matrix.domains)} |"
    yield f"|{'---|' * (1 + len(matrix.domains))}"
    for row in matrix.rows:
        name = "before training" if row.after == BASE else row.after
        cells = [matrix.cell(row.after, domain) for domain in matrix.domains]
        yield f"| {name} | {' | '.join('–' if c is None else f'{c.mean:.3f}' for c in cells)} |"
    idle = [facts.idle if (facts := matrix.facts.get(d)) else None for d in matrix.domains]
    if any(value is not None for value in idle):
        yield f"| doing nothing | {' | '.join('–' if v is None else f'{v:.3f}' for v in idle)} |"


def _settings(config: GRPOConfig) -> dict[str, Any]:
    """The settings that were chosen, without places on the machine that trained."""
    recorded = recorded_settings(config)
    chosen = config.model_dump(mode="json", exclude_defaults=True, exclude=set(LOCATION))
    return {
        name: _without_paths(_recorded(value, recorded[name])) for name, value in chosen.items()
    }


def _recorded(chosen: Any, recorded: Any) -> Any:
    """The values of ``recorded``, in which secrets are hidden, at the keys of ``chosen``."""
    if isinstance(chosen, dict) and isinstance(recorded, dict):
        return {key: _recorded(value, recorded[key]) for key, value in chosen.items()}
    return recorded


def _without_paths(value: Any) -> Any:
    """The value with the last part of each absolute path in its place."""
    if isinstance(value, dict):
        return {key: _without_paths(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_paths(entry) for entry in value]
    if isinstance(value, str) and Path(value).expanduser().is_absolute():
        return Path(value).name
    return value
