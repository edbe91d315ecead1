"""Two ranks gather objects in a thread while the main thread sums numbers."""

from concurrent.futures import ThreadPoolExecutor

from grpo_cl.policy.model.distributed import DistributedContext

ROUNDS = 200

if __name__ == "__main__":
    with DistributedContext.initialize() as ranks, ThreadPoolExecutor(1) as thread:
        other = ranks.for_another_thread()

        def gather() -> None:
            for number in range(ROUNDS):
                assert other.all_gather((number, other.rank)) == [(number, 0), (number, 1)]

        gathering = thread.submit(gather)
        for number in range(ROUNDS):
            assert ranks.sum({"number": float(number)}) == {"number": 2.0 * number}
            assert ranks.all_gather(-number) == [-number, -number]
        gathering.result()
