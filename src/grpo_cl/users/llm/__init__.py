"""User simulators driven by a language model: llm, react, verify, reflection."""
