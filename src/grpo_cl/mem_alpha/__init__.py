"""Memory construction in a few lines, under the names of the earlier package: docs/memory.md."""

from grpo_cl.mem_alpha.agent import AgentAction, MemoryConstructionAgent
from grpo_cl.mem_alpha.data import ConversationChunk, Question, TrainingInstance
from grpo_cl.mem_alpha.evaluator import QAEvaluator, QAResult
from grpo_cl.mem_alpha.retriever import RetrievalResult, TwoLayerRAGRetriever
from grpo_cl.mem_alpha.rewards import RewardCalculator, Rewards
from grpo_cl.mem_alpha.trainer import GRPOTrainer
from grpo_cl.memory import MemorySystem

__all__ = [
    "AgentAction",
    "ConversationChunk",
    "GRPOTrainer",
    "MemoryConstructionAgent",
    "MemorySystem",
    "QAEvaluator",
    "QAResult",
    "Question",
    "RetrievalResult",
    "RewardCalculator",
    "Rewards",
    "TrainingInstance",
    "TwoLayerRAGRetriever",
]
