"""Attention, LoRA, RoPE and sampling kernels: PyTorch, FlashAttention and Triton."""
