"""The retail domain of τ²-bench."""

import json
from functools import cache

from inspect_evals.tau2.retail.data_model import RetailDB, Variant
from inspect_evals.tau2.retail.RetailAgentTools import RetailAgentTools
from inspect_evals.tau2.retail.tools import all_retail_tools
from typing_extensions import override

from grpo_cl.envs.database import SharedDatabase
from grpo_cl.envs.generation.tasks import TaskMaker
from grpo_cl.envs.inspect_tools import INSPECT_ERRORS, schema
from grpo_cl.envs.retail.generator import task_maker
from grpo_cl.envs.retail.generator.scenario import write_varied_spec
from grpo_cl.envs.tau2 import Side, Tau2Domain
from grpo_cl.envs.tau2_files import parse_database
from grpo_cl.envs.toolkit import (
    COMMON_TOOLS,
    Toolkit,
    build_toolkit,
    function_schema,
    text_parameters,
)
from grpo_cl.errors import ToolError
from grpo_cl.types import ToolSchema

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
    """One variant by its own id; ``inspect-evals`` does not have this tool."""
    for product in self.db.products.values():
        if item_id in product.variants:
            return product.variants[item_id]
    raise ToolError("Item not found")


def list_all_product_types(self: Toolkit) -> str:
    """Product names and ids, in τ²-bench's order."""
    products = {product.name: product.product_id for product in self.db.products.values()}
    return json.dumps(products, sort_keys=True)


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(RetailDB.model_validate(parse_database("retail")))


@cache
def _schemas() -> tuple[ToolSchema, ...]:
    return (*(schema(make()) for make in all_retail_tools), _ITEM_DETAILS)


RetailTools = build_toolkit(
    RetailAgentTools,
    name="RetailTools",
    tools=[*(make.__name__ for make in all_retail_tools), "get_item_details"],
    writes=_WRITES,
    overrides=(*COMMON_TOOLS, get_item_details, list_all_product_types),
    errors=INSPECT_ERRORS,
)


class RetailDomain(Tau2Domain):
    """Orders, exchanges, returns and addresses under a shop's rules."""

    name = "retail"
    folder = "retail"
    varied_release = "varied wording 2"
    can_generate = True
    agent_side = Side(toolkit=RetailTools, schemas=_schemas, database=_database)

    @override
    def task_maker(self, split: str) -> TaskMaker:
        return task_maker(self.database.model, split)

    @override
    def varied_task_maker(self, split: str) -> TaskMaker:
        return task_maker(self.database.model, split, write=write_varied_spec)
