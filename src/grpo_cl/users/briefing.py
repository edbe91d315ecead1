"""What an agent is told before an episode begins."""

from grpo_cl.domains.base import Domain
from grpo_cl.types import Task
from grpo_cl.users.ticket import ticket

WITH_USER = (
    "You are a customer service agent and help the user as the policy below allows. In each turn "
    "either write to the user or call a tool, never both."
)
ALONE = (
    "You are a customer service agent and work on the ticket below on your own: nobody answers "
    "messages. Every turn is a tool call. Follow the policy. Call `done` at the end."
)


def system_prompt(domain: Domain, task: Task, *, solo: bool, compact: bool = False) -> str:
    """What an agent is told before the first turn; ``compact`` is the ticket alone."""
    if domain.is_narrated:
        return "" if compact else domain.policy_text()
    if compact:
        return ticket(task) if solo else ""
    policy = f"<policy>\n{domain.policy_text(solo=solo)}\n</policy>"
    if solo:
        return f"{ALONE}\n\n{policy}\n\n<ticket>\n{ticket(task)}\n</ticket>"
    return f"{WITH_USER}\n\n{policy}"
