"""Earlier path of ``grpo_cl.integrations``: ``python -m grpo_cl.engines.NAME`` still works."""

from grpo_cl.integrations import __path__ as __path__
