"""Requests of a simulated customer, and how the requests of one task are drawn."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

from grpo_cl.envs.generation.tasks import TaskMaker, TaskSpec, agent_task
from grpo_cl.envs.generation.wording import Wording
from grpo_cl.types import Task

REFUSAL_SHARE = 0.15
"""Share of tasks at difficulty 1 that contain forbidden requests only."""
FORBIDDEN_SHARE = 0.4
"""Share of the other tasks at difficulty 1 that contain one forbidden request."""
HARD_LEVEL = 0.5
"""Difficulty from which on the hard requests of a mix are drawn."""
MIN_ANSWER_LENGTH = 4
"""Characters; a shorter answer could occur in a reply by accident."""

Call = tuple[str, dict[str, Any]]
"""A tool and its arguments."""
T = TypeVar("T")


class Question(NamedTuple):
    """A fact that the customer asks for, the answer, and the calls that look it up."""

    subject: str
    answer: str
    reads: Sequence[Call] = ()


def question(subject: str, answer: str) -> Sequence[Question]:
    """One question, or none if the answer is too short to be checked in the agent's replies."""
    return (Question(subject, answer),) if len(answer) >= MIN_ANSWER_LENGTH else ()


class Request(NamedTuple):
    """One request of a customer, and the calls that fulfil it."""

    purpose: str
    wording: Wording
    """The text after 'You want to', without the full stop."""
    reads: Sequence[Call]
    writes: Sequence[Call] = ()
    """Empty if the policy forbids the request."""
    has_fallback: bool = False
    """Whether the wording already says what to do if the request cannot be fulfilled."""
    questions: Sequence[Question] = ()
    kinds: Sequence[str] = ()
    """Kinds of request that this one combines; empty for the one that ``purpose`` names."""

    @property
    def skills(self) -> list[str]:
        """The kinds of request, marked if the policy forbids them."""
        mark = "" if self.writes else "refused: "
        return [f"{mark}{kind}" for kind in self.kinds or (self.purpose,)]


@dataclass(kw_only=True)
class Case:
    """A customer's call under construction; domains add the customer and their records."""

    rng: Random
    level: float
    """Difficulty in [0, 1]."""

    def chance(self, share: float) -> bool:
        """True with probability ``share`` at difficulty 1, never at difficulty 0."""
        return self.rng.random() < share * self.level

    def omits_detail(self) -> bool:
        """Whether the customer leaves out the next detail, so that the agent has to look it up."""
        return self.rng.random() < self.level

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """The items in random order."""
        shuffled = list(items)
        self.rng.shuffle(shuffled)
        return shuffled


CaseT = TypeVar("CaseT", bound=Case)
RequestMaker = Callable[[CaseT], Request | None]
"""Draws a request of the case's customer; None if the customer's records allow none."""
OpenCase = Callable[[Random, float, RequestMaker[CaseT] | None, int], CaseT]
"""Draws a customer who can make the given first request and number of requests, if given."""

SpecWriter = Callable[[CaseT, Sequence[Request]], TaskSpec]
"""Writes texts and gold calls of the task in which the customer makes all the requests."""


@dataclass(frozen=True, kw_only=True)
class RequestMix(Generic[CaseT]):
    """The requests of a domain and how often they are drawn."""

    allowed: Mapping[RequestMaker[CaseT], int]
    """Requests that the policy allows, with their weights."""
    hard: Mapping[RequestMaker[CaseT], int] = field(default_factory=dict)
    """Allowed requests that are drawn from ``HARD_LEVEL`` on."""
    forbidden: Sequence[RequestMaker[CaseT]]
    """Forbidden requests that can be combined with allowed ones."""
    last_resort: RequestMaker[CaseT]
    """The forbidden request that every customer can make; it is tried after the others."""
    handed_over: Sequence[RequestMaker[CaseT]]
    """Requests that end in a transfer to a human; a task contains no other request then."""
    num_forbidden_tried: int = 3
    extra_requests: float = 2.5
    """Mean number of allowed requests beyond the first at difficulty 1."""
    customers_tried: int = 40
    """Customers tried for a draw before it is given up."""


def request_task_maker(
    mix: RequestMix[CaseT],
    open_case: OpenCase[CaseT],
    write_spec: SpecWriter[CaseT],
    *,
    domain: str,
) -> TaskMaker:
    """A task maker that draws a customer with requests from ``mix``."""

    def make(rng: Random, level: float) -> Task | None:
        is_refusal = rng.random() < REFUSAL_SHARE * level
        draw = _draw_refusal if is_refusal else _draw_allowed
        drawn = draw(mix, open_case, rng, level)
        if drawn is None:
            return None
        case, requests = drawn
        skills = (skill for request in requests for skill in request.skills)
        return agent_task(write_spec(case, requests), domain=domain, skills=skills)

    return make


def _draw_refusal(
    mix: RequestMix[CaseT], open_case: OpenCase[CaseT], rng: Random, level: float
) -> tuple[CaseT, list[Request]] | None:
    make = rng.choice((*mix.forbidden, *mix.handed_over))
    for _ in range(mix.customers_tried):
        case = open_case(rng, level, None, 0)
        if request := make(case):
            return case, [request]
    return None


def _draw_allowed(
    mix: RequestMix[CaseT], open_case: OpenCase[CaseT], rng: Random, level: float
) -> tuple[CaseT, list[Request]] | None:
    extra = mix.extra_requests * level
    count = 1 + int(extra) + (rng.random() < extra % 1)
    weights = {**mix.allowed, **(mix.hard if level >= HARD_LEVEL else {})}
    makers = rng.choices(list(weights), list(weights.values()), k=4 * count)
    has_forbidden = rng.random() < FORBIDDEN_SHARE * level
    for _ in range(mix.customers_tried):
        case = open_case(rng, level, makers[0], count + has_forbidden)
        requests = _make_requests(case, makers, count)
        if len(requests) < count:
            continue
        if has_forbidden and (forbidden := _make_forbidden(case, mix)):
            requests.insert(rng.randint(0, count), forbidden)
        return case, requests
    return None


def _make_requests(case: CaseT, makers: Sequence[RequestMaker[CaseT]], count: int) -> list[Request]:
    """Up to ``count`` requests; none if the first maker finds nothing."""
    first = makers[0](case)
    requests = [first] if first else []
    for make in makers[1:] if requests else ():
        if len(requests) < count and (request := make(case)):
            requests.append(request)
    return requests


def _make_forbidden(case: CaseT, mix: RequestMix[CaseT]) -> Request | None:
    makers = case.rng.sample(mix.forbidden, mix.num_forbidden_tried)
    makers.sort(key=lambda make: make is mix.last_resort)
    return next((request for make in makers if (request := make(case))), None)
