"""Who can call about a phone line: the customers of the database and what their lines allow."""

from collections.abc import Iterable
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

from grpo_cl.domains.generators.telecom.faults import DRAFT_BILL, NO_OVERDUE_BILL, OVERDUE_BILL


class Spare(NamedTuple):
    """Another line of the caller's account."""

    line_id: str
    phone_number: str
    data_limit_gb: float
    is_active: bool


class Caller(NamedTuple):
    """A customer on the phone about one of their lines."""

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


def find_households(database: TelecomDB) -> tuple[tuple[Caller, ...], ...]:
    """Callers by customer; a customer calls about each active line that has a phone."""
    households = (tuple(_callers(database, customer)) for customer in database.customers)
    return tuple(household for household in households if household)


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
