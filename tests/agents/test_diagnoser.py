"""Counts, shares and evidence come from the verdicts; a model only explains, with cited traces."""

import json

import pytest
from metro_cases import HARNESS, TRAIN, VAL, clipped, good, lost, tagless, trace
from scripted_model import scripted

from agents.diagnoser import Diagnoser, DiagnoserConfig

TRACES = [
    trace(TRAIN[0], good(TRAIN[0])),
    trace(TRAIN[0], clipped(TRAIN[0]), replicate=1),
    trace(TRAIN[1], clipped(TRAIN[1])),
    trace(TRAIN[2], tagless(TRAIN[2])),
    lost(TRAIN[3]),
]


async def test_counts_shares_and_weights_follow_the_verdicts():
    findings = await Diagnoser().diagnose(TRACES, TRAIN, harness=HARNESS)
    assert (findings.traces, findings.scored, findings.unscored, findings.failed) == (5, 4, 1, 3)
    by_fault = {error.fault: error for error in findings.errors}
    # All three failures end one station early, so each shows wrong_endpoint and diverging_station.
    assert by_fault["wrong_endpoint"].count == 3
    assert by_fault["wrong_endpoint"].share == 1.0
    # Failures 1 and 2 have the two faults, failure 3 a format fault too: (1/2 + 1/2 + 1/3) / 3.
    assert by_fault["wrong_endpoint"].weight == pytest.approx(4 / 9)
    assert findings.one_offs == {"format_fault": 1}


async def test_evidence_quotes_the_attempts_and_contrast_names_successes_at_the_same_task():
    findings = await Diagnoser().diagnose(TRACES, TRAIN, harness=HARNESS)
    error = next(error for error in findings.errors if error.fault == "wrong_endpoint")
    assert [evidence.trace_id for evidence in error.evidence] == [TRACES[i].trace_id for i in (1, 2, 3)]
    assert error.evidence[0].quote == TRACES[1].completion
    assert error.contrast_trace_ids == (TRACES[0].trace_id,)


async def test_evidence_spans_tasks_before_it_repeats_one():
    traces = [trace(TRAIN[0], clipped(TRAIN[0]), replicate=number) for number in range(3)]
    traces.append(trace(TRAIN[1], clipped(TRAIN[1])))
    findings = await Diagnoser(config=DiagnoserConfig(evidence_per_error=2)).diagnose(traces, TRAIN, harness=HARNESS)
    assert [e.task_id for e in findings.errors[0].evidence] == [TRAIN[0].task_id, TRAIN[1].task_id]


async def test_no_failure_gives_no_error():
    findings = await Diagnoser().diagnose([TRACES[0]], TRAIN, harness=HARNESS)
    assert findings.errors == ()
    assert findings.record.said == "all 1 scored attempts are exact"


@pytest.mark.parametrize("traces", [[], [trace(VAL[0], good(VAL[0]))]])
async def test_no_traces_and_val_traces_are_refused(traces):
    with pytest.raises(ValueError, match="diagnosing failed"):
        await Diagnoser().diagnose(traces, [*TRAIN, *VAL], harness=HARNESS)


def account(trace_ids: list[str], fault: str = "wrong_endpoint") -> str:
    item = {"fault": fault, "explanation": "It stops early.", "advice": "Say to go on.", "trace_ids": trace_ids}
    return json.dumps({"errors": [item]})


async def test_a_model_explains_with_cited_traces_and_cannot_change_a_count():
    ids = [TRACES[1].trace_id, TRACES[2].trace_id]
    model = scripted("diagnoser", ("reference:", account(ids)))
    findings = await Diagnoser(model=model).diagnose(TRACES, TRAIN, harness=HARNESS)
    error = next(error for error in findings.errors if error.fault == "wrong_endpoint")
    assert (error.count, error.explanation, error.advice) == (3, "It stops early.", "Say to go on.")
    assert findings.record.backend == "openai/scripted"
    assert findings.record.usage.prompt_tokens == 100
    # Reference-guided: the prompt holds the gold route of a quoted train task.
    assert TRAIN[1].gold[0] in model.prompts[0][-1].content


async def test_a_wrong_account_goes_back_with_the_exact_error():
    ids = [TRACES[1].trace_id, TRACES[2].trace_id]
    model = scripted(
        "diagnoser",
        ("reference:", account([*ids, "trace-invented"])),
        ("['trace-invented'] were not quoted", account(ids[:1])),
        ("got 1 cited traces, expected 2 or more", account(ids, fault="bad_luck")),
    )
    findings = await Diagnoser(model=model).diagnose(TRACES, TRAIN, harness=HARNESS)
    assert [len(refusal.errors) for refusal in findings.record.refusals] == [1, 1, 1]
    assert "'bad_luck' is not among" in findings.record.refusals[2].errors[0]
    # The tally stands without the model.
    assert findings.errors[0].count == 3
    assert all(error.explanation == "" for error in findings.errors)
    assert findings.record.usage.prompt_tokens == 300
