import subprocess
import sys
from pathlib import Path

import pytest

from graphs.loading import load_config
from harness.errors import UserError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
MINIMAL = "suite: {type: metro}\n"


@pytest.fixture
def minimal(tmp_path):
    file = tmp_path / "minimal.yaml"
    file.write_text(MINIMAL)
    return file


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_shipped_config_parses_and_its_resolved_form_parses_to_the_same(file, tmp_path):
    import yaml

    config = load_config(file)
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_config(again) == config


def test_shipped_configs_cover_the_quickstart_all_six_conditions_and_an_hf_policy():
    loaded = [load_config(file) for file in CONFIGS]
    assert "quickstart.yaml" in [file.name for file in CONFIGS]
    conditions = {config.strategy.condition for config in loaded}
    assert conditions == {"vace", "static", "harness-only", "rl-only", "sia", "whale", "train"}
    assert "hf" in {config.policy.type for config in loaded}


def test_overrides_are_yaml_values_applied_in_order(minimal):
    config = load_config(
        minimal, ["strategy.rounds=7", "strategy.rl.learning_rate=1e-3", "budget.max_wall_s=null", "strategy.rounds=8"]
    )
    assert config.strategy.rounds == 8
    assert config.strategy.rl.learning_rate == 0.001
    assert config.budget.max_wall_s is None


def test_switching_the_proposer_to_a_model_is_one_string(minimal):
    config = load_config(minimal, ["roles.proposer.model=openai/local"])
    assert config.roles.proposer.model == "openai/local"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("strategy.round=3", ["strategy.round: unknown key", "did you mean 'rounds'?", "rollout_steps"]),
        ("startegy.rounds=3", ["startegy: unknown key", "did you mean 'strategy'?"]),
        ("policy.lr=3", ["policy.lr: unknown key", "batch_size"]),
        ("strategy.rl.group_size=1", ["strategy.rl.group_size", "greater than or equal to 2", "got 1"]),
        ("suite={preset: pocket}", ["suite.type: missing"]),
        ("suite.type=metor", ["suite", "metro"]),
        ("seed.x=1", ["seed"]),
        ("strategy.condition=siaa", ["strategy.condition", "'sia'"]),
        ("nonsense", ["key=value"]),
    ],
)
def test_a_wrong_override_names_the_key_and_what_is_known_there(minimal, override, words):
    if override == "seed.x=1":
        minimal.write_text(MINIMAL + "seed: 3\n")
    with pytest.raises(UserError) as caught:
        load_config(minimal, [override])
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_the_hint_does_not_list_keys_of_another_union_member(minimal):
    with pytest.raises(UserError) as caught:
        load_config(minimal, ["policy.revisoin=x"])  # pocket has no revision; hf has
    assert "revision'" not in str(caught.value)


def test_a_repeated_key_is_refused_rather_than_won_by_the_last(tmp_path):
    file = tmp_path / "twice.yaml"
    file.write_text(MINIMAL + "seed: 1\nseed: 2\n")
    with pytest.raises(UserError, match=r"\['seed'\] is given twice"):
        load_config(file)


@pytest.mark.parametrize(("text", "word"), [("- 1\n", "list"), ("a: [", "not YAML"), ("", "NoneType")])
def test_a_file_without_a_mapping_is_refused_with_its_kind(tmp_path, text, word):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=word):
        load_config(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no file .*nowhere\.yaml"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_key_in_place_of_an_environment_name_is_refused_and_not_repeated(minimal):
    secret = "sk-abcdefghijklmnopqrstuvwx"
    with pytest.raises(UserError) as caught:
        load_config(minimal, ["roles.proposer.model=openai/m", f"roles.proposer.api_key_env={secret}"])
    assert "NAME of an environment variable" in str(caught.value)
    assert secret not in str(caught.value)


def test_a_pool_smaller_than_one_rollout_step_is_refused_with_both_numbers(minimal):
    with pytest.raises(UserError, match=r"budget.tasks.train=4 .*prompts_per_step=8"):
        load_config(minimal, ["budget.tasks.train=4"])


def test_loading_a_config_imports_no_heavy_package():
    code = (
        "import sys; from graphs.loading import load_config; load_config(sys.argv[1]);"
        "heavy = ('torch', 'transformers', 'litellm', 'langgraph', 'langchain_core');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(CONFIGS[0])], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ([], MINIMAL + "seed: " + "[" * 3000 + "]" * 3000),
        (["seed=" + "[" * 3000], MINIMAL),
        (["suite.seed." + "a." * 3000 + "b=1"], MINIMAL),
    ],
    ids=["file", "value", "key"],
)
def test_a_configuration_nested_too_deeply_is_the_users_mistake(tmp_path, overrides, text):
    file = tmp_path / "deep.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match="nested too deeply"):
        load_config(file, overrides)


