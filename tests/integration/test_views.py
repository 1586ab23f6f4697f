"""What a person can look at when a run has ended."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "litellm", "langgraph", "langchain_core", "scipy", "numpy")


def show(bench, *arguments):
    done = bench.cohelix(*arguments, "--json", home="unbroken")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_trace_shows_every_node_in_order_with_what_it_read_wrote_called_and_cost(bench, unbroken):
    steps = show(bench, "trace", "r")["steps"]
    assert [step["node"] for step in steps] == unbroken["nodes"]
    called = {(call["role"], step["node"]) for step in steps for call in step["calls"]}
    # all six roles and the trainer do real work
    assert {
        ("teacher", "seed"), ("explorer", "baseline"), ("trainer", "train"), ("diagnoser", "diagnose"),
        ("proposer", "propose"), ("gate", "gate"), ("selector", "select"), ("explorer", "report"),
    } <= called  # fmt: skip
    train = next(step for step in steps if step["node"] == "train")
    assert train["tokens"] > 0 and train["seconds"] > 0
    assert len(train["calls"][0]["wrote"]["steps"]) == 2  # metrics of both rollout steps


def test_training_and_evaluation_account_for_the_seconds_of_their_steps(bench, unbroken):
    for step in show(bench, "trace", "r")["steps"]:
        if step["node"] in ("train", "baseline", "report"):
            # the rest of such a step is writing records; an unaccounted block or evaluation would be most of it
            assert sum(call["seconds"] for call in step["calls"]) > 0.5 * step["seconds"], step["node"]


def test_the_trace_names_what_produced_it(bench, unbroken):
    identity = show(bench, "trace", "r")["identity"]
    assert identity["config"]["strategy"]["rounds"] == 2
    assert all(identity[name] for name in ("suite_fingerprint", "policy_fingerprint", "code_version"))


def test_state_lies_in_the_home_and_nothing_elsewhere(bench, unbroken):
    assert [path for path in bench.nobody.rglob("*") if path.is_file()] == []
    assert not (bench.folder / ".cohelix").exists()  # the working folder of every run of this bench
    assert {path.name for path in (bench.folder / "unbroken").iterdir()} >= {"store.sqlite", "runs", "checkpoints"}


def test_the_trace_shows_gate_numbers_and_harness_diffs(bench, unbroken):
    steps = show(bench, "trace", "r")["steps"]
    gate = next(call for step in steps for call in step["calls"] if call["role"] == "gate")
    decision = unbroken["decisions"][0]
    assert gate["wrote"]["incumbent_score"] == decision["incumbent_score"]
    assert gate["wrote"]["candidate_score"] == decision["candidate_score"]
    assert gate["wrote"]["outcome"] == decision["outcome"]
    diffs = [step["harness_diff"] for step in steps if step["node"] == "propose"]
    assert [diff["after_id"] for diff in diffs] == [row["candidate_id"] for row in unbroken["decisions"]]
    assert all(diff["changes"] for diff in diffs)


def test_one_step_can_be_shown_alone_and_an_unknown_one_lists_the_numbers(bench, unbroken):
    (only,) = show(bench, "trace", "r", "--step", "3")["steps"]
    assert only["node"] == "train"
    done = bench.cohelix("trace", "r", "--step", "99", home="unbroken")
    assert done.returncode == 2 and "one of [1, 2, 3" in done.stderr


def test_the_report_has_the_table_the_decisions_and_where_things_are(bench, unbroken):
    view = show(bench, "report", "r")
    assert view["report"]["rounds"] == 2
    assert sum(view["report"]["outcomes"].values()) == len(view["decisions"]) == 2
    for row in view["report"]["scores"]:
        assert row["low"] <= row["mean"] <= row["high"]
    text = bench.cohelix("report", "r", home="unbroken").stdout
    assert "accuracy in %" in text and view["artefacts"]["run"] in text and "cohelix trace r" in text
    written = json.loads((bench.folder / "unbroken" / "runs" / "r" / "report.json").read_text())
    assert written == view["report"]
    assert "| final | test |" in (bench.folder / "unbroken" / "runs" / "r" / "report.md").read_text()


def test_harness_log_show_and_diff_tell_the_lineage(bench, unbroken):
    versions = show(bench, "harness", "log", "--run", "r")
    ids = [version["harness_id"] for version in versions]
    seed, first = unbroken["decisions"][0]["incumbent_id"], unbroken["decisions"][0]["candidate_id"]
    assert {seed, first} <= set(ids)
    assert versions[ids.index(first)]["parents"] == [seed]
    shown = show(bench, "harness", "show", first.removeprefix("harness-")[:10])
    assert shown["harness_id"] == first and shown["family"] == "letters"
    diff = show(bench, "harness", "diff", seed, first)
    assert diff["changes"][0]["where"] == "protocol.execution"
    assert bench.cohelix("harness", "show", "zzz", home="unbroken").returncode == 2


def test_the_views_import_no_heavy_package(bench, unbroken):
    code = f"""
import sys
from pathlib import Path
from graphs.view import report_run, trace_run
home = Path({str(bench.folder / "unbroken")!r})
assert trace_run(home, "r")["steps"] and report_run(home, "r")["report"]
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=bench.environment())
    assert done.stdout.strip() == "[]", done.stderr


def test_eval_measures_any_stored_pair(bench, unbroken):
    final = unbroken["state"]["pairs"][-1]
    done = bench.cohelix(
        "eval", str(bench.config), "--split", "val", "--checkpoint", final["checkpoint_id"],
        "--harness", final["harness_id"], "--json", home="unbroken",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # the same weights, harness, tasks, decoding and seeds as the gate's measurement
    assert json.loads(done.stdout)["mean"] == pytest.approx(final["val_score"])


def test_eval_refuses_unknown_splits_and_checkpoints(bench, unbroken):
    for more, word in ((["--split", "dev"], "'train'"), (["--split", "val", "--checkpoint", "nothing"], "nothing")):
        done = bench.cohelix("eval", str(bench.config), *more, home="unbroken")
        assert done.returncode == 2, done.stderr
        assert word in done.stderr and "Traceback" not in done.stderr


def test_an_evaluation_refuses_base_weights_that_are_not_the_configurations_own(bench, unbroken):
    own = unbroken["state"]["pairs"][0]["checkpoint_id"]
    measured = bench.cohelix(
        "eval", str(bench.config), "--split", "val", "--checkpoint", own, "--json", home="unbroken"
    )
    assert measured.returncode == 0 and json.loads(measured.stdout)["checkpoint_id"] == own
    for other, words in (("base-0123456789abcdef", f"expected base or {own}"), ("../x", "not a folder name")):
        done = bench.cohelix("eval", str(bench.config), "--split", "val", "--checkpoint", other, home="unbroken")
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
