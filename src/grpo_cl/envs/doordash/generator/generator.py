"""Doordash tasks: customers of the database with requests that the policy allows or forbids."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from grpo_cl.envs.doordash.database import Customer, DoordashDB, MenuItem, Order
from grpo_cl.envs.doordash.generator import item_changes, new_orders, order_changes, refunds
from grpo_cl.envs.doordash.generator.case import DoordashCase
from grpo_cl.envs.doordash.generator.scenario import write_spec
from grpo_cl.envs.generation.requests import (
    RequestMaker,
    RequestMix,
    SpecWriter,
    request_task_maker,
)
from grpo_cl.envs.generation.tasks import TaskMaker, in_split

MIX: RequestMix[DoordashCase] = RequestMix(
    allowed={
        new_orders.place_order: 4,
        item_changes.add_item: 2,
        item_changes.modify_item: 2,
        item_changes.remove_item: 2,
        order_changes.cancel_order: 2,
        order_changes.change_address: 2,
        order_changes.change_tip: 2,
        order_changes.save_address: 1,
        refunds.refund_items: 4,
    },
    forbidden=(
        new_orders.order_from_closed_restaurant,
        new_orders.order_outside_zone,
        new_orders.order_below_minimum,
        new_orders.order_allergen,
        item_changes.add_allergen,
        item_changes.modify_items_too_late,
        item_changes.remove_below_minimum,
        order_changes.cancel_without_fee,
        order_changes.cancel_too_late,
        order_changes.change_address_too_late,
        order_changes.change_address_outside_zone,
        order_changes.lower_tip_too_late,
        refunds.refund_too_late,
        refunds.refund_without_reason,
        refunds.refund_twice,
        refunds.refund_beyond_monthly_limit,
        order_changes.cancel_order_of_other_customer,
    ),
    last_resort=order_changes.cancel_order_of_other_customer,
    handed_over=(refunds.refund_above_limit, order_changes.unsupported),
    num_forbidden_tried=5,
    extra_requests=2.2,
    customers_tried=60,
)


class DoordashIndex(NamedTuple):
    """The customers of one split with their orders."""

    database: DoordashDB
    menus: Mapping[str, Sequence[MenuItem]]
    """Available items by restaurant id."""
    customers: Sequence[Customer]
    orders: Mapping[str, Sequence[Order]]
    """By customer id."""
    placed: Sequence[Order]

    def open_case(
        self,
        rng: Random,
        level: float,
        first: RequestMaker[DoordashCase] | None = None,
        count: int = 0,
    ) -> DoordashCase:
        """A customer without requests."""
        del first, count  # every customer is tried for every request
        customer = rng.choice(self.customers)
        return DoordashCase(
            customer=customer,
            orders=self.orders[customer.customer_id],
            database=self.database,
            menus=self.menus,
            placed_orders=self.placed,
            rng=rng,
            level=level,
        )


def task_maker(
    database: DoordashDB, split: str, *, write: SpecWriter[DoordashCase] = write_spec
) -> TaskMaker:
    """The function that draws tasks about customers of ``split``."""
    index = build_index(database, split)
    return request_task_maker(MIX, index.open_case, write, domain="doordash")


def build_index(database: DoordashDB, split: str) -> DoordashIndex:
    """An index of the customers that belong to ``split``."""
    customers = [customer for key, customer in database.customers.items() if in_split(key, split)]
    orders = {
        customer.customer_id: [database.orders[key] for key in customer.orders]
        for customer in customers
    }
    placed = [
        order
        for customer_orders in orders.values()
        for order in customer_orders
        if order.status == "placed"
    ]
    menus: dict[str, list[MenuItem]] = {key: [] for key in database.restaurants}
    for item in database.items.values():
        if item.is_available:
            menus[item.restaurant_id].append(item)
    return DoordashIndex(database, menus, customers, orders, placed)
