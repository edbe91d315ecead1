"""The data that flows: tasks in τ²-bench's own model, messages, trajectories, rewards.

Everything here can be written to disk and read back, so everything is a frozen record.
"""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, JsonValue

from grpo_cl.records import Record as Record
from grpo_cl.records import Tau2Record as Tau2Record
from grpo_cl.transcripts import AnswerCheck, Judgement, ModelCall

Requestor = Literal["assistant", "user"]
Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(Tau2Record):
    """One use of one tool, by the agent or by the user."""

    id: str = ""
    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    requestor: Requestor = "assistant"


class Message(Tau2Record):
    """One entry of a conversation, as τ²-bench records it."""

    role: Role
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    id: str | None = None
    """Of a tool message: the call it answers."""
    requestor: Requestor = "assistant"
    """Of a tool message: who made the call."""
    error: bool = False
    """Of a tool message: whether the call failed."""


class ToolResult(Record):
    """What the caller of a tool reads."""

    content: str
    error: bool = False

    def message(self, call: ToolCall) -> Message:
        """The result as the message that answers ``call``."""
        return Message(
            role="tool",
            id=call.id,
            content=self.content,
            requestor=call.requestor,
            error=self.error,
        )


class RewardType(StrEnum):
    """The components a reward is a product of; the last four are the memory domain's."""

    DB = "DB"
    ENV_ASSERTION = "ENV_ASSERTION"
    NL_ASSERTION = "NL_ASSERTION"
    ACTION = "ACTION"
    COMMUNICATE = "COMMUNICATE"
    ANSWERS = "ANSWERS"
    CALLS = "CALLS"
    COMPRESSION = "COMPRESSION"
    CONTENT = "CONTENT"


class Action(Tau2Record):
    """A gold action: a call that belongs to the task's solution."""

    action_id: str
    requestor: Requestor = "assistant"
    name: str
    arguments: dict[str, JsonValue]
    info: str | None = None
    compare_args: tuple[str, ...] | None = None
    """The arguments a call must share; None compares those the call has, empty compares none."""

    @property
    def call(self) -> ToolCall:
        """The action as a tool call."""
        return ToolCall(
            id=self.action_id,
            name=self.name,
            arguments=self.arguments,
            requestor=self.requestor,
        )


class EnvFunctionCall(Tau2Record):
    """A call of any function of the agent's or the user's side, tool or not."""

    env_type: Requestor
    func_name: str
    arguments: dict[str, JsonValue]


class EnvAssertion(EnvFunctionCall):
    """A function that must return ``assert_value`` at the end."""

    assert_value: bool = True
    message: str | None = None


class InitializationData(Tau2Record):
    """Changes to the databases before an episode."""

    agent_data: dict[str, Any] | None = None
    user_data: dict[str, Any] | None = None


class InitialState(Tau2Record):
    """How the world differs from the base database when an episode starts."""

    initialization_data: InitializationData | None = None
    initialization_actions: tuple[EnvFunctionCall, ...] | None = None
    message_history: tuple[Message, ...] | None = None


class StructuredInstructions(Tau2Record):
    """What a simulated user knows and wants, by heading."""

    domain: str
    reason_for_call: str
    known_info: str | None = None
    unknown_info: str | None = None
    task_instructions: str


class UserScenario(Tau2Record):
    """Who the user is and what they want."""

    persona: str | None = None
    instructions: StructuredInstructions | str


class Description(Tau2Record):
    """What a task is for."""

    purpose: str | None = None
    relevant_policies: str | None = None
    notes: str | None = None


class EvaluationCriteria(Tau2Record):
    """What must be true at the end of a successful episode."""

    actions: tuple[Action, ...] | None = None
    env_assertions: tuple[EnvAssertion, ...] | None = None
    communicate_info: tuple[str, ...] | None = None
    nl_assertions: tuple[str, ...] | None = None
    reward_basis: tuple[RewardType, ...] = (RewardType.DB, RewardType.COMMUNICATE)


