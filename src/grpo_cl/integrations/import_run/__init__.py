"""Imports a run that another engine trained as a run directory."""

from grpo_cl.integrations.import_run.checkpoints import find_model
from grpo_cl.integrations.import_run.run import import_run

__all__ = ["find_model", "import_run"]
