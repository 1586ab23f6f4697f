import pytest

from graphs.events import ignore
from graphs.recorder import Recorder
from graphs.work import Produced, Work
from harness.errors import BoundaryError
from harness.records import Usage
from memory.store import Store


@pytest.fixture
def work(tmp_path):
    with Store.open(tmp_path) as store:
        recorder = Recorder(store.steps, "run", ignore)
        yield Work(store.ledger("run"), recorder), recorder


def test_work_is_done_once_per_inputs_and_its_zero_result_counts_as_done(work):
    desk, recorder = work
    executions = []

    def do():
        executions.append(1)
        return Produced(result=0.0, said="scored 0", usage=Usage(prompt_tokens=3, completion_tokens=2), evaluations=4)

    first = desk.once("gate", "judge", {"replicate": 0}, do)
    again = desk.once("gate", "judge", {"replicate": 0}, do)
    other = desk.once("gate", "judge", {"replicate": 1}, do)
    assert len(executions) == 2
    assert (first.result, again.result, other.result) == (0.0, 0.0, 0.0)
    assert first.key == again.key != other.key
    assert [call.is_reused for call in recorder.step.calls] == [False, True, False]


def test_reused_work_counts_as_spent_once_so_that_totals_do_not_depend_on_interruptions(work):
    desk, recorder = work
    produced = Produced(result=1, usage=Usage(prompt_tokens=3, completion_tokens=2, cost_usd=0.5), evaluations=4)
    desk.once("gate", "judge", {}, lambda: produced)
    desk.once("gate", "judge", {}, lambda: produced)
    desk.once("gate", "judge", {"replicate": 1}, lambda: produced)
    # two pieces of work of 3 + 2 tokens, 0.5 dollars and 4 attempts; the second call of the first one cost nothing
    assert recorder.step.spent() == {"tokens": 10, "cost_usd": 1.0, "evaluations": 8}
    first = recorder.step.calls[0].work_key
    recorder.step.counted = frozenset({first})  # a later step that looks the first piece up again
    assert recorder.step.spent() == {"tokens": 5, "cost_usd": 0.5, "evaluations": 4}


def test_lost_work_is_a_store_failure_and_not_an_empty_result(work):
    desk, _ = work
    with pytest.raises(BoundaryError, match="store: .*judge-missing"):
        desk.result("judge-missing")
