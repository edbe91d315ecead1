"""The telecom domain of τ²-bench: the agent and the user have different tools."""

from functools import cache
from typing import Any

from inspect_evals.tau2.telecom.data_model import TelecomDB
from inspect_evals.tau2.telecom.environment import Environment as UpstreamEnvironment
from inspect_evals.tau2.telecom.TelecomAgentTools import TelecomAgentTools
from inspect_evals.tau2.telecom.TelecomUserTools import TelecomUserTools as UpstreamUserTools
from inspect_evals.tau2.telecom.tools import all_telecom_agent_tools
from inspect_evals.tau2.telecom.user_data_model import TelecomUserDB
from inspect_evals.tau2.telecom.user_tools import all_telecom_user_tools
from inspect_evals.tau2.utils import TAU2_DATA_DIR
from typing_extensions import override

from grpo_cl.envs.database import SharedDatabase
from grpo_cl.envs.generation.tasks import TaskMaker
from grpo_cl.envs.inspect_tools import INSPECT_ERRORS, schema
from grpo_cl.envs.tau2 import Side, Tau2Domain, Tau2Environment
from grpo_cl.envs.telecom.demonstrations import with_diagnostics
from grpo_cl.envs.telecom.generator import task_maker
from grpo_cl.envs.telecom.generator.varied_wording import write_varied_texts
from grpo_cl.envs.toolkit import Toolkit, build_toolkit
from grpo_cl.errors import ToolError
from grpo_cl.types import Task, ToolCall, ToolSchema

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


def get_details_by_id(self: Any, id: str) -> Any:  # the argument name of τ²-bench
    """The record itself, so that its numbers are rendered as numbers."""
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
    """Charge as upstream does, but number a new bill instead of giving it a random id."""
    num_bills = len(self.db.bills)
    TelecomAgentTools._apply_one_time_charge(self, customer_id, amount, description)  # type: ignore[arg-type]
    if len(self.db.bills) > num_bills:
        bill = self.db.bills[-1]
        owner = next(c for c in self.db.customers if c.customer_id == customer_id)
        owner.bill_ids[-1] = bill.bill_id = f"B{num_bills:08x}"


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


TelecomTools = build_toolkit(
    TelecomAgentTools,
    name="TelecomTools",
    tools=[make.__name__ for make in all_telecom_agent_tools],
    writes=_WRITES,
    overrides=(get_details_by_id, _apply_one_time_charge),
    errors=INSPECT_ERRORS,
)
TelecomUserTools = build_toolkit(
    UpstreamUserTools,
    name="TelecomUserTools",
    tools=[make.__name__ for make in all_telecom_user_tools],
    writes=_USER_WRITES,
    errors=INSPECT_ERRORS,
)


class TelecomEnvironment(Tau2Environment):
    """The line's record and the user's phone, synchronised after every call."""

    @override
    def sync(self) -> None:
        UpstreamEnvironment.sync_tools(self)  # type: ignore[arg-type]


class TelecomDomain(Tau2Domain):
    """Technical support: diagnose and repair a phone or its line."""

    name = "telecom"
    folder = "telecom"
    can_generate = True
    manual = "tech_support_manual"
    solo_manual = "tech_support_manual"
    agent_side = Side(toolkit=TelecomTools, schemas=_schemas, database=_database)
    user_side = Side(toolkit=TelecomUserTools, schemas=_user_schemas, database=_user_database)
    environment_type = TelecomEnvironment

    @override
    def policy_text(self, *, solo: bool = False) -> str:
        main = self.read("main_policy_solo" if solo else "main_policy")
        support = self.read(self.solo_manual if solo else self.manual)
        return (
            f"<main_policy>\n{main}\n</main_policy>\n"
            f"<tech_support_policy>\n{support}\n</tech_support_policy>"
        )

    @override
    def demonstration_calls(self, task: Task) -> list[ToolCall]:
        return with_diagnostics(task, super().demonstration_calls(task))

    @override
    def task_maker(self, split: str) -> TaskMaker:
        return task_maker(self.database.model, split)

    @override
    def varied_task_maker(self, split: str) -> TaskMaker:
        return task_maker(self.database.model, split, write=write_varied_texts)


class TelecomWorkflowDomain(TelecomDomain):
    """The same tasks with a policy in the form of a workflow."""

    name = "telecom-workflow"
    manual = "tech_support_workflow"
    solo_manual = "tech_support_workflow_solo"
