"""A run that another engine trained, read back as a run directory of this project."""

from grpo_cl.intake.checkpoints import find_model
from grpo_cl.intake.run import import_run

__all__ = ["find_model", "import_run"]
