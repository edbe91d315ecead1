"""An OpenAI-compatible server for a policy, with vLLM's routes for weights, pauses and versions."""
