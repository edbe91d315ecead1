"""Customers of the retail shop with requests the rules allow, and some they forbid."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from inspect_evals.tau2.retail.data_model import Order, Product, RetailDB, User

from grpo_cl.domains.generators.draft import TaskMaker, agent_task, customers
from grpo_cl.domains.generators.retail.case import Case, Request
from grpo_cl.domains.generators.retail.draft import draft
from grpo_cl.domains.generators.retail.items import alter, either, exchange, send_back
from grpo_cl.domains.generators.retail.orders import cancel, move, pay_otherwise, redirect
from grpo_cl.domains.generators.retail.refusals import TRAPS, strange_order, unoffered
from grpo_cl.types import Task

Maker = Callable[[Case], Request | None]

REFUSAL_SHARE = 0.15
"""Tasks at difficulty 1 in which everything asked for is forbidden."""
TRAP_SHARE = 0.4
"""Other tasks at difficulty 1 in which one request is forbidden."""
MORE_WRITES = 2.5
"""Writes at difficulty 1 beyond the first, on average."""
CUSTOMERS_TRIED = 40
"""Customers tried for what was drawn before the draw is given up."""

_KINDS: Mapping[Maker, tuple[int, str | None]] = {
    cancel: (2, "pending"),
    redirect: (2, "pending"),
    move: (1, None),
    pay_otherwise: (1, "pending"),
    alter: (3, "pending"),
    exchange: (3, "delivered"),
    send_back: (3, "delivered"),
    either: (1, "delivered"),
}
"""How often each request is drawn, and the status of the order it needs."""


class Shop(NamedTuple):
    """The customers of one half with their orders."""

    products: dict[str, Product]
    users: Sequence[User]
    """Those who have an order at all."""
    orders: Mapping[str, Sequence[Order]]
    """By user id."""
    pending: Sequence[Order]
    able: Mapping[tuple[str | None, int], Sequence[User]]
    """Who has an order of a status, and enough to ask for that many changes."""


def task_maker(database: RetailDB, split: str) -> TaskMaker:
    """What draws a task about a customer of ``split``, its gold calls obeying the shop's policy."""
    return partial(_make, _shop(database, split))


def _shop(database: RetailDB, split: str) -> Shop:
    found = customers(database.users, folder="retail", split=split)
    users = [user for user in found if user.orders]
    orders = {user.user_id: [database.orders[number] for number in user.orders] for user in users}
    statuses = {key: [order.status for order in found] for key, found in orders.items()}
    able = {
        (status, changes): [
            user
            for user in users
            if (status is None or status in statuses[user.user_id])
            and _capacity(statuses[user.user_id]) >= changes
        ]
        for status in ("pending", "delivered", None)
        for changes in range(1, 6)
    }
    pending = [order for own in orders.values() for order in own if order.status == "pending"]
    return Shop(database.products, users, orders, pending, able)


def _capacity(statuses: Sequence[str]) -> int:
    return 1 + statuses.count("pending") + statuses.count("delivered")


def _make(shop: Shop, rng: Random, level: float) -> Task | None:
    plan = _forbidden if rng.random() < REFUSAL_SHARE * level else _errand
    drawn = plan(shop, rng, level)
    return agent_task(draft(*drawn), domain="retail") if drawn else None


def _forbidden(shop: Shop, rng: Random, level: float) -> tuple[Case, list[Request]] | None:
    trap = rng.choice((*TRAPS, unoffered))
    for _ in range(CUSTOMERS_TRIED):
        case = _case(shop, rng.choice(shop.users), rng, level)
        if request := trap(case):
            return case, [request]
    return None


def _errand(shop: Shop, rng: Random, level: float) -> tuple[Case, list[Request]] | None:
    more = MORE_WRITES * level
    count = 1 + int(more) + (rng.random() < more % 1)
    first, *others = rng.choices(
        list(_KINDS), [weight for weight, _ in _KINDS.values()], k=4 * count
    )
    has_trap = rng.random() < TRAP_SHARE * level
    able = shop.able[_KINDS[first][1], count + has_trap]
    for _ in range(CUSTOMERS_TRIED):
        case = _case(shop, rng.choice(able), rng, level)
        requests = _requests(case, first, others, count)
        if len(requests) < count:
            continue
        if has_trap and (trap := _trap(case)):
            requests.insert(rng.randint(0, count), trap)
        return case, requests
    return None


def _trap(case: Case) -> Request | None:
    # A stranger's order can always be asked about, so it comes after what needs a fitting order.
    traps = sorted(case.rng.sample(TRAPS, 3), key=lambda trap: trap is strange_order)
    return next((request for trap in traps if (request := trap(case))), None)


def _requests(case: Case, first: Maker, others: Sequence[Maker], count: int) -> list[Request]:
    request = first(case)
    requests = [request] if request else []
    for kind in others if requests else ():
        if len(requests) < count and (request := kind(case)):
            requests.append(request)
    return requests


def _case(shop: Shop, user: User, rng: Random, level: float) -> Case:
    return Case(
        user=user,
        orders=shop.orders[user.user_id],
        products=shop.products,
        strangers=shop.pending,
        rng=rng,
        level=level,
    )
