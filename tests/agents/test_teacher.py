"""Only verified demonstrations come out, and no gold answer goes in."""

import pytest
from metro_cases import HARNESS, SUITE, TRAIN, VAL, clipped, good
from scripted_model import scripted

from agents.teacher import Teacher, TeacherConfig
from evals.suites.metro import MetroSuite


async def test_the_rules_backend_writes_verified_examples_in_the_style_asked_for():
    written = await Teacher(SUITE).demonstrate(HARNESS, TRAIN[:2], style="plan")
    assert [shown.task_id for shown in written.accepted] == [task.task_id for task in TRAIN[:2]]
    for task, shown in zip(TRAIN[:2], written.accepted, strict=True):
        assert shown.completion.startswith("<reasoning>Plan: ")
        assert SUITE.verify(task, shown.completion, finish_reason="stop").parts["exact"] == 1.0
        assert shown.inputs == task.inputs


async def test_a_task_keeps_its_demonstration_id_in_every_style():
    first, second = [await Teacher(SUITE).demonstrate(HARNESS, TRAIN[:1], style=style) for style in ("plan", "hops")]
    assert first.accepted[0].demonstration_id == second.accepted[0].demonstration_id
    assert first.accepted[0].completion != second.accepted[0].completion


async def test_it_stops_at_the_number_wanted():
    written = await Teacher(SUITE).demonstrate(HARNESS, TRAIN, style="direct", wanted=3)
    assert len(written.accepted) == 3
    assert written.record.saw["task_ids"] == [task.task_id for task in TRAIN[:3]]


async def test_val_tasks_and_unknown_styles_are_refused():
    with pytest.raises(ValueError, match="expected a train task"):
        await Teacher(SUITE).demonstrate(HARNESS, VAL[:1], style="direct")
    with pytest.raises(ValueError, match="expected one of"):
        await Teacher(SUITE).demonstrate(HARNESS, TRAIN[:1], style="baroque")


class WrongSolver(MetroSuite):
    """A suite whose solver is broken: the verifier must catch it."""

    def solve(self, task, *, style):
        return clipped(task)


async def test_what_the_verifier_refuses_is_recorded_and_excluded():
    suite = WrongSolver("pocket", 0, counts={"train": 8, "val": 4, "test": 4})
    written = await Teacher(suite).demonstrate(HARNESS, TRAIN[:1], style="direct")
    assert written.accepted == ()
    assert written.excluded[0].task_id == TRAIN[0].task_id
    assert "wrong_endpoint" in written.excluded[0].reasons[0]


async def test_a_model_is_retried_with_fault_names_and_never_sees_the_gold():
    task = TRAIN[0]
    model = scripted("teacher", (task.inputs["question"], clipped(task)), ("wrong_endpoint", good(task)))
    written = await Teacher(SUITE, model=model).demonstrate(HARNESS, [task], style="short")
    assert [shown.completion for shown in written.accepted] == [good(task)]
    assert len(written.record.refusals) == 1
    assert written.record.usage.completion_tokens == 20
    # The refused route is a proper prefix of the gold, so the whole gold in any prompt would be a leak.
    seen = "\n".join(message.content for prompt in model.prompts for message in prompt)
    assert task.gold[0] not in seen


async def test_a_model_that_never_passes_is_excluded_and_the_next_task_stands_in():
    model = scripted(
        "teacher",
        (TRAIN[0].inputs["question"], "no idea"),
        ("format_fault", clipped(TRAIN[0])),
        ("wrong_endpoint", ""),
        (TRAIN[1].inputs["question"], good(TRAIN[1])),
    )
    teacher = Teacher(SUITE, model=model, config=TeacherConfig(max_tries=3))
    written = await teacher.demonstrate(HARNESS, TRAIN[:3], style="short", wanted=1)
    assert [task.task_id for task in written.excluded] == [TRAIN[0].task_id]
    assert written.excluded[0].tries == 3
    assert [shown.task_id for shown in written.accepted] == [TRAIN[1].task_id]


async def test_a_right_answer_in_a_wrong_form_is_not_accepted():
    task = TRAIN[0]
    model = scripted("teacher", ("Style", good(task).replace("</reasoning>", "")), ("format_fault", good(task)))
    written = await Teacher(SUITE, model=model).demonstrate(HARNESS, [task], style="short")
    assert [shown.completion for shown in written.accepted] == [good(task)]
    assert len(written.record.refusals) == 1


async def test_a_verifier_that_fails_excludes_the_task_and_says_why():
    class Failing(MetroSuite):
        def verify(self, task, completion, *, finish_reason, token_count=0):
            raise RuntimeError("no judge")

    written = await Teacher(Failing("pocket", 0)).demonstrate(HARNESS, TRAIN[:1], style="direct")
    assert not written.accepted
    assert written.excluded[0].reasons == ("the verifier raised RuntimeError: no judge",)
