"""Allowed requests about whole orders and the customer's profile."""

from grpo_cl.envs.generation.requests import Call, Request, question
from grpo_cl.envs.generation.wording import draw_wording, format_amount
from grpo_cl.envs.retail.generator.case import RetailCase, address_fields, read_order

REASONS = {
    "no longer needed": ("{you} no longer need it", "it is no longer needed"),
    "ordered by mistake": ("{you} ordered it by mistake", "it was ordered by mistake"),
}


def cancel(case: RetailCase) -> Request | None:
    """Cancel a pending order for a valid reason."""
    for order in case.free_orders({"pending"}):
        case.used[order.order_id] = "cancel"
        amount = order.payment_history[0].amount
        case.charge(case.original_method(order), -amount)
        reason = case.rng.choice(sorted(REASONS))
        templates = (
            "cancel {order} because {why}",
            "have {order} cancelled, since {why}",
            "call off {order} because {why}",
        )
        why = case.rng.choice(REASONS[reason])
        return Request(
            "cancel a pending order",
            draw_wording(case.rng, templates, order=case.name_order(order), why=why),
            [read_order(order)],
            [("cancel_pending_order", {"order_id": order.order_id, "reason": reason})],
            questions=question("the exact amount that comes back for it", format_amount(amount)),
        )
    return None


def change_address(case: RetailCase) -> Request | None:
    """Ship a pending order to another address."""
    if case.uses_known_address:
        return None
    for order in case.free_orders({"pending"}):
        case.used[order.order_id] = "change address"
        home = case.user.address
        if case.new_address is None and order.address != home and case.omits_detail():
            case.uses_known_address = case.needs_profile = True
            words, fields = "the default address in {your} profile", address_fields(home)
        else:
            words, fields = case.spell_address()
        templates = (
            "have {order} shipped to a different address, namely {address}",
            "change the shipping address of {order} to {address}",
            "update the delivery address of {order} to {address}",
        )
        return Request(
            "change the address of a pending order",
            draw_wording(case.rng, templates, order=case.name_order(order), address=words),
            [read_order(order)],
            [("modify_pending_order_address", {"order_id": order.order_id, **fields})],
        )
    return None


def change_default_address(case: RetailCase) -> Request | None:
    """Change the default address of the profile."""
    if case.uses_known_address or "profile" in case.used:
        return None
    case.used["profile"] = "change default address"
    home = case.user.address
    elsewhere = [order for order in case.orders if order.address != home]
    reads: list[Call] = []
    if case.new_address is None and elsewhere and case.omits_detail():
        case.uses_known_address = True
        order = case.rng.choice(elsewhere)
        words = f"the one that {case.name_order(order)} is shipped to"
        fields, reads = address_fields(order.address), [read_order(order)]
    else:
        words, fields = case.spell_address()
    templates = (
        "change the default address in {your} profile to {address}",
        "make {your} default address {address}",
        "update {your} profile so that {your} default address is {address}",
    )
    return Request(
        "change the default address",
        draw_wording(case.rng, templates, address=words),
        reads,
        [("modify_user_address", {"user_id": case.user.user_id, **fields})],
    )


def change_payment(case: RetailCase) -> Request | None:
    """Pay a pending order with another payment method."""
    for order in case.free_orders({"pending"}):
        amount, previous = order.payment_history[0].amount, case.original_method(order)
        methods = [method for method in case.payers(amount) if method.id != previous.id]
        if not methods:
            continue
        case.used[order.order_id] = "change payment"
        case.charge(methods[0], amount)
        case.charge(previous, -amount)
        templates = (
            "pay for {order} with {method} instead",
            "switch the payment of {order} to {method}",
            "change the payment method of {order} to {method}",
        )
        facts = {"order": case.name_order(order), "method": case.name_method(methods[0])}
        arguments = {"order_id": order.order_id, "payment_method_id": methods[0].id}
        return Request(
            "change the payment of a pending order",
            draw_wording(case.rng, templates, **facts),
            [read_order(order)],
            [("modify_pending_order_payment", arguments)],
            questions=question("the exact total of that order", format_amount(amount)),
        )
    return None