def test_a_merge_key_takes_the_keys_of_another_mapping(tmp_path):
    file = tmp_path / "merge.yaml"
    file.write_text(
        "roles: {teacher: &one {model: openai/a, max_tokens: 5}, proposer: {<<: *one, max_tokens: 6}}\n" + MINIMAL
    )
    roles = load_config(file).roles
    assert (roles.proposer.model, roles.proposer.max_tokens) == ("openai/a", 6)


@pytest.mark.parametrize("key", ["strategy.rl.learning_rate", "budget.max_wall_s", "roles.teacher.timeout_s"])
def test_an_infinite_number_is_refused_since_no_json_holds_it(minimal, key):
    with pytest.raises(UserError, match=f"{key}: must be a finite number; got inf"):
        load_config(minimal, [f"{key}=.inf"])


def test_a_reward_that_no_completion_could_get_is_refused_at_parse(minimal):
    with pytest.raises(UserError, match="suite.reward: length_buffer_tokens=512 is larger than max_length_tokens=100"):
        load_config(minimal, ["suite.reward.max_length_tokens=100"])
    with pytest.raises(UserError, match="suite.reward.fuzzy_threshold"):
        load_config(minimal, ["suite.reward.fuzzy_threshold=2"])


def test_a_key_anywhere_in_a_configuration_is_refused_and_not_shown(minimal, monkeypatch):
    monkeypatch.setenv("TEAM_API_KEY", "zQ9vTmPl3x7R")
    for override in (
        "suite={type: plugin, name: x, options: {a: [1, {b: zQ9vTmPl3x7R}]}}",  # the value of a secret variable
        "suite={type: plugin, name: x, options: {token: sk-abcdefghijklmnop1234}}",  # the shape of a key
        "suite={type: plugin, name: x, options: {password: hunter2}}",  # a field that holds one
        "roles.proposer=zQ9vTmPl3x7R",
        "roles.proposer.price=zQ9vTmPl3x7R",
        "roles=zQ9vTmPl3x7R",
    ):
        with pytest.raises(UserError, match="not shown") as caught:
            load_config(minimal, [override])
        assert override.partition("=")[0].split(".")[0] in str(caught.value)
        assert not any(word in str(caught.value) for word in ("zQ9vTmPl3x7R", "sk-abc", "hunter2"))


@pytest.mark.parametrize("override", ["policy={type: hf, model: ''}", "suite={type: maptab, root: ''}"])
def test_an_empty_path_is_refused_since_it_would_mean_the_working_folder(minimal, override):
    with pytest.raises(UserError, match="at least 1 character"):
        load_config(minimal, [override])


def test_a_length_penalty_on_top_of_a_reward_that_has_one_is_refused(minimal):
    shaped = ["suite.reward.kind=shaped", "strategy.rl.overlong={buffer: 32}"]
    with pytest.raises(UserError, match="shaped has a penalty on long completions"):
        load_config(minimal, shaped)
    stages = "strategy={type: train, stages: [{type: rl, rollout_steps: 2, rl: {overlong: {buffer: 32}}}]}"
    with pytest.raises(UserError, match="shaped has a penalty on long completions"):
        load_config(minimal, [shaped[0], stages])
    load_config(minimal, [shaped[1]])
    load_config(minimal, [shaped[0]])


def test_a_tracker_without_its_package_is_refused_before_a_run_begins(minimal, monkeypatch, tmp_path):
    from graphs.runner import start

    monkeypatch.setattr("policy.telemetry.find_spec", lambda name: None)
    config = load_config(minimal, ["policy.telemetry.report_to=[mlflow]"])
    with pytest.raises(UserError, match="`pip install mlflow`"):
        start(config, home=tmp_path / "home")
    assert not (tmp_path / "home").exists()
