import gc

from grpo_cl.trainer.process import frozen_gc


def test_objects_that_exist_at_the_start_of_a_run_are_not_collected_until_its_end() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    count = gc.get_freeze_count()
    old = Cycle()
    with frozen_gc():
        assert gc.get_freeze_count() > count
        assert not any(tracked is old for tracked in gc.get_objects())
        Cycle()
        assert gc.collect() > 0
    assert any(tracked is old for tracked in gc.get_objects())
