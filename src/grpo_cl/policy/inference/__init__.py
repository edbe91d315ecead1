"""Sampling: KV slots, prefill, decode, backends and weight sync."""
