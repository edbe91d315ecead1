"""The package that verifiers finds our episodes by: ``vf-eval grpo-cl-verifiers``.

verifiers looks for a module of its own name at the top, which is why this is not in ``grpo_cl``.
"""
# pyright: basic, reportMissingImports=false

from grpo_cl.engines.missing import require_packages

require_packages("verifiers", "verifiers")

from grpo_cl.engines.verifiers.harness import EpisodeEnv, EpisodeHarness  # noqa: E402
from grpo_cl.engines.verifiers.tasks import EpisodeTaskset  # noqa: E402

__all__ = ["EpisodeEnv", "EpisodeHarness", "EpisodeTaskset"]
