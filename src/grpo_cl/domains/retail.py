"""The retail domain of τ²-bench."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from inspect_evals.tau2.retail.data_model import RetailDB, Variant
from inspect_evals.tau2.retail.RetailAgentTools import RetailAgentTools
from inspect_evals.tau2.retail.tools import all_retail_tools
from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.domains.generators.draft import TaskMaker
from grpo_cl.domains.generators.retail import task_maker
from grpo_cl.domains.overlay import EpisodeDatabase, SharedDatabase
from grpo_cl.domains.tau2 import Tau2Domain, Tau2Environment, parse_database
from grpo_cl.domains.toolkit import (
    COMMON,
    Toolkit,
    adopt,
    function_schema,
    schema,
    text_parameters,
)
from grpo_cl.errors import ToolError

_WRITES = (
    "cancel_pending_order",
    "exchange_delivered_order_items",
    "modify_pending_order_address",
    "modify_pending_order_items",
    "modify_pending_order_payment",
    "modify_user_address",
    "return_delivered_order_items",
)

_ITEM_DETAILS = function_schema(
    "get_item_details",
    "Get the options, price and availability of one item.",
    text_parameters(
        item_id="The item id, such as '6086499569'. It is not the id of the item's product."
    ),
)


def get_item_details(self: Toolkit, item_id: str) -> Variant:
    """One variant by its own id; the carrier lacks this tool."""
    for product in self.db.products.values():
        if item_id in product.variants:
            return product.variants[item_id]
    raise ToolError("Item not found")


def list_all_product_types(self: Toolkit) -> str:
    """Product names and ids, in the reference's order."""
    products = {product.name: product.product_id for product in self.db.products.values()}
    return json.dumps(products, sort_keys=True)


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(RetailDB.model_validate(parse_database("retail")))


@cache
def _schemas() -> tuple[ToolSchema, ...]:
    return (*(schema(make()) for make in all_retail_tools), _ITEM_DETAILS)


RetailTools = adopt(
    RetailAgentTools,
    name="RetailTools",
    tools=[*(make.__name__ for make in all_retail_tools), "get_item_details"],
    writes=_WRITES,
    mends=(*COMMON, get_item_details, list_all_product_types),
)


class RetailDomain(Tau2Domain):
    """Orders, exchanges, returns and addresses under a shop's rules."""

    name = "retail"
    folder = "retail"
    can_generate = True

    @property
    @override
    def database(self) -> SharedDatabase:
        return _database()

    @property
    @override
    def agent_tools(self) -> Sequence[ToolSchema]:
        return _schemas()

    @override
    def world(
        self, agent: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        return Tau2Environment(RetailTools(EpisodeDatabase(agent)), None, solo=solo)

    @override
    def task_maker(self, split: str) -> TaskMaker:
        model: Any = self.database.model
        return task_maker(model, split)
