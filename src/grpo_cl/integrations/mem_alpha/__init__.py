"""Mem-α's interface to the memory domain (docs/memory.md)."""

from grpo_cl.envs.memory import MemorySystem
from grpo_cl.integrations.mem_alpha.agent import AgentAction, MemoryConstructionAgent
from grpo_cl.integrations.mem_alpha.data import ConversationChunk, Question, TrainingInstance
from grpo_cl.integrations.mem_alpha.hugging_face_policy import HuggingFacePolicy
from grpo_cl.integrations.mem_alpha.policy_model import Completion, PolicyModel
from grpo_cl.integrations.mem_alpha.question_answering import (
    HybridRetriever,
    QAEvaluator,
    QAResult,
    RetrievalResult,
    TwoLayerRAGRetriever,
)
from grpo_cl.integrations.mem_alpha.rewards import EvaluationResult, RewardCalculator
from grpo_cl.integrations.mem_alpha.rollouts import GRPOBatch, RolloutResult
from grpo_cl.integrations.mem_alpha.tools import MemoryCategory, MemoryManager, ToolCallResult
from grpo_cl.integrations.mem_alpha.trainer import GRPOTrainer

Rewards = EvaluationResult
"""The name of ``EvaluationResult`` in release 0.2."""

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
    "TrainingInstance",
    "TwoLayerRAGRetriever",
]
