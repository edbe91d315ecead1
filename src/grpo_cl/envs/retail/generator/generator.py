"""Retail tasks: customers of the database with requests that the policy allows or forbids."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from inspect_evals.tau2.retail.data_model import Order, Product, RetailDB, User

from grpo_cl.envs.generation.customers import customers
from grpo_cl.envs.generation.requests import (
    RequestMaker,
    RequestMix,
    SpecWriter,
    request_task_maker,
)
from grpo_cl.envs.generation.tasks import TaskMaker
from grpo_cl.envs.retail.generator.case import RetailCase
from grpo_cl.envs.retail.generator.items import (
    change_item,
    exchange,
    exchange_or_return,
    return_items,
)
from grpo_cl.envs.retail.generator.orders import (
    cancel,
    change_address,
    change_default_address,
    change_payment,
)
from grpo_cl.envs.retail.generator.refusals import (
    FORBIDDEN,
    cancel_order_of_other_customer,
    unsupported,
)
from grpo_cl.envs.retail.generator.scenario import write_spec

MIX: RequestMix[RetailCase] = RequestMix(
    allowed={
        cancel: 2,
        change_address: 2,
        change_default_address: 1,
        change_payment: 1,
        change_item: 3,
        exchange: 3,
        return_items: 3,
        exchange_or_return: 1,
    },
    forbidden=FORBIDDEN,
    last_resort=cancel_order_of_other_customer,
    handed_over=(unsupported,),
)
_NEEDED_STATUS: Mapping[RequestMaker[RetailCase], str] = {
    cancel: "pending",
    change_address: "pending",
    change_payment: "pending",
    change_item: "pending",
    exchange: "delivered",
    return_items: "delivered",
    exchange_or_return: "delivered",
}
"""Status of the order that a request needs."""


class RetailIndex(NamedTuple):
    """The customers of one split with their orders."""

    products: dict[str, Product]
    users: Sequence[User]
    """Customers with at least one order."""
    orders: Mapping[str, Sequence[Order]]
    """By user id."""
    pending: Sequence[Order]
    eligible: Mapping[tuple[str | None, int], Sequence[User]]
    """Customers by the status of an order they have and the number of requests they can make."""

    def open_case(
        self, rng: Random, level: float, first: RequestMaker[RetailCase] | None, count: int
    ) -> RetailCase:
        """A customer without requests, eligible for ``first`` and for ``count`` requests."""
        status = _NEEDED_STATUS.get(first) if first else None
        user = rng.choice(self.eligible[status, count] if first else self.users)
        return RetailCase(
            user=user,
            orders=self.orders[user.user_id],
            products=self.products,
            pending_orders=self.pending,
            rng=rng,
            level=level,
        )


def task_maker(
    database: RetailDB, split: str, *, write: SpecWriter[RetailCase] = write_spec
) -> TaskMaker:
    """The function that draws tasks about customers of ``split``."""
    index = _build_index(database, split)
    return request_task_maker(MIX, index.open_case, write, domain="retail")


def _build_index(database: RetailDB, split: str) -> RetailIndex:
    members = customers(database.users, folder="retail", split=split)
    users = [user for user in members if user.orders]
    orders = {user.user_id: [database.orders[number] for number in user.orders] for user in users}
    statuses = {
        user_id: [order.status for order in user_orders] for user_id, user_orders in orders.items()
    }
    eligible = {
        (status, count): [
            user
            for user in users
            if (status is None or status in statuses[user.user_id])
            and _max_requests(statuses[user.user_id]) >= count
        ]
        for status in ("pending", "delivered", None)
        for count in range(1, 6)
    }
    pending = [
        order
        for user_orders in orders.values()
        for order in user_orders
        if order.status == "pending"
    ]
    return RetailIndex(database.products, users, orders, pending, eligible)


def _max_requests(statuses: Sequence[str]) -> int:
    return 1 + statuses.count("pending") + statuses.count("delivered")
