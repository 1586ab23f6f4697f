"""A block's measurements reach the store as they happen, and those of reused work when it is found."""

from graphs.training_watch import TrainingWatch
from memory.store import Store
from policy.sft.metric import SftStepMetrics


class Teller:
    """A recorder that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple] = []

    def tell(self, kind, text, **numbers) -> None:
        self.told.append((kind, text, numbers))


def step(number: int) -> SftStepMetrics:
    return SftStepMetrics(
        step=number,
        loss=2.0 - number,
        records=1,
        loss_tokens=2,
        tokens=4,
        padding_share=0.0,
        learning_rate=1e-5,
        grad_norm=1.0,
        update_s=0.5,
        tokens_per_s=8.0,
    )


def test_a_step_is_stored_when_it_is_made_and_again_is_no_second_row(tmp_path):
    with Store.open(tmp_path) as store:
        teller = Teller()
        watch = TrainingWatch(store, "run-1", "block-a", teller, first_step=0, total=2)
        watch.step(step(0))
        assert [row.step for row in store.metrics.find("run-1")] == [0]
        assert teller.told == [("progress", "loss 2.0000", {"done": 1, "total": 2})]
        watch.keep([step(0), step(1)])  # the second was made before this process began
        rows = store.metrics.find("run-1")
        assert [(row.step, row.metrics["loss"]) for row in rows] == [(0, 2.0), (1, 1.0)]
        assert watch.steps == 1 and len(teller.told) == 1, "work found is not work done"
