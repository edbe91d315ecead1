"""Mem-α's interface at its public import path; the code is in ``integrations.mem_alpha``.

``python -m grpo_cl.mem_alpha --mode demo|construct|eval|retrieve`` is ``grpo-cl memory MODE``.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from grpo_cl.integrations.mem_alpha import (
    AgentAction,
    Completion,
    ConversationChunk,
    EvaluationResult,
    GRPOBatch,
    GRPOTrainer,
    HuggingFacePolicy,
    HybridRetriever,
    MemoryCategory,
    MemoryConstructionAgent,
    MemoryManager,
    MemorySystem,
    PolicyModel,
    QAEvaluator,
    QAResult,
    Question,
    RetrievalResult,
    RewardCalculator,
    Rewards,
    RolloutResult,
    ToolCallResult,
    TrainingInstance,
    TwoLayerRAGRetriever,
)

if TYPE_CHECKING:
    from grpo_cl.policy.learner.torch_policy import TorchPolicy

__all__ = [
    "AgentAction",
    "Completion",
    "ConversationChunk",
    "EvaluationResult",
    "GRPOBatch",
    "GRPOTrainer",
    "HuggingFacePolicy",
    "HybridRetriever",
    "MemoryCategory",
    "MemoryConstructionAgent",
    "MemoryManager",
    "MemorySystem",
    "PolicyModel",
    "QAEvaluator",
    "QAResult",
    "Question",
    "RetrievalResult",
    "RewardCalculator",
    "Rewards",
    "RolloutResult",
    "ToolCallResult",
    "TorchPolicy",
    "TrainingInstance",
    "TwoLayerRAGRetriever",
]

_MODE = "--mode"


def __getattr__(name: str) -> object:
    if name == "TorchPolicy":  # on first use, since torch is slow to import
        return import_module("grpo_cl.policy.learner.torch_policy").TorchPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(arguments: Sequence[str]) -> int:
    """Run ``grpo-cl memory`` with the mode as its command; the default is the demo."""
    from grpo_cl.cli import main as run  # noqa: PLC0415  # not needed by programs

    given = [part for argument in arguments for part in _split(argument)]
    if _MODE not in given:
        return run(["memory", "demo", *given])
    position = given.index(_MODE)
    mode = given[position + 1 : position + 2]
    return run(["memory", *mode, *given[:position], *given[position + 2 :]])


def _split(argument: str) -> list[str]:
    """``--mode=demo`` as two arguments; others as they are."""
    return argument.split("=", 1) if argument.startswith(f"{_MODE}=") else [argument]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
