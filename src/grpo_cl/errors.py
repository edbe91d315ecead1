"""The exceptions of this package."""


class GRPOCLError(Exception):
    """Base of all exceptions of this package."""


class ConfigError(GRPOCLError, ValueError):
    """The configuration is invalid: an unknown name, an impossible value, a missing file."""


class TaskDataError(GRPOCLError, ValueError):
    """A task or a recorded trajectory on disk is invalid."""


class CheckpointError(GRPOCLError):
    """A checkpoint is damaged, incomplete or of another run; nothing was loaded from it."""


class TrainingError(GRPOCLError):
    """Training cannot continue: a value that it needs is not finite; ends the run."""


class ContextFullError(GRPOCLError):
    """A conversation exceeds the policy's context; ends the episode, never the run."""


class ModelCallError(GRPOCLError):
    """A model behind an API gave no usable reply; ends the episode as an infrastructure error."""


class EngineError(GRPOCLError):
    """The inference engine is unreachable or has stale weights; ends the run."""


class BudgetError(GRPOCLError):
    """The run's budget for models behind an API is spent; the run can be resumed."""


class ToolError(GRPOCLError):
    """Invalid use of a tool by the agent or the user. Shown to the caller; never ends a run."""
