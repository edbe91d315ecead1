"""What every written value is: a frozen record."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of every value this package writes; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Tau2Record(BaseModel):
    """Base of what τ²-bench writes; fields this package does not use are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")
