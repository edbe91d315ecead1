"""The agent's toolkit and the tool schemas."""

from collections.abc import Mapping
from typing import Any, get_args

from grpo_cl.envs.doordash.database import ALLERGENS, ZONES, RefundDestination, RefundReason
from grpo_cl.envs.doordash.menus import CUISINES
from grpo_cl.envs.doordash.read_tools import READ_TOOLS
from grpo_cl.envs.doordash.write_tools import WRITE_TOOLS
from grpo_cl.envs.toolkit import COMMON_TOOLS, Toolkit, function_schema, text_parameters
from grpo_cl.types import ToolSchema

_FUNCTIONS = {
    function.__name__: function for function in (*READ_TOOLS, *WRITE_TOOLS, *COMMON_TOOLS)
}

DoordashTools: type[Toolkit] = type(
    "DoordashTools",
    (Toolkit,),
    {
        **_FUNCTIONS,
        "tools": frozenset(_FUNCTIONS),
        "writes": frozenset(function.__name__ for function in WRITE_TOOLS),
    },
)

_ORDER = "The order id, such as 'D48211'."
_CUSTOMER = "The customer id, such as 'ada_beck_4821'."
_ITEM = "The item id, such as 'item_1203'."
_QUANTITY = {"type": "integer", "description": "How many."}
_OPTIONS = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "One choice for each option of the item, by the option's name.",
}
_TIP = {"type": "number", "description": "The tip in dollars; 0 for none."}


def _parameters(
    properties: Mapping[str, str | Mapping[str, Any]], *, optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    schemas = {
        name: {"type": "string", "description": value} if isinstance(value, str) else value
        for name, value in properties.items()
    }
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": schemas, "required": required}


def _list_of(items: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": description}


_ORDER_LINE = _parameters(
    {"item_id": _ITEM, "quantity": _QUANTITY, "options": _OPTIONS}, optional=("options",)
)
_REFUND_LINE = _parameters({"item_id": _ITEM, "quantity": _QUANTITY})

_READ_SCHEMAS: tuple[ToolSchema, ...] = (
    function_schema(
        "find_customer_by_email",
        "Find the id of a customer by email.",
        text_parameters(email="The email of the account."),
    ),
    function_schema(
        "find_customer_by_phone",
        "Find the id of a customer by phone number.",
        text_parameters(phone="The phone number of the account, such as '555-201-3344'."),
    ),
    function_schema(
        "get_customer_details",
        "Show a profile: addresses, payment methods, pass, allergies, credits, order ids, refunds.",
        text_parameters(customer_id=_CUSTOMER),
    ),
    function_schema(
        "search_restaurants",
        "List restaurants that fit all criteria given, whether they are open or not.",
        _parameters(
            {
                "name": "The name or a part of it.",
                "cuisine": f"One of: {', '.join(CUISINES)}.",
                "delivers_to": f"A delivery zone: {', '.join(ZONES)}.",
            },
            optional=("name", "cuisine", "delivers_to"),
        ),
    ),
    function_schema(
        "get_restaurant_details",
        "Show a restaurant's hours, delivery zones, minimum order and delivery fee.",
        text_parameters(restaurant_id="The restaurant id, such as 'rest_12'."),
    ),
    function_schema(
        "get_menu",
        "List what a restaurant has today, with prices.",
        text_parameters(restaurant_id="The restaurant id, such as 'rest_12'."),
    ),
    function_schema(
        "get_item_details",
        "Show an item's price, allergens and options with what each choice costs more.",
        text_parameters(item_id=_ITEM),
    ),
    function_schema(
        "get_order_details",
        "Show an order: status, items, address, amounts, cancellation, refund.",
        text_parameters(order_id=_ORDER),
    ),
    function_schema(
        "get_dasher_status",
        "Show who brings an order and how many minutes away they are.",
        text_parameters(order_id=_ORDER),
    ),
    function_schema(
        "calculate",
        "Work out an arithmetic expression.",
        text_parameters(expression="Numbers, + - * / and parentheses."),
    ),
    function_schema(
        "transfer_to_human_agents",
        "Hand the customer over to a person, where the policy says so.",
        text_parameters(summary="What the customer wants."),
    ),
)
_WRITE_SCHEMAS: tuple[ToolSchema, ...] = (
    function_schema(
        "create_order",
        "Place an order and charge it. Fees and the total are worked out by the tool.",
        _parameters(
            {
                "customer_id": _CUSTOMER,
                "restaurant_id": "The restaurant id, such as 'rest_12'.",
                "items": _list_of(_ORDER_LINE, "What is ordered, each item once."),
                "address_label": "The label of a saved address, such as 'home'.",
                "payment_id": "The id of a saved payment method, such as 'pay_482113'.",
                "tip": _TIP,
                "allergies": _list_of(
                    {"type": "string", "enum": list(ALLERGENS)},
                    "The allergy note for the restaurant.",
                ),
            },
            optional=("tip", "allergies"),
        ),
    ),
    function_schema(
        "add_item",
        "Put an item into an order that does not have it yet.",
        _parameters(
            {"order_id": _ORDER, "item_id": _ITEM, "quantity": _QUANTITY, "options": _OPTIONS},
            optional=("options",),
        ),
    ),
    function_schema(
        "modify_item",
        "Give an item of an order this quantity and these options.",
        _parameters(
            {"order_id": _ORDER, "item_id": _ITEM, "quantity": _QUANTITY, "options": _OPTIONS},
            optional=("options",),
        ),
    ),
    function_schema(
        "remove_item",
        "Take an item out of an order.",
        text_parameters(order_id=_ORDER, item_id=_ITEM),
    ),
    function_schema(
        "cancel_order",
        "Cancel an order. The fee of a confirmed order is kept back by the tool.",
        text_parameters(order_id=_ORDER),
    ),
    function_schema(
        "request_refund",
        "Refund items of a delivered order. The amount is worked out by the tool.",
        _parameters(
            {
                "order_id": _ORDER,
                "items": _list_of(_REFUND_LINE, "What is refunded, each item once."),
                "reason": {"type": "string", "enum": list(get_args(RefundReason))},
                "destination": {
                    "type": "string",
                    "enum": list(get_args(RefundDestination)),
                    "description": "The order's payment method, or credits in the account.",
                },
            }
        ),
    ),
    function_schema(
        "change_delivery_address",
        "Send an order to another saved address of its customer.",
        text_parameters(
            order_id=_ORDER, address_label="The label of a saved address, such as 'home'."
        ),
    ),
    function_schema(
        "add_address",
        "Save an address in a profile; one with the same label is replaced.",
        text_parameters(
            customer_id=_CUSTOMER,
            label="What the customer calls it, in lower case.",
            street="House number and street.",
            zip="The zip code.",
        ),
    ),
    function_schema(
        "update_tip",
        "Set the tip of an order to this amount.",
        _parameters({"order_id": _ORDER, "tip": _TIP}),
    ),
)
SCHEMAS: tuple[ToolSchema, ...] = (*_READ_SCHEMAS, *_WRITE_SCHEMAS)
