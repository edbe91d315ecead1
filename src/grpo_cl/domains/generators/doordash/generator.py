"""Customers of the delivery service with requests the policy allows, and some it forbids."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from grpo_cl.domains.doordash.database import Customer, DoordashDB, MenuItem, Order
from grpo_cl.domains.generators.doordash import changes, items, ordering, refunds, refusals
from grpo_cl.domains.generators.doordash.case import Case, Request
from grpo_cl.domains.generators.doordash.draft import draft
from grpo_cl.domains.generators.draft import TaskMaker, agent_task, in_split
from grpo_cl.types import Task

Maker = Callable[[Case], Request | None]

REFUSAL_SHARE = 0.15
"""Tasks at difficulty 1 in which everything asked for is forbidden."""
TRAP_SHARE = 0.4
"""Other tasks at difficulty 1 in which one request is forbidden."""
MORE_REQUESTS = 2.2
"""Requests at difficulty 1 beyond the first, on average."""
CUSTOMERS_TRIED = 60
"""Customers tried for what was drawn before the draw is given up."""

KINDS: Mapping[Maker, int] = {
    ordering.order: 4,
    items.add: 2,
    items.change: 2,
    items.drop: 2,
    changes.cancel: 2,
    changes.redirect: 2,
    changes.tip: 2,
    changes.move: 1,
    refunds.refund: 4,
}
"""How often each request is drawn."""
TRAPS: tuple[Maker, ...] = (
    ordering.closed,
    ordering.too_far,
    ordering.too_little,
    ordering.allergenic,
    items.add_allergen,
    items.change_late,
    items.drop_too_much,
    changes.cancel_free,
    changes.cancel_late,
    changes.redirect_late,
    changes.redirect_far,
    changes.tip_back,
    refunds.refund_late,
    refunds.refund_taste,
    refunds.refund_again,
    refunds.refund_beyond,
    refusals.strange_order,
)
"""Forbidden requests that can stand beside allowed ones."""
HANDED_OVER: tuple[Maker, ...] = (refunds.refund_large, refusals.hand_over)
"""Requests that end the agent's part."""


class Clientele(NamedTuple):
    """The customers of one half with their orders."""

    database: DoordashDB
    menus: Mapping[str, Sequence[MenuItem]]
    """What each restaurant has today."""
    customers: Sequence[Customer]
    orders: Mapping[str, Sequence[Order]]
    """By customer id."""
    placed: Sequence[Order]


def task_maker(database: DoordashDB, split: str) -> TaskMaker:
    """What draws a task about a customer of ``split``, its gold calls obeying the policy."""
    return partial(_make, clientele_of(database, split))


def clientele_of(database: DoordashDB, split: str) -> Clientele:
    """Everybody a task of ``split`` may speak of."""
    customers = [each for key, each in database.customers.items() if in_split(key, split)]
    orders = {each.customer_id: [database.orders[key] for key in each.orders] for each in customers}
    placed = [order for own in orders.values() for order in own if order.status == "placed"]
    menus: dict[str, list[MenuItem]] = {key: [] for key in database.restaurants}
    for item in database.items.values():
        if item.is_available:
            menus[item.restaurant_id].append(item)
    return Clientele(database, menus, customers, orders, placed)


def _make(clientele: Clientele, rng: Random, level: float) -> Task | None:
    plan = _forbidden if rng.random() < REFUSAL_SHARE * level else _errand
    drawn = plan(clientele, rng, level)
    return agent_task(draft(*drawn), domain="doordash") if drawn else None


def _forbidden(
    clientele: Clientele, rng: Random, level: float
) -> tuple[Case, list[Request]] | None:
    trap = rng.choice((*TRAPS, *HANDED_OVER))
    for _ in range(CUSTOMERS_TRIED):
        case = open_case(clientele, rng, level)
        if request := trap(case):
            return case, [request]
    return None


def _errand(clientele: Clientele, rng: Random, level: float) -> tuple[Case, list[Request]] | None:
    more = MORE_REQUESTS * level
    count = 1 + int(more) + (rng.random() < more % 1)
    first, *others = rng.choices(list(KINDS), list(KINDS.values()), k=4 * count)
    has_trap = rng.random() < TRAP_SHARE * level
    for _ in range(CUSTOMERS_TRIED):
        case = open_case(clientele, rng, level)
        requests = _requests(case, first, others, count)
        if len(requests) < count:
            continue
        if has_trap and (trap := _trap(case)):
            requests.insert(rng.randint(0, count), trap)
        return case, requests
    return None


def _trap(case: Case) -> Request | None:
    # A stranger's order can always be asked about, so it comes after what needs a fitting order.
    makers = sorted(case.rng.sample(TRAPS, 5), key=lambda maker: maker is refusals.strange_order)
    return next((request for maker in makers if (request := maker(case))), None)


def _requests(case: Case, first: Maker, others: Sequence[Maker], count: int) -> list[Request]:
    request = first(case)
    requests = [request] if request else []
    for kind in others if requests else ():
        if len(requests) < count and (request := kind(case)):
            requests.append(request)
    return requests


def open_case(clientele: Clientele, rng: Random, level: float) -> Case:
    """A call of somebody, about nothing yet."""
    customer = rng.choice(clientele.customers)
    return Case(
        customer=customer,
        orders=clientele.orders[customer.customer_id],
        database=clientele.database,
        menus=clientele.menus,
        strangers=clientele.placed,
        rng=rng,
        level=level,
    )
