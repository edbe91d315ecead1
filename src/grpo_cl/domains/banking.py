"""The banking_knowledge domain of τ²-bench: the policy is a knowledge base the agent searches."""

import re
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import regex
from inspect_evals.tau2.banking.BankingAgentTools import BankingAgentTools
from inspect_evals.tau2.banking.BankingUserTools import BankingUserTools as CarrierUserTools
from inspect_evals.tau2.banking.data_model import GREP_TOP_K, KnowledgeBase, TransactionalDB
from inspect_evals.tau2.banking.tools import all_banking_agent_tools, banking_grep
from inspect_evals.tau2.banking.user_tools import all_banking_user_tools
from inspect_evals.tau2.banking.utils import BANKING_DOCUMENTS_FILE
from inspect_evals.tau2.utils import TAU2_DATA_DIR
from typing_extensions import override

from grpo_cl.domains.base import State, StateHash, ToolSchema
from grpo_cl.domains.overlay import EpisodeDatabase, SharedDatabase
from grpo_cl.domains.tau2 import Tau2Domain, Tau2Environment, parse_database
from grpo_cl.domains.toolkit import Toolkit, adopt, schema
from grpo_cl.errors import ToolError

SEARCH_LIMIT_S = 1.0
"""A pattern may backtrack for ever; one that needs longer over all documents is refused."""

LONGEST_PATTERN = 200
"""The search cannot be interrupted inside a long literal, which may take minutes."""

_PREFIX = "banking_"
_READS = frozenset(
    {
        "get_current_time",
        "get_user_information_by_id",
        "get_user_information_by_name",
        "get_user_information_by_email",
        "get_referrals_by_user",
        "get_credit_card_transactions_by_user",
        "get_credit_card_accounts_by_user",
        "transfer_to_human_agents",
        "list_discoverable_agent_tools",
        "list_discoverable_user_tools",
        "grep",
    }
)


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(TransactionalDB.model_validate(parse_database("banking_knowledge")))


@cache
def _knowledge() -> KnowledgeBase:
    return KnowledgeBase.load(str(BANKING_DOCUMENTS_FILE))


def grep(self: Toolkit, pattern: str) -> str:
    """The ten documents with the most matches of a regular expression, in full."""
    del self
    if len(pattern) > LONGEST_PATTERN:
        raise ToolError(f"The pattern is longer than {LONGEST_PATTERN} characters")
    documents = _knowledge().documents.values()
    end = time.monotonic() + SEARCH_LIMIT_S
    try:
        counts = [(_matches(pattern, each.content, end=end), each) for each in documents]
    except TimeoutError as error:
        raise ToolError("The pattern takes too long to search for; use a simpler one") from error
    found = sorted((pair for pair in counts if pair[0]), key=lambda pair: -pair[0])[:GREP_TOP_K]
    if not found or not pattern.strip():
        return f"No matches found for pattern: {pattern}"
    entries = [
        f"{place}. {each.title}\n   ID: {each.id}\n   Score: {count:.4f}\n"
        f"   Content: {each.content}\n"
        for place, (count, each) in enumerate(found, 1)
    ]
    return "\n".join(entries)


def _matches(pattern: str, text: str, *, end: float) -> int:
    left = max(end - time.monotonic(), 1e-9)
    try:
        return len(regex.findall(pattern, text, regex.IGNORECASE, timeout=left))
    except regex.error:
        return text.lower().count(pattern.lower())


def _name(make: Any) -> str:
    return make.__name__.removeprefix(_PREFIX)


_AGENT = (*all_banking_agent_tools, banking_grep)

BankingTools = adopt(
    BankingAgentTools,
    name="KnowledgeTools",
    tools=[_name(make) for make in _AGENT],
    writes=[_name(make) for make in _AGENT if _name(make) not in _READS],
    mends=(grep,),
)
BankingUserTools = adopt(
    CarrierUserTools,
    name="KnowledgeUserTools",
    tools=[_name(make) for make in all_banking_user_tools],
    writes=[_name(make) for make in all_banking_user_tools if _name(make) not in _READS],
)


@cache
def _schemas() -> tuple[ToolSchema, ...]:
    return tuple(schema(make(), name=_name(make)) for make in _AGENT)


@cache
def _user_schemas() -> tuple[ToolSchema, ...]:
    return tuple(schema(make(), name=_name(make)) for make in all_banking_user_tools)


class BankingEnvironment(Tau2Environment):
    """Agent and user write into one database."""

    @override
    def state(self) -> State:
        return State(self.tools.db.changes(), {})

    @override
    def state_hash(self) -> StateHash:
        return StateHash(self.tools.db.sha256(), None)


class BankingDomain(Tau2Domain):
    """Customer service of a bank with some seven hundred documents of rules."""

    name = "banking_knowledge"
    folder = "banking_knowledge"

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
        prompts = TAU2_DATA_DIR / "domains" / self.folder / "prompts"

        def component(match: re.Match[str]) -> str:
            return (prompts / "components" / f"{match[1]}.md").read_text()

        text = (prompts / "grep_only.md").read_text()
        return re.sub(r"\{\{component:(\w+)\}\}", component, text)

    @override
    def agent_data(self, data: dict[str, Any]) -> dict[str, Any]:
        def rows(table: Any) -> Any:
            return table if "data" in table else {"data": table}

        return {name: rows(table) for name, table in data.items() if isinstance(table, Mapping)}

    @override
    def world(
        self, agent: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        shared = EpisodeDatabase(agent)
        return BankingEnvironment(BankingTools(shared), BankingUserTools(shared), solo=solo)
