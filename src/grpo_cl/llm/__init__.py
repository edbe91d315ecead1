"""LLM API client: retries, token and money budget, reply cache, rate limit."""

from grpo_cl.llm.chat_session import ChatSession
from grpo_cl.llm.model_pool import HostedModel, ModelPool
from grpo_cl.llm.model_use import ModelUse
from grpo_cl.llm.prompt import (
    ChatModel,
    Completion,
    GenerationParams,
    Prompt,
    Reply,
    ResponseSchema,
)

__all__ = [
    "ChatModel",
    "ChatSession",
    "Completion",
    "GenerationParams",
    "HostedModel",
    "ModelPool",
    "ModelUse",
    "Prompt",
    "Reply",
    "ResponseSchema",
]
