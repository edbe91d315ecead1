"""The banking_knowledge domain of τ²-bench: the agent searches a knowledge base for the policy."""

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pyarrow
from inspect_evals.tau2.banking.BankingAgentTools import BankingAgentTools
from inspect_evals.tau2.banking.BankingUserTools import BankingUserTools as UpstreamUserTools
from inspect_evals.tau2.banking.data_model import GREP_TOP_K, KnowledgeBase, TransactionalDB
from inspect_evals.tau2.banking.tools import all_banking_agent_tools, banking_grep
from inspect_evals.tau2.banking.user_tools import all_banking_user_tools
from inspect_evals.tau2.banking.utils import BANKING_DOCUMENTS_FILE
from inspect_evals.tau2.utils import TAU2_DATA_DIR
from pyarrow import compute
from typing_extensions import override

from grpo_cl.envs.base import State, StateHash
from grpo_cl.envs.database import EpisodeDatabase, SharedDatabase
from grpo_cl.envs.inspect_tools import INSPECT_ERRORS, schema
from grpo_cl.envs.tau2 import Side, Tau2Domain, Tau2Environment
from grpo_cl.envs.tau2_files import parse_database
from grpo_cl.envs.toolkit import Toolkit, build_toolkit
from grpo_cl.errors import ToolError
from grpo_cl.types import ToolSchema

MAX_PATTERN_LENGTH = 200
"""Characters of a pattern."""

MAX_PATTERN_SIZE = 4000
"""A pattern's length times its repetition counts; a search's work grows with it, not faster."""

_COUNTS = re.compile(r"\{(\d*),?(\d*)\}")

_MARK = "\ue000"
"""Replaces each match; a character for private use, which no document has."""

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
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ToolError(f"The pattern is longer than {MAX_PATTERN_LENGTH} characters")
    counts = (max(int(low or 0), int(high or 0)) for low, high in _COUNTS.findall(pattern))
    if len(pattern) * math.prod(max(count, 1) for count in counts) > MAX_PATTERN_SIZE:
        raise ToolError("The pattern repeats too much; use smaller counts in braces")
    documents = _knowledge().documents.values()
    scored = zip(_count_matches(pattern), documents, strict=True)
    ranked = sorted((pair for pair in scored if pair[0]), key=lambda pair: -pair[0])[:GREP_TOP_K]
    if not ranked or not pattern.strip():
        return f"No matches found for pattern: {pattern}"
    entries = [
        f"{rank}. {document.title}\n   ID: {document.id}\n   Score: {count:.4f}\n"
        f"   Content: {document.content}\n"
        for rank, (count, document) in enumerate(ranked, 1)
    ]
    return "\n".join(entries)


def _count_matches(pattern: str) -> list[int]:
    """Matches of ``pattern`` in each document; text that is no pattern is searched for as it is."""
    try:
        re.compile(pattern)
    except re.error:
        return [text.lower().count(pattern.lower()) for text in _texts().to_pylist()]
    # RE2 reads ``{,n}`` as text, and its ``$`` does not match before a newline at the end.
    pattern = re.sub(r"\{,(?=\d+\})", "{0,", pattern)
    pattern = re.sub(r"(?<!\\)\$$", r"(?:$|\\n\\z)", pattern)
    try:
        marked = _compute("replace_substring_regex", _texts(), f"(?i){pattern}", _MARK)
    except pyarrow.ArrowInvalid as error:
        raise ToolError(
            "The search supports no lookaround, back-references or possessive quantifiers; "
            "use a simpler pattern"
        ) from error
    return _compute("count_substring", marked, _MARK).to_pylist()


def _compute(function: str, *arguments: Any) -> Any:
    return getattr(compute, function)(*arguments)  # pyarrow makes its functions at import


@cache
def _texts() -> pyarrow.Array:
    # pyarrow, which inspect-evals depends on, searches with RE2: linear time, no backtracking.
    return pyarrow.array([document.content for document in _knowledge().documents.values()])


def _name(factory: Any) -> str:
    return factory.__name__.removeprefix(_PREFIX)


_AGENT_FACTORIES = (*all_banking_agent_tools, banking_grep)

BankingTools = build_toolkit(
    BankingAgentTools,
    name="KnowledgeTools",
    tools=[_name(factory) for factory in _AGENT_FACTORIES],
    writes=[_name(factory) for factory in _AGENT_FACTORIES if _name(factory) not in _READS],
    overrides=(grep,),
    errors=INSPECT_ERRORS,
)
BankingUserTools = build_toolkit(
    UpstreamUserTools,
    name="KnowledgeUserTools",
    tools=[_name(factory) for factory in all_banking_user_tools],
    writes=[_name(factory) for factory in all_banking_user_tools if _name(factory) not in _READS],
    errors=INSPECT_ERRORS,
)


@cache
def _schemas() -> tuple[ToolSchema, ...]:
    return tuple(schema(factory(), name=_name(factory)) for factory in _AGENT_FACTORIES)


@cache
def _user_schemas() -> tuple[ToolSchema, ...]:
    return tuple(schema(factory(), name=_name(factory)) for factory in all_banking_user_tools)


class BankingEnvironment(Tau2Environment):
    """The agent and the user share one database."""

    @override
    def state(self) -> State:
        return State(self.tools.db.changes(), {})

    @override
    def state_hash(self) -> StateHash:
        return StateHash(self.tools.db.sha256(), None)


class BankingDomain(Tau2Domain):
    """Customer service of a bank whose rules are in about seven hundred documents."""

    name = "banking_knowledge"
    folder = "banking_knowledge"
    agent_side = Side(toolkit=BankingTools, schemas=_schemas, database=_database)
    user_side = Side(toolkit=BankingUserTools, schemas=_user_schemas, database=_database)

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
    def new_environment(
        self, database: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        shared = EpisodeDatabase(database)
        return BankingEnvironment(
            self.agent_side.toolkit(shared), BankingUserTools(shared), solo=solo
        )
