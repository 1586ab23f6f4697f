"""What a person is told when a run cannot start or go on: exit 2, the cause named, nothing lost."""

import json
import shutil
import signal

import pytest

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def killed(bench):
    """A home with a run that was killed after its first commit."""
    assert bench.run("killed", die={"at": "commit", "nth": 1, "when": "after"}).returncode == KILLED
    return "killed"


def refused(done, *words):
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in " ".join(done.stderr.split()), done.stderr


def test_a_second_process_on_a_running_run_is_refused_and_the_first_one_goes_on(bench):
    first = bench.start("busy")
    try:
        assert first.stderr.readline()  # the run has begun
        refused(bench.resume("busy"), "another process")
        listed = json.loads(bench.cohelix("runs", "--json", home="busy").stdout)
        assert [run["status"] for run in listed] == ["running"]
        _, rest = first.communicate(timeout=120)
        assert first.returncode == 0, rest
    finally:
        first.kill()


def test_a_killed_run_is_listed_as_interrupted_with_the_command_to_go_on(bench, killed):
    listed = json.loads(bench.cohelix("runs", "--json", home=killed).stdout)
    assert [run["status"] for run in listed] == ["interrupted"]
    report = json.loads(bench.cohelix("report", "r", "--json", home=killed).stdout)
    assert report["next"][0].startswith("cohelix resume r")


def test_a_changed_config_is_refused_with_the_keys_named(bench, killed):
    done = bench.resume(killed, "--set", "strategy.rl.learning_rate=0.001", "--set", "seed=4")
    refused(done, "config.seed: recorded 0, now 4", "config.strategy.rl.learning_rate", "2 keys differ")
    refused(bench.resume(killed, "--config", str(bench.config), "--set", "strategy.rounds=3"), "config.strategy.rounds")


