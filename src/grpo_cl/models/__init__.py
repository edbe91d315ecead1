"""Chat models behind an API: asked by name, patiently, within a budget, and never twice."""

from grpo_cl.models.endpoints import Endpoint, Models
from grpo_cl.models.prompt import Completion, Form, Manner, Prompt, Reply, Speaker
from grpo_cl.models.voice import Voice

__all__ = [
    "Completion",
    "Endpoint",
    "Form",
    "Manner",
    "Models",
    "Prompt",
    "Reply",
    "Speaker",
    "Voice",
]
