"""τ²-bench's banking_knowledge domain."""