class Task(Tau2Record):
    """One problem. It knows its domain, so a mixed batch needs no side table."""

    id: str
    domain: str
    description: Description | None = None
    user_scenario: UserScenario
    ticket: str | None = None
    initial_state: InitialState | None = None
    evaluation_criteria: EvaluationCriteria | None = None
    required_documents: tuple[str, ...] | None = None
    difficulty: float | None = None
    """Set by a generator; otherwise the number of gold actions stands for it."""
    is_refusal: bool = False
    """Whether leaving the world untouched is the right outcome."""

    @property
    def gold_actions(self) -> tuple[Action, ...]:
        """The calls that solve the task, in order."""
        criteria = self.evaluation_criteria
        return (criteria.actions or ()) if criteria else ()

    @property
    def message_history(self) -> tuple[Message, ...]:
        """What was said and done before the episode begins."""
        return (self.initial_state.message_history or ()) if self.initial_state else ()


class Termination(StrEnum):
    """Why an episode ended; only the first two are scored."""

    USER_STOP = "user_stop"
    AGENT_STOP = "agent_stop"
    MAX_STEPS = "max_steps"
    TIMEOUT = "timeout"
    TOO_MANY_ERRORS = "too_many_errors"
    AGENT_ERROR = "agent_error"
    USER_ERROR = "user_error"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    CONTEXT_WINDOW_EXCEEDED = "context_window_exceeded"
    UNEXPECTED_ERROR = "unexpected_error"


class TokenTrace(Record):
    """The exact token ids of one episode, as the sampler saw and made them; never re-tokenised."""

    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True on the tokens the policy produced: the only ones a loss may count."""
    logprobs: tuple[float, ...]
    """Of the tokens under the mask, in order, as the sampler drew them."""
    turns: tuple[tuple[int, int], ...]
    """The [start, end) of each reply in ``ids``."""
    is_truncated: bool = False
    """Whether the last reply was cut off by a limit instead of ending itself."""


class Trajectory(Record):
    """The record of one episode."""

    task: Task
    messages: tuple[Message, ...]
    termination: Termination
    solo: bool = False
    """Whether the agent worked alone from a ticket."""
    seed: int = 0
    tokens: TokenTrace | None = None
    """What a policy read and wrote; None for an actor that is no model."""
    model_calls: tuple[ModelCall, ...] = ()
    """What was asked of models behind an API, by whichever side they played."""
    duration_s: float = 0.0

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Every tool call of the episode, the user's too, in order."""
        return tuple(call for message in self.messages for call in message.tool_calls or ())


class ActionCheck(Record):
    """How one gold action was met."""

    action_id: str
    name: str
    requestor: Requestor
    is_write: bool
    match: bool
    """As τ²-bench judges it."""
    name_match: bool
    """Whether the tool was called at all."""
    arguments_match: bool
    """Whether some call of the tool had exactly the gold arguments that are compared."""


class StepReward(Record):
    """What one reply earned, in a domain that rewards each of them."""

    value: float
    components: dict[RewardType, float] = Field(default_factory=dict)


class TrajectoryGroup(Record):
    """The episodes of one task with their rewards; advantages are relative to the group."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    rewards: tuple["Reward", ...]
    training_rewards: tuple[float, ...]
    """What is learned from: the rewards' values, or shaped ones."""


SUCCESS = 1 - 1e-6
"""The least reward of an episode that succeeded: a product of floats may miss 1 by a little."""


class Reward(Record):
    """A score and everything it was made of."""

    value: float
    """Product over the judged components of ``basis``."""
    basis: tuple[RewardType, ...] | None
    """The components that were multiplied; None for an episode that ended too early."""
    basis_name: str
    """``tau2`` for the task's own basis, otherwise the name of the rule that replaced it."""
    components: dict[RewardType, float] = Field(default_factory=dict)
    not_judged: tuple[RewardType, ...] = ()
    """Components of the basis that need a judge and had none."""
    action_checks: tuple[ActionCheck, ...] = ()
    env_assertions: tuple[bool, ...] = ()
    communicate_checks: tuple[bool, ...] = ()
    tool_accuracy: float | None = None
    """Share of gold actions matched; None where the task has none."""
    agreement: float | None = None
    """Share of what the episode or gold changed in the databases that is as gold leaves it; None
    where DB is not in the basis."""
    steps: tuple[StepReward, ...] = ()
    """One for each reply, in a domain that rewards each of them; their mean is learned from."""
    answer_checks: tuple[AnswerCheck, ...] = ()
    model_calls: tuple[ModelCall, ...] = ()
    """What was asked of models that answer questions or judge content."""
    judgement: Judgement | None = None
    """Who judged the natural-language assertions, and how; None where nobody had to."""
    reason: str | None = None
    """Why a component could not be computed, or why nothing was."""
