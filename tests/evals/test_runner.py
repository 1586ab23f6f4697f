"""Evaluations: counted right, seeded alike, never run twice, failures never scored."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_suite import Adder, Sums, harness, tasks

from evals.runner import EmptyMean, EvaluationRequest, attempt_seed, evaluate, evaluate_async, evaluation_key
from evals.suites.metro import MetroSuite
from harness.errors import BoundaryError, UserError
from harness.protocols import Prompt
from harness.records import Generation, Sampling, Task, Trace, Unscored
from memory.store import Store


def request(**changes: Any) -> EvaluationRequest:
    fields: dict[str, Any] = {"suite": Sums(), "harness": harness(), "tasks": tasks(), "split": "val",
                              "sampling": Sampling(), "purpose": "gate"}  # fmt: skip
    return EvaluationRequest(**(fields | changes))


def test_means_counts_parts_strata_and_usage_by_hand() -> None:
    engine = Adder()
    engine.answers = {"0+1": "7", "2+1": "seven", "3+1": "7"}  # of 6 tasks: wrong, no number, wrong
    made = evaluate(request(), engine)
    assert (made.mean, made.scored, made.unscored, made.retries) == (0.5, 6, 0, 0)
    assert made.parts == {"exact": 0.5, "format": pytest.approx(5 / 6)}
    assert made.reward == pytest.approx((0.2 * 5 + 0.8 * 3) / 6)
    # easy: tasks 0, 2, 4 → only 4 is right; hard: 1, 3, 5 → 1 and 5 are right
    assert made.strata["level"]["easy"].mean == pytest.approx(1 / 3)
    assert made.strata["level"]["hard"].mean == pytest.approx(2 / 3)
    assert made.faults == {"wrong_sum": 2, "format": 1}
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.cost_usd) == (60, 12, 3.0)
    assert made.scores["sum-0"] == 0.0 and made.scores["sum-1"] == 1.0


def test_a_task_is_averaged_over_its_replicates_before_the_mean_over_tasks() -> None:
    # Task 0 fails for ever in one of two replicates; its one scored attempt still weighs as a whole task.
    engine = Adder(fails=lambda question, attempt: question == "0+1" and attempt != 1)
    engine.answers = {"0+1": "9"}
    made = evaluate(request(replicates=2, batch_size=6), engine)
    assert made.mean == pytest.approx(5 / 6)  # over attempts it would be 10/11
    assert (made.scored, made.unscored) == (11, 1)
    assert (made.tasks[0].score, made.tasks[0].scored, made.tasks[0].unscored) == (0.0, 1, 1)
    assert made.replicate_means == (pytest.approx(5 / 6), 1.0)


def test_seeds_depend_on_evaluation_seed_task_and_replicate_but_not_on_harness_or_policy() -> None:
    first, second = Adder("p1"), Adder("p2")
    evaluate(request(replicates=2), first)
    evaluate(request(replicates=2, harness=harness(instructions="Think.")), second)
    assert first.seeds == second.seeds and len(set(first.seeds)) == 12
    other = Adder()
    evaluate(request(replicates=2, sampling=Sampling(seed=1)), other)
    assert not set(other.seeds) & set(first.seeds)
    assert attempt_seed(0, "t", 1) != attempt_seed(0, "t", 0) and 0 <= attempt_seed(0, "t", 1) < 2**31


def test_the_same_evaluation_gives_the_same_record_and_batches_do_not_move_seeds() -> None:
    whole = evaluate(request(replicates=3), Adder(slip=0.5))
    assert evaluate(request(replicates=3), Adder(slip=0.5)) == whole
    split = evaluate(request(replicates=3, batch_size=4), Adder(slip=0.5))
    assert split.mean == whole.mean and split.attempts == whole.attempts


def test_a_recorded_evaluation_is_never_run_again(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        engine = Adder(slip=0.5)
        first = evaluate(request(), engine, ledger=store.ledger("r"), sink=partial(store.traces.add, "r"))
        assert engine.calls == [6]
        again = evaluate(request(), engine, ledger=store.ledger("r"), sink=partial(store.traces.add, "r"))
        assert engine.calls == [6] and again == first
        assert tuple(trace.trace_id for trace in store.traces.by_ids(first.trace_ids)) == first.trace_ids


def test_an_evaluation_in_which_everything_scored_zero_counts_as_recorded(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        engine = Adder(slip=1.0)
        for _ in range(2):
            assert evaluate(request(), engine, ledger=store.ledger("r")).mean == 0.0
        assert engine.calls == [6]


@pytest.mark.parametrize(
    "changes",
    [
        {"harness": harness(instructions="Think.")},
        {"tasks": tasks(5)},
        {"sampling": Sampling(seed=1)},
        {"sampling": Sampling(temperature=0.0)},
        {"purpose": "report"},
        {"replicates": 2},
        {"batch_size": 3},
        {"split": "test", "tasks": tasks(split="test")},
    ],
)
def test_everything_that_decides_the_result_is_in_the_key(changes: dict[str, Any]) -> None:
    assert evaluation_key(request(**changes), Adder()) != evaluation_key(request(), Adder())


def test_policy_engine_and_suite_are_in_the_key() -> None:
    class Other(Adder):
        identity = "adder at 2 threads"

    suite = Sums()
    suite.fingerprint = "sums-2"
    keys = {evaluation_key(request(), Adder()), evaluation_key(request(), Adder("p2")),
            evaluation_key(request(), Other()), evaluation_key(request(suite=suite), Adder())}  # fmt: skip
    assert len(keys) == 4


def test_a_failed_attempt_is_tried_again_alone_and_then_scored() -> None:
    engine = Adder(fails=lambda question, attempt: question == "3+1" and attempt == 1)
    made = evaluate(request(), engine)
    assert engine.calls == [6, 1]
    assert (made.mean, made.scored, made.unscored, made.retries) == (1.0, 6, 0, 1)
    assert made.usage.prompt_tokens == 70  # the lost call is paid too


def test_an_attempt_that_keeps_failing_is_excluded_and_counted_not_scored_zero() -> None:
    engine = Adder(fails=lambda question, attempt: question == "3+1")
    traces: list[Trace] = []
    made = evaluate(request(), engine, sink=traces.extend)
    assert engine.calls == [6, 1, 1]  # max_retries 2
    assert (made.mean, made.scored, made.unscored) == (1.0, 5, 1)
    assert made.tasks[3].score is None and "sum-3" not in made.scores
    assert traces[3].verdict == Unscored(boundary="engine", error="connection lost")


def test_an_evaluation_with_too_many_failures_is_measured_again_but_its_finished_batches_are_not(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path) as store:
        ledger = store.ledger("r")
        down = Adder(fails=lambda question, attempt: question == "3+1")
        first = evaluate(request(batch_size=3, max_retries=0), down, ledger=ledger)
        assert first.unscored == 1 and ledger.counts() == {"evaluation_batch": 1}
        up = Adder()
        assert evaluate(request(batch_size=3, max_retries=0), up, ledger=ledger).mean == 1.0
        assert up.calls == [3] and ledger.counts() == {"evaluation": 1, "evaluation_batch": 2}


def test_a_few_failures_do_not_keep_an_evaluation_from_being_recorded(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        engine = Adder(fails=lambda question, attempt: question == "3+1")
        made = request(tasks=tasks(20), max_retries=0)  # 1 of 20 is 5 %, not above it
        first = evaluate(made, engine, ledger=store.ledger("r"))
        assert evaluate(made, engine, ledger=store.ledger("r")) == first and engine.calls == [20]


def test_an_empty_mean_raises_with_the_first_error(tmp_path: Path) -> None:
    engine = Adder(fails=lambda question, attempt: True)
    with Store.open(tmp_path) as store, pytest.raises(EmptyMean, match="none of 6 attempts.*connection lost"):
        evaluate(request(), engine, ledger=store.ledger("r"))


def test_a_verifier_that_raises_is_user_code_and_no_score() -> None:
    engine = Adder()
    engine.answers = {"0+1": "crash the verifier"}
    made = evaluate(request(), engine)
    assert (made.mean, made.unscored) == (1.0, 1)
    assert made.attempts[0].boundary == "user_code" and "no such answer" in made.attempts[0].error
    assert engine.calls == [6]  # deterministic, so not tried again


@pytest.mark.parametrize(
    "odd",
    [{"reward": float("nan")}, {"reward": float("inf")}, {"parts": {"exact": 5.0}}, {"parts": {"exact": -0.1}},
     {"parts": {"exact": 1.0, "format": float("nan")}}, {"parts": {"exact": float("nan")}}],
)  # fmt: skip
def test_a_verdict_that_is_no_score_is_user_code_and_counted(odd: dict[str, Any]) -> None:
    class Odd(Sums):
        def verify(self, task: Task, completion: str, **given: Any) -> Any:
            sound = super().verify(task, completion, **given)
            return sound.model_copy(update=odd) if task.task_id == "sum-0" else sound

    made = evaluate(request(suite=Odd()), Adder())
    assert (made.mean, made.unscored) == (1.0, 1)
    assert made.attempts[0].boundary == "user_code" and "expected finite, exact from 0 to 1" in made.attempts[0].error


def test_tasks_of_another_split_are_refused() -> None:
    with pytest.raises(UserError, match=r"got tasks of \['test'\]; expected only 'val'"):
        request(tasks=(*tasks(2), *tasks(2, split="test")))
    with pytest.raises(TypeError, match="split"):
        EvaluationRequest(  # type: ignore[call-arg]
            suite=Sums(), harness=harness(), tasks=tasks(), sampling=Sampling(), purpose="gate"
        )


def test_nothing_to_measure_and_repeated_tasks_are_refused() -> None:
    with pytest.raises(UserError, match="measures nothing; got 0 tasks"):
        request(tasks=())
    with pytest.raises(UserError, match="names a task twice"):
        request(tasks=(*tasks(2), *tasks(1)))


def test_an_engine_that_raises_or_drops_answers_names_its_boundary() -> None:
    class Broken(Adder):
        identity = "broken"

        def generate(self, *args: Any, **kwargs: Any) -> list[Generation]:
            raise RuntimeError("out of memory")

    class Short(Adder):
        def generate(self, *args: Any, **kwargs: Any) -> list[Generation]:
            return super().generate(*args, **kwargs)[:-1]

    with pytest.raises(BoundaryError, match="engine: broken raised RuntimeError: out of memory"):
        evaluate(request(), Broken())
    with pytest.raises(BoundaryError, match="adder gave 5 answers to 6 prompts"):
        evaluate(request(), Short())


def test_progress_never_goes_back_and_ends_at_the_total() -> None:
    seen: list[tuple[int, int]] = []
    evaluate(request(replicates=2, batch_size=5), Adder(), progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1] == (12, 12)
    assert {total for _, total in seen} == {12}


async def test_it_runs_beside_an_event_loop() -> None:
    assert (await evaluate_async(request(), Adder())).mean == 1.0


def test_the_metro_suite_scores_its_own_solver_at_one_and_silence_at_zero() -> None:
    suite = MetroSuite()
    chosen = suite.tasks(split="val")[:8]
    seed = suite.seed_harness()

    class Solver(Adder):
        def _answer(self, prompt: Prompt, sampling: Sampling) -> Generation:
            task = next(task for task in chosen if all(text in prompt.messages[-1].content
                                                       for text in task.inputs.values()))  # fmt: skip
            return Generation(text=suite.solve(task, style="direct"), finish_reason="stop")

    class Silent(Adder):
        def _answer(self, prompt: Prompt, sampling: Sampling) -> Generation:
            return Generation(text="", finish_reason="stop")

    made = partial(request, suite=suite, harness=seed, tasks=chosen)
    assert evaluate(made(), Solver()).mean == 1.0
    silent = evaluate(made(), Silent())
    assert silent.mean == 0.0 and silent.scored == 8 and sum(silent.faults.values()) >= 8


_KILLED = """
import os, signal, sys
from functools import partial
sys.path.insert(0, sys.argv[2])
from small_suite import Adder, Sums, harness, tasks
from evals.runner import EvaluationRequest, evaluate
from harness.records import Sampling
from memory.store import Store

