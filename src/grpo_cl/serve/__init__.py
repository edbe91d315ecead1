"""A policy behind an OpenAI-compatible API, with vLLM's names for what OpenAI's has none."""
