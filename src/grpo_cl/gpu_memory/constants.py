"""Sizes that memory estimates share with the code they describe, and fixed GPU-memory overheads.

``grpo_cl.policy`` imports the first part. The overheads of the GPU itself (CUDA context, workspace,
fragmentation, graph pool) are assumptions; bytes per logit are counted from the code.
"""

MIB = 2**20
GIB = 2**30

MIN_SHARED_TOKENS = 32
"""Shortest prefix that the sequences of a micro-batch share: it costs a second attention call."""
MAX_LOGITS = 2**26
"""Logits per chunk of a log-prob computation: 256 MB in float32."""
MIN_CAPACITY = 64
"""Tokens allocated per KV-cache slot at least."""
PAGE_SIZE = 256
"""Tokens per page of a shared prefix; a GPU attends to all pages of a prefix in parallel."""
MIN_PREFIX = 1024
"""Shortest prefix that is shared: below it, a second attention call costs more than it saves."""
MAX_PREFIXES = 8
"""Prefixes cached at once."""
GPU_PREFILL_TOKENS = 32768
"""Most tokens of one prefill on a GPU."""
MAX_MERGED_BYTES = 2**31
"""Largest copy of the merged query, key and value weights of all layers; also the largest model
whose gate and up projections are merged: above it, their products take longer than launches."""
GRAPH_STEPS = 8
"""Tokens that decode graphs sample per row before the host reads them."""
MAX_GRAPH_LENGTH = 12288
"""Longest listed row length of decode graphs; longer ones are its multiples."""
RESERVED_TOKENS = 1024
"""Tokens allocated for every slot at least: a cache that grows moves, and needs new graphs."""

PROBE_PREFIX_SLOTS = 2
"""Prefix slots that ``ModelRunner.supports_prefix_cache`` allocates."""
CUDA_CONTEXT = 600 * MIB
"""Driver and library kernels, outside the allocator's count."""
WORKSPACE = 72 * MIB
"""Workspace of matrix products (cuBLAS), inside the allocator's count."""
GRAPH_WORKSPACE = 64 * MIB
"""Additional workspace of the streams that warm up and capture CUDA graphs."""
GRAPH_POOL = 256 * MIB
"""Private memory pool of CUDA graphs, outside the allocator's count."""
FRAGMENTATION = 0.05
"""Fraction of the peak that the allocator reserves and cannot use."""
LOGIT_FORWARD_BYTES = 16
"""Per logit of a chunk in the forward pass without Triton: raw, scaled, two for the entropy."""
LOGIT_BACKWARD_BYTES = 20
"""Per logit of a chunk in the backward pass without Triton: scaled, four of its gradients."""
SAMPLING_BYTES = 24
"""Per logit when a token is sampled, besides the logit: log-probs twice, float64 twice."""
TOP_P_BYTES = 40
"""Additional bytes per logit with ``top_p``, which sorts."""