class Dying(Adder):
    def generate(self, *args, **kwargs):
        if len(self.calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().generate(*args, **kwargs)

store = Store.open(sys.argv[1])
evaluate(EvaluationRequest(suite=Sums(), harness=harness(), tasks=tasks(12), split="val", sampling=Sampling(),
                           purpose="gate", batch_size=4),
         Dying(slip=0.5), ledger=store.ledger("r"), sink=partial(store.traces.add, "r"))
"""


def test_after_a_kill_only_unfinished_batches_run_and_the_result_equals_an_unbroken_one(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), here], check=False, env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL
    made = request(tasks=tasks(12), batch_size=4)
    with Store.open(tmp_path) as store:
        assert store.ledger("r").counts() == {"evaluation_batch": 2} and store.traces.count("r") == 8
        engine = Adder(slip=0.5)
        resumed = evaluate(made, engine, ledger=store.ledger("r"), sink=partial(store.traces.add, "r"))
        assert engine.calls == [4]  # 12 attempts, 8 were recorded
        assert resumed == evaluate(made, Adder(slip=0.5))
        assert store.traces.count("r") == 12


def test_traces_carry_what_a_later_reader_needs() -> None:
    traces: list[Trace] = []
    engine = Adder("p9")
    evaluate(request(replicates=2, tasks=tasks(1)), engine, sink=traces.extend)
    first, second = traces
    assert (first.policy_id, first.harness_id, first.purpose) == ("p9", harness().harness_id, "gate")
    assert (first.replicate, second.replicate, first.token_count) == (0, 1, 2)
    assert first.trace_id != second.trace_id and first.seed != second.seed
    assert isinstance(tasks(1)[0], Task) and first.task_id == "sum-0"
