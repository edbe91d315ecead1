"""GRPO and SFT updates: batching, loss, optimizer, FSDP."""
