"""The rows of the R-matrix: read where a policy was measured, played where it was not."""

from collections.abc import Mapping
from pathlib import Path

from grpo_cl.config import GRPOConfig, LoraConfig
from grpo_cl.errors import ConfigError
from grpo_cl.plans import Evaluation
from grpo_cl.trainer import GRPOTrainer


def measure(config: GRPOConfig, model: str) -> Evaluation:
    """Play the evaluation of a run with a model from elsewhere."""
    # Nothing learns here, so there is no adapter to add and no reference to load.
    changes = {"model_name_or_path": model, "kl_coef": 0.0, "lora": LoraConfig()}
    plain = {"cl_algorithm": "sequential", "cl_options": {}}
    trainer = GRPOTrainer(config.model_copy(update=changes | plain))
    cells = {domain: trainer.evaluate_task(domain) for domain in config.task_order}
    return Evaluation(model=model, releases=trainer.tasks.releases, cells=cells)


def read_evaluation(path: Path, releases: Mapping[str, str]) -> Evaluation:
    """A measurement that was made already, with the same tasks."""
    found = Evaluation.load(path)
    for domain in found.cells.keys() & releases.keys():
        if found.releases.get(domain) != releases[domain]:
            raise ConfigError(
                f"{path} was measured on release {found.releases.get(domain)!r} of {domain} and "
                f"the plan was made with {releases[domain]!r}; measure again with the plan's tasks"
            )
    return found
