"""The errors this package raises on purpose. Each names a boundary, not a module."""


class GRPOCLError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(GRPOCLError, ValueError):
    """The run description is wrong: an unknown name, an impossible value, a missing file."""


class TaskDataError(GRPOCLError, ValueError):
    """A task or a recorded trajectory on disk breaks its contract."""


class CheckpointError(GRPOCLError):
    """A checkpoint is damaged, incomplete or of another run; nothing was loaded from it."""


class ContextFullError(GRPOCLError):
    """A conversation has outgrown the policy's context; ends the episode, never the run."""


class ModelCallError(GRPOCLError):
    """A model behind an API gave no usable reply; ends the episode, and nobody is blamed for it."""


class EngineError(GRPOCLError):
    """Who writes for the policy is gone or writes with other weights; ends the run, not a task."""


class BudgetError(GRPOCLError):
    """What a run may spend on models behind an API is spent; the run can be resumed."""


class ToolError(GRPOCLError):
    """The agent or the user used a tool wrongly. Shown to the caller; never ends a run."""
