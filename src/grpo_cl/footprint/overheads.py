"""Sizes that no shape tells.

Those of the GPU itself (context, workspace, fragmentation, graph pool) are assumed; the others are
counted from the code, or equal to a constant of it.
"""

MIB = 2**20
GIB = 2**30

CUDA_CONTEXT = 600 * MIB
"""Taken by the driver and the kernels of the libraries, outside the allocator's count."""
WORKSPACE = 72 * MIB
"""Scratch space of matrix products, inside the allocator's count."""
GRAPH_WORKSPACE = 64 * MIB
"""More of it with CUDA graphs: for the stream that tries them, and for that which records them."""
FRAGMENTATION = 0.05
"""Share of the peak that the allocator holds and cannot use."""
LOGIT_FORWARD = 16
"""Bytes per logit of a chunk on the way forward, without Triton: raw, tempered, two for entropy."""
LOGIT_BACKWARD = 20
"""Bytes per logit of a chunk on the way back, without Triton: tempered, four of its gradients."""
DRAW = 24
"""Bytes per logit when tokens are drawn, besides the logit: log-probs twice, float64 twice."""
DRAW_TOP_P = 40
"""More of them with ``top_p``, which sorts."""
MAX_LOGITS = 2**26
"""Logits of a chunk, as ``policy.scoring.MAX_LOGITS``."""
PREFILL_TOKENS = 32768
"""Tokens of one pass over new prompts, as ``policy.local.GPU_PREFILL_TOKENS``."""
DECODED = 8
"""Tokens that a CUDA graph writes at once, as ``policy.graphs.STEPS``."""
GRAPH_LENGTH = 12288
"""The longest row that graphs are made for, but for multiples, as in ``policy.decoding``."""
RESERVED = 1024
"""Tokens that a row has room for at least where graphs are made, as in ``policy.decoding``."""
GRAPH_POOL = 256 * MIB
"""What graphs keep for themselves, outside the allocator's count."""
MIN_CAPACITY = 64
"""Tokens that a row of the cache has room for at least, as ``policy.slots.MIN_CAPACITY``."""
PAGE = 256
"""Tokens by which a beginning that is kept once is divided, as ``policy.trunks.PAGE``."""
LEAST_TRUNK = 1024
"""Shortest beginning that is kept once, as ``policy.trunks.LEAST``."""
MOST_TRUNKS = 8
"""How many are kept, as ``policy.trunks.COUNT``."""
TRIED_TRUNKS = 2
"""Rows that ``policy.reader.SlotReader.sees_trunks`` takes in their cache."""
JOINED_MODEL = 2**31
"""Bytes of a model up to which it decodes with joined matrices, as ``policy.projections``."""
