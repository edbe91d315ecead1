"""Token and money budget of a run for model API calls."""

import json
from pathlib import Path

from grpo_cl.config import ModelsConfig
from grpo_cl.errors import BudgetError, ConfigError
from grpo_cl.llm.prompt import Completion, Prompt, format_transcript
from grpo_cl.storage.journal import Journal, read_journal

BYTES_PER_TOKEN = 3
"""Estimates the tokens of an endpoint that reports none. Most text has more UTF-8 bytes per token
(English about 4), so the estimate is too high rather than too low and a budget holds."""


def with_usage(prompt: Prompt, completion: Completion) -> Completion:
    """The completion with estimates in place of token counts that the endpoint does not report."""
    text = f"{prompt.system}\n{format_transcript(prompt.messages)}"
    extras = [*prompt.tools, *([prompt.response_schema.schema] if prompt.response_schema else ())]
    sent = text + "".join(json.dumps(extra) for extra in extras)
    return completion.model_copy(
        update={
            "input_tokens": completion.input_tokens or _estimate_tokens(sent),
            "output_tokens": completion.output_tokens or _estimate_tokens(completion.text),
        }
    )


def _estimate_tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


class Budget:
    """Counts tokens and cost, including what earlier sessions of the run wrote to its journal."""

    def __init__(self, config: ModelsConfig) -> None:
        self._config = config
        self._journal: Path | None = None
        self.tokens = 0
        self.money = 0.0
        self._last_check = (0, 0.0)
        self._max_step = (0, 0.0)

    def open_journal(self, path: Path) -> None:
        """Add the spending recorded in ``path``, and append further spending to it."""
        self._journal = path
        for line in read_journal(path):
            self.tokens += int(line["tokens"])
            self.money += float(line["cost"])
        self._last_check = (self.tokens, self.money)

    def require_price(self, model: str) -> None:
        """Raise ``ConfigError`` for a model without a price if the budget is in money."""
        if self._config.budget_money is not None and model not in self._config.prices:
            raise ConfigError(
                f"models.budget_money needs a price for {model!r}; give it as "
                f"models.prices: {{{model!r}: [IN, OUT]}}, per 1000 tokens, [0, 0] if it is free"
            )

    def require_remaining(self) -> None:
        """Raise ``BudgetError`` if the budget is exhausted."""
        if self._exceeds(self.tokens, self.money):
            raise BudgetError(self.exhausted_message())

    def spend(self, model: str, completion: Completion) -> float:
        """Record one paid completion and return its cost."""
        input_price, output_price = self._config.prices.get(model, (0.0, 0.0))
        tokens = completion.input_tokens + completion.output_tokens
        cost = (
            completion.input_tokens * input_price + completion.output_tokens * output_price
        ) / 1000
        self.tokens += tokens
        self.money += cost
        if self._journal is not None:
            with Journal(self._journal) as journal:
                journal.append({"model": model, "tokens": tokens, "cost": cost})
        return cost

    def covers_next_step(self) -> bool:
        """Whether the rest covers the most expensive interval between two calls of this method."""
        spent = (self.tokens - self._last_check[0], self.money - self._last_check[1])
        self._max_step = (max(self._max_step[0], spent[0]), max(self._max_step[1], spent[1]))
        self._last_check = (self.tokens, self.money)
        return not self._exceeds(
            self.tokens + self._max_step[0], self.money + self._max_step[1], or_equals=False
        )

    def exhausted_message(self) -> str:
        """An error message with the spending, the limits, and how to continue."""
        limits = (
            (self._config.budget_tokens, f"{self.tokens} of models.budget_tokens"),
            (self._config.budget_money, f"{self.money:.4f} of models.budget_money"),
        )
        reached = [f"{text}={limit}" for limit, text in limits if limit is not None]
        return (
            f"the budget for models is spent: {', '.join(reached)}. Raise it and continue with "
            "--resume_from; replies already paid for come from models.cache_dir"
        )

    def _exceeds(self, tokens: float, money: float, *, or_equals: bool = True) -> bool:
        pairs = ((tokens, self._config.budget_tokens), (money, self._config.budget_money))
        return any(
            limit is not None and (spent > limit or (or_equals and spent == limit))
            for spent, limit in pairs
        )
