"""Callers of telecom tasks: the customers of the database with their lines and bills.

The database has two customers with a phone that works, and some faults fit only one of them, so
both are in both splits. Their lines are not: the first one of each customer is in test.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inspect_evals.tau2.telecom.data_model import (
    Bill,
    BillStatus,
    Customer,
    DeviceType,
    Line,
    LineStatus,
    TelecomDB,
)

from grpo_cl.envs.telecom.generator.faults import DRAFT_BILL, NO_OVERDUE_BILL, OVERDUE_BILL
from grpo_cl.errors import ConfigError


class Spare(NamedTuple):
    """Another line of the caller's account."""

    line_id: str
    phone_number: str
    data_limit_gb: float
    is_active: bool


class Caller(NamedTuple):
    """A customer and the line that the call is about."""

    customer_id: str
    name: str
    birth_date: str
    home: str
    line_id: str
    phone_number: str
    phone_model: str
    data_limit_gb: float
    overdue_bill_id: str | None
    traits: frozenset[str]
    spares: tuple[Spare, ...]


def find_households(database: TelecomDB, split: str) -> tuple[tuple[Caller, ...], ...]:
    """Callers grouped by customer, one for each active line of ``split`` that has a phone."""
    if split not in {"train", "test"}:
        raise ConfigError(f"a generator makes 'train' or 'test' tasks, not {split!r}")
    households: list[tuple[Caller, ...]] = []
    for customer in database.customers:
        callers = tuple(_callers(database, customer))
        members, others = callers[:1], callers[1:]
        if split == "train":
            members, others = others, members
        if members:
            households.append(tuple(_without_lines(caller, others) for caller in members))
    return tuple(households)


def _without_lines(caller: Caller, others: Sequence[Caller]) -> Caller:
    """The caller without the spare lines from which tasks of the other split are called."""
    line_ids = {other.line_id for other in others}
    spares = tuple(spare for spare in caller.spares if spare.line_id not in line_ids)
    return caller._replace(spares=spares)


def _callers(database: TelecomDB, customer: Customer) -> Iterable[Caller]:
    limits = {plan.plan_id: plan.data_limit_gb for plan in database.plans}
    phones = {
        device.device_id: device.model
        for device in database.devices
        if device.device_type == DeviceType.PHONE
    }
    lines = [line for line in database.lines if line.line_id in customer.line_ids]
    bills = [bill for bill in database.bills if bill.bill_id in customer.bill_ids]
    overdue = _first(bills, BillStatus.OVERDUE)
    traits = {OVERDUE_BILL if overdue else NO_OVERDUE_BILL}
    if _first(bills, BillStatus.DRAFT):
        traits.add(DRAFT_BILL)
    for line in lines:
        if line.status != LineStatus.ACTIVE or line.device_id not in phones:
            continue
        yield Caller(
            customer_id=customer.customer_id,
            name=customer.full_name,
            birth_date=customer.date_of_birth,
            home=f"{customer.address.city}, {customer.address.state}",
            line_id=line.line_id,
            phone_number=line.phone_number,
            phone_model=phones[line.device_id],
            data_limit_gb=limits[line.plan_id],
            overdue_bill_id=overdue.bill_id if overdue else None,
            traits=frozenset(traits),
            spares=tuple(_spare(other, limits) for other in lines if other is not line),
        )


def _spare(line: Line, limits: dict[str, float]) -> Spare:
    return Spare(
        line_id=line.line_id,
        phone_number=line.phone_number,
        data_limit_gb=limits[line.plan_id],
        is_active=line.status == LineStatus.ACTIVE,
    )


def _first(bills: Iterable[Bill], status: BillStatus) -> Bill | None:
    return next((bill for bill in bills if bill.status == status), None)
