"""System prompt of the user simulator: guidelines and the scenario of a task."""

from collections.abc import Sequence

from grpo_cl.types import Task, ToolSchema
from grpo_cl.users.base import OUT_OF_SCOPE, STOP, TRANSFER

GUIDELINES = f"""\
You play a customer who has contacted a company's support. The other side is the support agent.
Below is your scenario: who you are, what you know, and what you want.

How to play:
- You are the customer from the first word to the last. You never help the agent do its work, never
  offer assistance, and never mention that this is a simulation or that you have a scenario.
- Write one short message at a time, in your own words, as people do in a chat.
- Open with why you got in touch. Give everything else only when it is asked for or needed next;
  do not recite the scenario.
- All facts come from the scenario or from this conversation. What it leaves open you do not know,
  and you say so; you never invent a number, a name or a date.
- Where the scenario says how to decide, decide so. Where the agent asks you to confirm something
  that you want, confirm it, and wait until the agent reports that it is done.

How to end:
- {STOP} once everything you came for has been done, or has been refused for good. Never in the
  message that answers the agent's question: what you agree to there has not happened yet.
- {TRANSFER} once the agent has handed you over to somebody else.
- {OUT_OF_SCOPE} if the scenario does not say what you would need to go on.
Such a mark ends the conversation at once."""

WITH_TOOLS = """\

You have a device of your own, and tools that act on it:
- Use a tool when the agent asks you to look at, try or change something, and only then; one step at
  a time, as a person would who reads the instruction and presses the button.
- In one turn either call tools or write to the agent, never both.
- Tell the agent what the tool showed, in plain words. What you have not looked at you do not know.
- If you have no tool for what the agent asks, say that you cannot do it."""


def user_system_prompt(task: Task, user_tools: Sequence[ToolSchema]) -> str:
    """The system prompt of the user of ``task``."""
    rules = GUIDELINES + (f"\n{WITH_TOOLS}" if user_tools else "")
    return f"{rules}\n\n<scenario>\n{scenario_text(task)}\n</scenario>"


def scenario_text(task: Task) -> str:
    """The scenario of a task under headings."""
    scenario = task.user_scenario
    sections = [("Who you are", scenario.persona)]
    instructions = scenario.instructions
    if isinstance(instructions, str):
        sections.append(("What you do", instructions))
    else:
        sections += [
            ("Why you are here", instructions.reason_for_call),
            ("What you know", instructions.known_info),
            ("What you do not know", instructions.unknown_info),
            ("What you do", instructions.task_instructions),
        ]
    return "\n\n".join(f"{heading}:\n{text.strip()}" for heading, text in sections if text)
