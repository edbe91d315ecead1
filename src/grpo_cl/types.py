"""Data types: tasks in τ²-bench's data model, messages, trajectories, rewards.

All of them are frozen pydantic records that can be written to disk and read back.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, NonNegativeInt, ValidationError


class Record(BaseModel):
    """Base of the records this package writes; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def first_problem(error: Exception) -> str:
    """One line for an error; of a validation error, which has many, the first problem."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    message = str(first["msg"]).removeprefix("Value error, ")
    if not name:
        return message
    # The input of a missing field is the mapping that lacks it.
    got = "" if first["type"] == "missing" else f" (got {first['input']!r:.200})"
    return f"{name}: {message}{got}"


class Tau2Record(BaseModel):
    """Base of τ²-bench's records; fields this package does not use are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ModelCall(Record):
    """One call of a model behind an API: as user, judge, answerer or agent."""

    role: str
    """The role of the model."""
    purpose: str
    """What the call is for: a reply, a check of a draft, a verdict."""
    model: str
    prompt: str
    """SHA-256 of the complete input; the key in the reply cache."""
    reply: str = ""
    seed: int = 0
    input_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0
    cost: float = 0.0
    """Cost in the currency of ``models.prices``; 0 for a cached reply."""
    seconds: float = 0.0
    retries: NonNegativeInt = 0
    """Failed attempts before this one."""
    is_cached: bool = False
    rejected: str | None = None
    """Why the reply was rejected and requested again."""
    error: str | None = None
    """Why there is no reply."""


class Judgement(Record):
    """The verdict of an LLM judge on the natural-language assertions of a task."""

    model: str
    votes: tuple[tuple[bool, ...], ...]
    """One row per judge call, one column per assertion."""
    calls: tuple[ModelCall, ...] = ()
    """The judge calls."""

    @property
    def met(self) -> tuple[bool, ...]:
        """Whether more than half of the votes find each assertion met."""
        return tuple(2 * sum(column) > len(column) for column in self._columns)

    @property
    def agreement(self) -> float:
        """Mean fraction of votes that agree with the majority."""
        shares = [max(sum(c), len(c) - sum(c)) / len(c) for c in self._columns]
        return fmean(shares) if shares else 1.0

    @property
    def _columns(self) -> Sequence[tuple[bool, ...]]:
        return list(zip(*self.votes, strict=True))


class AnswerCheck(Record):
    """The graded answer to one question about the memory."""

    question_id: str
    qtype: str
    answer: str
    score: float
    evidence: tuple[int, ...] = ()
    """Ids of the memory entries that support the answer."""


Requestor = Literal["assistant", "user"]
Role = Literal["system", "user", "assistant", "tool"]

ToolSchema = Mapping[str, Any]
"""A JSON function schema in the format of chat templates and OpenAI-compatible servers."""


class ToolCall(Tau2Record):
    """One tool call, by the agent or by the user."""

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
    """Tool messages: the id of the call."""
    requestor: Requestor = "assistant"
    """Tool messages: whether the agent or the user made the call."""
    error: bool = False
    """Tool messages: whether the call failed."""

    @property
    def is_visible_to_agent(self) -> bool:
        """Whether the agent reads the message; the user's tool calls and results are hidden."""
        if self.role == "tool":
            return self.requestor == "assistant"
        return self.role != "user" or not self.tool_calls


def number_calls(
    calls: Sequence[ToolCall], first: int, prefix: str = "call"
) -> tuple[ToolCall, ...]:
    """The calls with ids that are unique in an episode, such as ``call_0``, from ``first`` on."""
    return tuple(
        call.model_copy(update={"id": f"{prefix}_{number}"})
        for number, call in enumerate(calls, first)
    )


class ToolResult(Record):
    """The result of a tool call."""

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
    """Reward components; the last four are those of the memory domain."""

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
    """A gold action: a tool call of the task's reference solution."""

    action_id: str
    requestor: Requestor = "assistant"
    name: str
    arguments: dict[str, JsonValue]
    info: str | None = None
    compare_args: tuple[str, ...] | None = None
    """The arguments that are compared; None compares those of the call, empty compares none."""

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
    """A call of a function of the agent's or the user's toolkit, tool or not."""

    env_type: Requestor
    func_name: str
    arguments: dict[str, JsonValue]


class EnvAssertion(EnvFunctionCall):
    """A function that must return ``assert_value`` at the end of the episode."""

    assert_value: bool = True
    message: str | None = None


class InitializationData(Tau2Record):
    """Changes to the databases before an episode."""

    agent_data: dict[str, Any] | None = None
    user_data: dict[str, Any] | None = None


class InitialState(Tau2Record):
    """The initial state of an episode, as changes to the base databases."""

    initialization_data: InitializationData | None = None
    initialization_actions: tuple[EnvFunctionCall, ...] | None = None
    message_history: tuple[Message, ...] | None = None


class StructuredInstructions(Tau2Record):
    """Structured instructions of the user simulator."""

    domain: str
    reason_for_call: str
    known_info: str | None = None
    unknown_info: str | None = None
    task_instructions: str


class UserScenario(Tau2Record):
    """Persona and instructions of the user simulator."""

    persona: str | None = None
    instructions: StructuredInstructions | str


