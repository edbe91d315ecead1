"""The telecom domain of τ²-bench: agent and user each hold half of the tools."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from inspect_evals.tau2.telecom.data_model import TelecomDB
from inspect_evals.tau2.telecom.environment import Environment as CarrierEnvironment
from inspect_evals.tau2.telecom.TelecomAgentTools import TelecomAgentTools
from inspect_evals.tau2.telecom.TelecomUserTools import TelecomUserTools as CarrierUserTools
from inspect_evals.tau2.telecom.tools import all_telecom_agent_tools
from inspect_evals.tau2.telecom.user_data_model import TelecomUserDB
from inspect_evals.tau2.telecom.user_tools import all_telecom_user_tools
from inspect_evals.tau2.utils import TAU2_DATA_DIR
from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.domains.generators.draft import TaskMaker
from grpo_cl.domains.generators.telecom import task_maker
from grpo_cl.domains.overlay import EpisodeDatabase, SharedDatabase
from grpo_cl.domains.tau2 import Tau2Domain, Tau2Environment
from grpo_cl.domains.toolkit import Toolkit, adopt, schema
from grpo_cl.errors import ToolError

_WRITES = (
    "disable_roaming",
    "enable_roaming",
    "refuel_data",
    "resume_line",
    "send_payment_request",
    "suspend_line",
)
_USER_WRITES = (
    "connect_vpn",
    "disconnect_vpn",
    "grant_app_permission",
    "make_payment",
    "reboot_device",
    "reseat_sim_card",
    "reset_apn_settings",
    "set_apn_settings",
    "set_network_mode_preference",
    "toggle_airplane_mode",
    "toggle_data",
    "toggle_data_saver_mode",
    "toggle_roaming",
    "toggle_wifi",
    "toggle_wifi_calling",
)


def get_details_by_id(self: Any, id: str) -> Any:  # the reference's argument
    """The record itself: its numbers stay numbers when it is shown."""
    finders = {
        "L": self._get_line_by_id,
        "D": self._get_device_by_id,
        "B": self._get_bill_by_id,
        "C": self.get_customer_by_id,
        "P": self._get_plan_by_id,
    }
    if id[:1] not in finders:
        raise ToolError(f"Unknown ID format or type: {id}")
    return finders[id[:1]](id)


def _apply_one_time_charge(
    self: Toolkit, customer_id: str, amount: float, description: str
) -> None:
    """Charge as the carrier does, with a counted id for a new bill instead of a random one."""
    known = len(self.db.bills)
    TelecomAgentTools._apply_one_time_charge(self, customer_id, amount, description)  # type: ignore[arg-type]
    if len(self.db.bills) > known:
        new = self.db.bills[-1]
        owner = next(c for c in self.db.customers if c.customer_id == customer_id)
        owner.bill_ids[-1] = new.bill_id = f"B{known:08x}"


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(TelecomDB.load(str(TAU2_DATA_DIR / "domains/telecom/db.toml")))


@cache
def _user_database() -> SharedDatabase:
    return SharedDatabase(TelecomUserDB.load(str(TAU2_DATA_DIR / "domains/telecom/user_db.toml")))


@cache
def _schemas() -> tuple[ToolSchema, ...]:
    return tuple(schema(make()) for make in all_telecom_agent_tools)


@cache
def _user_schemas() -> tuple[ToolSchema, ...]:
    return tuple(schema(make()) for make in all_telecom_user_tools)


TelecomTools = adopt(
    TelecomAgentTools,
    name="TelecomTools",
    tools=[make.__name__ for make in all_telecom_agent_tools],
    writes=_WRITES,
    mends=(get_details_by_id, _apply_one_time_charge),
)
TelecomUserTools = adopt(
    CarrierUserTools,
    name="TelecomUserTools",
    tools=[make.__name__ for make in all_telecom_user_tools],
    writes=_USER_WRITES,
)


class TelecomEnvironment(Tau2Environment):
    """A line at the carrier and a phone in the customer's hand, kept in step."""

    @override
    def sync(self) -> None:
        CarrierEnvironment.sync_tools(self)  # type: ignore[arg-type]


class TelecomDomain(Tau2Domain):
    """Technical support: find what is wrong with a phone or its line, and mend it."""

    name = "telecom"
    folder = "telecom"
    can_generate = True
    manual = "tech_support_manual"
    solo_manual = "tech_support_manual"

    @property
    @override
    def database(self) -> SharedDatabase:
        return _database()

    @property
    @override
    def agent_tools(self) -> Sequence[ToolSchema]:
        return _schemas()

    @property
    @override
    def user_tools(self) -> Sequence[ToolSchema]:
        return _user_schemas()

    @override
    def policy_text(self, *, solo: bool = False) -> str:
        main = self.read("main_policy_solo" if solo else "main_policy")
        support = self.read(self.solo_manual if solo else self.manual)
        return (
            f"<main_policy>\n{main}\n</main_policy>\n"
            f"<tech_support_policy>\n{support}\n</tech_support_policy>"
        )

    @override
    def world(
        self, agent: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        phone = _user_database()
        if user_data:
            phone = phone.updated(user_data)
        return TelecomEnvironment(
            TelecomTools(EpisodeDatabase(agent)),
            TelecomUserTools(EpisodeDatabase(phone)),
            solo=solo,
        )

    @override
    def task_maker(self, split: str) -> TaskMaker:
        model: Any = self.database.model
        return task_maker(model, split)


class TelecomWorkflowDomain(TelecomDomain):
    """The same tasks under a policy written as a workflow."""

    name = "telecom-workflow"
    manual = "tech_support_workflow"
    solo_manual = "tech_support_workflow_solo"
