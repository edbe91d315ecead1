"""The verifiers plug-in ``grpo-cl-verifiers``: ``vf-eval grpo-cl-verifiers``.

verifiers imports a top-level module by the plug-in's name, so this package is outside ``grpo_cl``.
"""
# pyright: basic, reportMissingImports=false

from grpo_cl.integrations import require_packages

require_packages("verifiers", "verifiers")

from grpo_cl.integrations.verifiers.harness import EpisodeEnv, EpisodeHarness  # noqa: E402
from grpo_cl.integrations.verifiers.tasks import EpisodeTaskset  # noqa: E402

__all__ = ["EpisodeEnv", "EpisodeHarness", "EpisodeTaskset"]