class Description(Tau2Record):
    """Purpose and notes of a task."""

    purpose: str | None = None
    relevant_policies: str | None = None
    notes: str | None = None


class EvaluationCriteria(Tau2Record):
    """Success criteria of an episode."""

    actions: tuple[Action, ...] | None = None
    env_assertions: tuple[EnvAssertion, ...] | None = None
    communicate_info: tuple[str, ...] | None = None
    nl_assertions: tuple[str, ...] | None = None
    reward_basis: tuple[RewardType, ...] = (RewardType.DB, RewardType.COMMUNICATE)


class Task(Tau2Record):
    """One problem of a domain."""

    id: str
    domain: str
    description: Description | None = None
    user_scenario: UserScenario
    ticket: str | None = None
    initial_state: InitialState | None = None
    evaluation_criteria: EvaluationCriteria | None = None
    required_documents: tuple[str, ...] | None = None
    difficulty: float | None = None
    """Set by a generator; without it, difficulty is derived from the number of gold actions."""
    is_refusal: bool = False
    """Whether the correct outcome leaves the databases unchanged."""
    skills: tuple[str, ...] = ()
    """The skills that a generated task needs, such as its faults or kinds of request; sorted."""

    @property
    def gold_actions(self) -> tuple[Action, ...]:
        """The reference solution, in order."""
        criteria = self.evaluation_criteria
        return (criteria.actions or ()) if criteria else ()

    @property
    def communicate_info(self) -> tuple[str, ...]:
        """Texts that the agent must tell the user."""
        criteria = self.evaluation_criteria
        return (criteria.communicate_info or ()) if criteria else ()

    @property
    def message_history(self) -> tuple[Message, ...]:
        """Messages before the start of the episode."""
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
    """The exact token ids of one episode, as read and sampled; never re-tokenised."""

    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """Loss mask: true on sampled tokens."""
    logprobs: tuple[float, ...]
    """Log-probs of the sampled tokens, as computed by the sampler."""
    turns: tuple[tuple[int, int], ...]
    """The [start, end) of each reply in ``ids``."""
    is_truncated: bool = False
    """Whether the last reply was truncated by a token limit."""


class Trajectory(Record):
    """The record of one episode."""

    task: Task
    messages: tuple[Message, ...]
    termination: Termination
    solo: bool = False
    """Whether the agent worked from a ticket without a user."""
    seed: int = 0
    tokens: TokenTrace | None = None
    """The token ids; None for an actor that is not a local model."""
    model_calls: tuple[ModelCall, ...] = ()
    """Calls of models behind an API, in any role."""
    duration_s: float = 0.0

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All tool calls of the episode in order, including the user's."""
        return tuple(call for message in self.messages for call in message.tool_calls or ())

    @property
    def has_agent_call(self) -> bool:
        """Whether any reply of the agent was a tool call; ``done`` is one and ends the episode."""
        is_done = self.termination is Termination.AGENT_STOP
        return is_done or any(m.role == "assistant" and m.tool_calls for m in self.messages)


class ActionCheck(Record):
    """Whether one gold action was matched."""

    action_id: str
    name: str
    requestor: Requestor
    is_write: bool
    match: bool
    """By τ²-bench's rule."""
    name_match: bool
    """Whether the tool was called."""
    arguments_match: bool
    """Whether a call of the tool had exactly the compared gold arguments."""


class StepReward(Record):
    """The reward of one turn, in domains with per-turn rewards."""

    value: float
    components: dict[RewardType, float] = Field(default_factory=dict)


class TrajectoryGroup(Record):
    """The episodes of one task with their rewards; advantages are relative to the group."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    rewards: tuple["Reward", ...]
    training_rewards: tuple[float, ...]
    """The training rewards: the rewards' values, or shaped ones."""


SUCCESS = 1 - 1e-6
"""The minimum reward of a success: a product of floats may be slightly below 1."""


class Reward(Record):
    """The reward of an episode, with its components and checks."""

    value: float
    """Product over the judged components of ``basis``."""
    basis: tuple[RewardType, ...] | None
    """The components that were multiplied; None for an episode that was cut short."""
    basis_name: str
    """``tau2`` for the task's own basis, otherwise the name of the replacement rule."""
    components: dict[RewardType, float] = Field(default_factory=dict)
    not_judged: tuple[RewardType, ...] = ()
    """Components of the basis that require a judge, when there was none."""
    action_checks: tuple[ActionCheck, ...] = ()
    env_assertions: tuple[bool, ...] = ()
    communicate_checks: tuple[bool, ...] = ()
    tool_accuracy: float | None = None
    """Fraction of gold actions that were matched; None if the task has none."""
    agreement: float | None = None
    """Fraction of the records changed by the episode or the gold actions that are in the gold final
    state; None if DB is not in the basis."""
    steps: tuple[StepReward, ...] = ()
    """One per turn, in domains with per-turn rewards; their mean is the training reward."""
    answer_checks: tuple[AnswerCheck, ...] = ()
    model_calls: tuple[ModelCall, ...] = ()
    """Calls of models that answer questions or judge content."""
    judgement: Judgement | None = None
    """The verdict on the natural-language assertions; None if there was nothing to judge."""
    reason: str | None = None
    """Why a component, or the whole reward, could not be computed."""
