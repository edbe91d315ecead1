"""What a run may spend on models behind an API, and what it has spent."""

from pathlib import Path

from grpo_cl.errors import BudgetError, ConfigError
from grpo_cl.models.prompt import Completion
from grpo_cl.roles import ModelsConfig
from grpo_cl.rundir import Journal, read_journal


class Budget:
    """Counts tokens and money; what a ledger says was spent before counts too."""

    def __init__(self, config: ModelsConfig) -> None:
        self._config = config
        self._ledger: Path | None = None
        self.tokens = 0
        self.money = 0.0
        self._mark = (0, 0.0)
        self._dearest = (0, 0.0)

    def open_ledger(self, path: Path) -> None:
        """Count what a file says was spent before, and add to it from now on."""
        self._ledger = path
        for line in read_journal(path):
            self.tokens += int(line["tokens"])
            self.money += float(line["cost"])
        self._mark = (self.tokens, self.money)

    def require_price(self, model: str) -> None:
        """Refuse a model whose calls cannot be counted against a budget of money."""
        if self._config.budget_money is not None and model not in self._config.prices:
            raise ConfigError(
                f"models.budget_money needs a price for {model!r}; give it as "
                f"models.prices: {{{model!r}: [IN, OUT]}}, per 1000 tokens, [0, 0] if it is free"
            )

    def require_rest(self) -> None:
        """Raise ``BudgetError`` once nothing is left."""
        if self._exceeds(self.tokens, self.money):
            raise BudgetError(self.verdict())

    def spend(self, model: str, completion: Completion) -> float:
        """Count one paid reply and say what it cost."""
        read, written = self._config.prices.get(model, (0.0, 0.0))
        tokens = completion.input_tokens + completion.output_tokens
        cost = (completion.input_tokens * read + completion.output_tokens * written) / 1000
        self.tokens += tokens
        self.money += cost
        if self._ledger is not None:
            with Journal(self._ledger) as journal:
                journal.append({"model": model, "tokens": tokens, "cost": cost})
        return cost

    def covers_another(self) -> bool:
        """Whether the dearest stretch between two of these questions could be paid once more."""
        spent = (self.tokens - self._mark[0], self.money - self._mark[1])
        self._dearest = (max(self._dearest[0], spent[0]), max(self._dearest[1], spent[1]))
        self._mark = (self.tokens, self.money)
        return not self._exceeds(
            self.tokens + self._dearest[0], self.money + self._dearest[1], at=False
        )

    def verdict(self) -> str:
        """What was spent of what, and the way out."""
        limits = [
            f"{self.tokens} of models.budget_tokens={self._config.budget_tokens}",
            f"{self.money:.4f} of models.budget_money={self._config.budget_money}",
        ]
        given = (self._config.budget_tokens, self._config.budget_money)
        told = [text for text, limit in zip(limits, given, strict=True) if limit is not None]
        return (
            f"the budget for models is spent: {', '.join(told)}. Raise it and go on with "
            "--resume_from; replies that were paid for come from models.cache_dir"
        )

    def _exceeds(self, tokens: float, money: float, *, at: bool = True) -> bool:
        pairs = ((tokens, self._config.budget_tokens), (money, self._config.budget_money))
        return any(
            limit is not None and (spent > limit or (at and spent == limit))
            for spent, limit in pairs
        )