def test_an_edited_config_file_of_the_run_is_refused_and_its_removal_restores_it(bench, killed):
    file = bench.folder / killed / "runs" / "r" / "config.yaml"
    whole = file.read_text()
    file.write_text(whole.replace("rounds: 2", "rounds: 3"))
    refused(bench.resume(killed), "config.strategy.rounds: recorded 2, now 3")
    file.write_text(whole[: len(whole) // 2] + "\n  torn: [")
    refused(bench.resume(killed), str(file), "remove it")
    file.write_text(whole)


def test_changed_base_weights_are_refused(bench, killed):
    file = bench.folder / "base" / "generation_config.json"
    whole = file.read_text()
    file.write_text(whole.replace("}", ' , "top_k": 3}'))
    try:
        refused(bench.resume(killed), "policy_fingerprint")
    finally:
        file.write_text(whole)


def test_a_torn_checkpoint_is_named_never_used_and_trained_again_from_recorded_rollouts(bench, unbroken):
    die = {"at": "ledger", "kind": "evaluation_batch", "nth": 2, "when": "before"}
    assert bench.run("torn", die=die).returncode == KILLED
    checkpoint = unbroken["state"]["pairs"][1]["checkpoint_id"]
    folder = bench.folder / "torn" / "checkpoints" / checkpoint
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    refused(bench.resume("torn"), checkpoint, "weights.safetensors", "graph.db")
    shutil.rmtree(folder)
    for file in (bench.folder / "torn" / "runs" / "r").glob("graph.db*"):
        file.unlink()
    assert bench.resume("torn").returncode == 0
    assert bench.outcome("torn") == unbroken


def test_a_damaged_store_is_named(bench):
    assert bench.run("damaged", die={"at": "step", "nth": 2, "when": "after"}).returncode == KILLED
    file = bench.folder / "damaged" / "store.sqlite"
    file.with_name("store.sqlite-wal").unlink(missing_ok=True)
    file.write_bytes(b"not a database at all, whatever its name says" * 40)
    refused(bench.resume("damaged"), "store.sqlite")


def test_damaged_graph_checkpoints_are_named_and_their_removal_loses_nothing(bench, unbroken):
    assert bench.run("graphless", die={"at": "commit", "nth": 1, "when": "after"}).returncode == KILLED
    file = bench.folder / "graphless" / "runs" / "r" / "graph.db"
    file.with_name("graph.db-wal").unlink(missing_ok=True)
    file.write_bytes(b"torn" * 2000)
    refused(bench.resume("graphless"), "graph.db", "remove")
    file.unlink()
    assert bench.resume("graphless").returncode == 0
    assert bench.outcome("graphless") == unbroken


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(bench, unbroken):
    limit = 300_000  # bytes in any one file: the base is smaller, the growing store is not
    done = bench.cohelix("run", str(bench.config), "--name", "r", home="full", file_limit=limit)
    refused(done, "free disk space")
    done = bench.resume("full")
    assert done.returncode == 0, done.stderr
    assert bench.outcome("full") == unbroken


def test_ctrl_c_leaves_a_run_that_can_be_resumed_and_says_how(bench, unbroken):
    running = bench.start("ctrl-c")
    try:
        lines = []
        while "baseline" not in (lines[-1] if lines else ""):
            lines.append(running.stderr.readline())
            assert lines[-1], lines
        running.send_signal(signal.SIGINT)
        _, rest = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, rest
    assert "cohelix resume r" in " ".join(rest.split())
    assert "Traceback" not in rest
    listed = json.loads(bench.cohelix("runs", "--json", home="ctrl-c").stdout)
    assert [run["status"] for run in listed] == ["stopped"]
    assert bench.resume("ctrl-c").returncode == 0
    assert bench.outcome("ctrl-c") == unbroken


def test_a_taken_name_is_refused(bench, unbroken):
    refused(bench.run("unbroken"), "run r exists already", "resume")


def test_a_resume_may_change_the_limits_which_are_recorded_and_nothing_else(bench, unbroken):
    home = "raised"
    start = ["--set", "budget.max_wall_s=3600"]
    assert bench.run(home, *start, die={"at": "commit", "nth": 1, "when": "after"}).returncode == KILLED
    raised = ["--set", "budget.max_wall_s=4000", "--set", "budget.max_tokens=null"]
    refused(bench.resume(home, *raised, "--set", "strategy.rounds=3"), "config.strategy.rounds", "1 keys differ")
    refused(bench.resume(home, *raised, "--set", "budget.tasks.val=8"), "config.budget.tasks.val")
    refused(bench.resume(home, "--set", "budget={max_wall_s: 4000}"), "config.budget.max_wall_s")
    done = bench.resume(home, *raised)
    assert done.returncode == 0, done.stderr
    assert "budget.max_wall_s 3600.0 -> 4000.0" in " ".join(done.stderr.split())
    assert bench.outcome(home) == unbroken
    (amendment,) = json.loads(bench.cohelix("report", "r", "--json", home=home).stdout)["amendments"]
    assert (amendment["key"], amendment["before"], amendment["after"]) == ("budget.max_wall_s", 3600.0, 4000.0)
    assert "max_wall_s: 4000.0" in (bench.folder / home / "runs" / "r" / "config.yaml").read_text()
    assert bench.resume(home).returncode == 0  # the changed limits are the run's own now
    refused(bench.resume(home, "--set", "budget.max_wall_s=5000"), "finished", "new run")


def test_a_lowered_limit_ends_the_loop_after_its_round(bench):
    assert bench.run("lowered", die={"at": "commit", "nth": 1, "when": "before"}).returncode == KILLED
    done = bench.resume("lowered", "--set", "budget.max_evaluations=1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["report"]
    assert report["rounds"] == 1 and "budget.max_evaluations=1 reached" in report["stop_reason"]


@pytest.mark.parametrize("name", ["../evil", "a b", "x" * 121, "shared", "eval"])
def test_a_name_that_no_run_may_have_is_refused_before_anything_is_written(bench, name):
    done = bench.cohelix("run", str(bench.config), f"--name={name}", home="names")
    refused(done, "use at most 120 letters" if name not in ("shared", "eval") else "cannot name a run so")
    assert not (bench.folder / "names").exists()


def test_a_finished_run_keeps_its_report_whatever_befell_its_files(bench, unbroken):
    """Its resume reads the store alone: the graph's checkpoints are not opened, and lost report files come back."""
    home = bench.folder / "over"
    shutil.copytree(bench.folder / "unbroken", home)
    folder = home / "runs" / "r"
    names = ("report.json", "report.md")  # both name their folder
    whole = [(folder / name).read_text().replace(str(bench.folder / "unbroken"), str(home)) for name in names]
    for file in folder.glob("graph.db*"):
        file.write_bytes(b"torn" * 2000)
    (folder / "report.json").write_text(whole[0][:50])
    (folder / "report.md").unlink()
    done = bench.resume("over")
    assert done.returncode == 0, done.stderr
    assert bench.outcome("over") == unbroken
    assert [(folder / name).read_text() for name in names] == whole
