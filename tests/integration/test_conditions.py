"""All six conditions as real runs that share their common work, and a proposer that is a language model."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

SERVER = Path(__file__).parents[1] / "servers" / "misbehaving.py"
CONDITIONS = ["static", "vace", "rl-only", "harness-only", "sia", "whale"]


@pytest.fixture(scope="module")
def arms(bench):
    """One run per condition in one home, with shared work, in the order of CONDITIONS."""
    reports = {}
    for condition in CONDITIONS:
        overrides = ["--set", f"strategy.condition={condition}", "--set", "strategy.share_work=true"]
        done = bench.cohelix("run", str(bench.config), "--name", condition, "--json", *overrides, home="study")
        assert done.returncode == 0, (condition, done.stderr)
        trace = json.loads(bench.cohelix("trace", condition, "--json", home="study").stdout)
        reports[condition] = (json.loads(done.stdout), trace["steps"])
    return reports


def nodes(arms, condition):
    return [step["node"] for step in arms[condition][1]]


def calls(arms, condition, role):
    return [call for step in arms[condition][1] for call in step["calls"] if call["role"] == role]


def test_each_condition_runs_its_own_route(arms):
    rounds = {
        "static": [],
        "vace": ["train", "diagnose", "propose", "gate", "commit"] * 2,
        "whale": ["train", "diagnose", "propose", "gate", "commit"] * 2,
        "rl-only": ["train", "gate", "commit"] * 2,
        "harness-only": ["explore", "diagnose", "propose", "gate", "commit"] * 2,
        "sia": ["explore", "diagnose", "propose", "gate", "commit"] * 2 + ["adopt"] + ["train", "gate", "commit"] * 2,
    }
    for condition, route in rounds.items():
        assert nodes(arms, condition) == ["seed", "baseline", *route, "select", "report"], condition


def test_weights_and_harnesses_change_only_where_the_condition_says_so(arms):
    changed = {}
    for condition in CONDITIONS:
        pairs = arms[condition][0]["pairs"]
        changed[condition] = (
            len({pair["checkpoint_id"] for pair in pairs}) > 1,
            any(decision["outcome"] == "accept" for decision in arms[condition][0]["decisions"]),
        )
    assert changed["static"] == (False, False)
    assert changed["rl-only"] == (True, False)
    assert changed["harness-only"][0] is False
    assert changed["vace"][0] and changed["whale"] == (True, True) and changed["sia"][0]


def test_whale_commits_every_legal_candidate_and_vace_only_better_ones(arms):
    whale = arms["whale"][0]["decisions"]
    assert [decision["outcome"] for decision in whale] == ["accept", "accept"]
    for decision in arms["vace"][0]["decisions"]:
        is_better = decision["candidate_score"] > decision["incumbent_score"]
        assert (decision["outcome"] == "accept") == is_better


def test_a_common_prefix_is_computed_once_for_all_arms(arms):
    # static runs first: its baseline and its test of the first pair serve all others
    assert [call["is_reused"] for call in calls(arms, "static", "explorer")][:1] == [False]
    for condition in CONDITIONS[1:]:
        assert calls(arms, condition, "explorer")[0]["is_reused"], condition
    # vace runs first of those that train: its first block is rl-only's and whale's, its second is its own
    blocks = {
        condition: [call["is_reused"] for call in calls(arms, condition, "trainer") if call["method"] == "train"]
        for condition in ("vace", "whale", "rl-only")
    }
    assert blocks["vace"] == [False, False]
    assert blocks["whale"][0] and blocks["rl-only"][0]
    # sia's harness rounds are harness-only's, traces and proposals included
    for role in ("diagnoser", "proposer"):
        assert all(call["is_reused"] for call in calls(arms, "sia", role)), role


def test_a_shared_run_ends_as_one_that_shares_nothing(bench, unbroken, arms):
    alone = json.loads(bench.cohelix("report", "r", "--json", home="unbroken").stdout)
    shared = arms["vace"][0]
    for name in ("scores", "gains", "gates"):
        assert alone["report"][name] == shared["report"][name]
    assert [pair["pair_id"] for pair in alone["pairs"]] == [pair["pair_id"] for pair in shared["pairs"]]


@pytest.mark.parametrize("condition", ["vace", "whale"])
def test_the_plan_of_a_dry_run_counts_the_val_attempts_that_the_run_makes(bench, arms, condition):
    overrides = ["--set", f"strategy.condition={condition}"]
    done = bench.cohelix("run", str(bench.config), "--dry-run", "--json", *overrides, home="planned")
    plan = json.loads(done.stdout)["plan"]
    # the first pair, then in each of two rounds two versions at new weights, on 16 val tasks: 16 + 2 * 2 * 16
    assert plan["start"]["evaluation_attempts"] + plan["all_rounds"]["evaluation_attempts"] == 80
    rounds = [step for step in arms[condition][1] if step["node"] != "report"]
    scored = {call["work_key"]: call["evaluations"] for step in rounds for call in step["calls"]}
    assert sum(scored.values()) == 80


def test_the_report_reads_test_for_the_first_and_the_selected_pair_with_all_replicates(arms):
    for condition in CONDITIONS:
        report = arms[condition][0]["report"]
        rows = {(row["label"], row["split"]): row for row in report["scores"]}
        assert set(rows) == {("base", "val"), ("base", "test"), ("final", "val"), ("final", "test")}
        assert len(rows["final", "test"]["replicate_means"]) == 2
        best = max(pair["val_score"] for pair in arms[condition][0]["pairs"])
        assert report["final_pair"]["val_score"] == best


@pytest.fixture
def server():
    """A chat server of its own process; yields its base URL."""
    process = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().split()[-1]
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()


def _plan(url, steps):
    body = json.dumps({"steps": steps}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{url}/plan", data=body, method="PUT")).read()


def _asked(url):
    return json.loads(urllib.request.urlopen(f"{url}/log").read())["requests"]


def test_a_language_model_takes_the_proposers_place_by_one_string_and_its_paid_reply_survives_a_kill(bench, server):
    drafts = [
        {"rationale": "digits cost letters", "targets": ["few_letters"],
         "edits": [{"op": "set_execution", "text": text}]}
        for text in ("Letters alone.", "One letter.")
    ]  # fmt: skip
    busy = {"do": "status", "code": 429, "headers": {"Retry-After": "0"}, "message": "slow down"}
    _plan(server, [busy, *({"do": "reply", "text": f"```json\n{json.dumps(draft)}\n```"} for draft in drafts)])
    model = ["--set", f"roles.proposer={{model: openai/local, api_base: '{server}/v1'}}"]
    died = bench.run("model", *model, die={"at": "ledger", "kind": "proposer.propose", "nth": 1, "when": "before"})
    assert died.returncode == -signal.SIGKILL, died.stderr
    asked = len(_asked(server))
    done = bench.resume("model")
    assert done.returncode == 0, done.stderr
    trace = json.loads(bench.cohelix("trace", "r", "--json", home="model").stdout)
    proposals = [call for step in trace["steps"] for call in step["calls"] if call["role"] == "proposer"]
    assert [call["backend"] for call in proposals] == ["openai/local"] * 2
    assert all(call["model_calls"] for call in proposals)
    diffs = [step["harness_diff"]["text"] for step in trace["steps"] if "harness_diff" in step]
    assert "Letters alone." in diffs[0]
    # the first proposal was paid before the kill and is not asked for again: only the second one is
    assert len(_asked(server)) == asked + 1
    assert sum(step["tokens"] for step in trace["steps"] if step["node"] == "propose") == 2 * (11 + 7)
