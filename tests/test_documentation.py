"""README and docs say what is true: commands parse, settings match the code, files and links exist, examples run."""

import json
import re
import shlex
import tomllib
import typing
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from typer.main import get_command

import cohelix
from agents.diagnoser import Diagnoser
from agents.llm.config import RoleModelConfig, RolesConfig
from agents.proposer import Proposer
from agents.teacher import Teacher
from cohelix.cli import app
from evals.config import PluginConfig
from evals.request import EvaluationRequest
from evals.runner import evaluate
from evals.suites.metro_preset import PRESETS
from evals.suites.registry import build_suite
from graphs.config import RunConfig
from graphs.loading import load_config, load_suite_config, parse_config
from graphs.suite_view import suite_view, validate_suite
from harness.edit import apply_edits
from harness.records import Generation, Sampling, Split
from policy.config import RlConfig

ROOT = Path(__file__).parent.parent
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
COMMANDS = get_command(app)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(name, language):
    return [body for found, body in FENCE.findall(DOCUMENTS[name]) if found == language]


def command_lines(text):
    """Whole commands: lines of code blocks, fenced or indented."""
    code = "\n".join(body for _, body in FENCE.findall(text)) + "\n" + "\n".join(re.findall(r"^ {4,}.*$", text, re.M))
    lines = (line.strip().removeprefix(".venv/bin/") for line in code.splitlines())
    return [line for line in lines if line.startswith("cohelix ")]


def command_words(text):
    """Commands inside sentences."""
    return [" ".join(span.split()) for span in re.findall(r"`(cohelix [^`]+)`", FENCE.sub("", text))]


def leaves(group=COMMANDS, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def find_command(line):
    command, words = COMMANDS, shlex.split(line)[1:]
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"{line}: no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def parse(line):
    """Parse a whole command, and what its overrides say where its configuration is in the repository."""
    command, words = find_command(line)
    assert not hasattr(command, "commands"), f"{line}: a group, not a command"
    given = command.make_context(command.name, words).params
    if given.get("split"):
        assert given["split"] in typing.get_args(Split)
    if "suite" in given:
        root = [f"root={given['root']}"] if given["root"] else []
        load_suite_config(given["suite"], [*(given["set_"] or []), *root])
    elif given.get("config"):
        load_config(ROOT / given["config"], given["set_"] or [])


LINES = sorted({line for text in DOCUMENTS.values() for line in command_lines(text)})
WORDS = sorted({words for text in DOCUMENTS.values() for words in command_words(text)})


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_a_code_block_parses(line):
    parse(line)


@pytest.mark.parametrize("words", WORDS)
def test_a_command_named_in_a_sentence_exists_and_parses_where_it_has_arguments(words):
    if find_command(words)[1]:
        parse(words)


@pytest.mark.parametrize(
    "line",
    [
        "cohelix trial RUN",
        "cohelix trace",
        "cohelix trace RUN --step five",
        "cohelix trace RUN --verbose",
        "cohelix run configs/quickstart.yaml --set strategy.round=1",
        "cohelix run configs/nowhere.yaml",
        "cohelix eval configs/quickstart.yaml --split dev",
        "cohelix suite show metro --set size=2",
        "cohelix harness",
    ],
)
def test_a_wrong_command_would_be_found(line):
    with pytest.raises(Exception) as caught:  # noqa: B017 - the command parser's own kinds are private
        parse(line)
    kinds = ("AssertionError", "UserError", "NoSuchOption", "MissingParameter", "BadParameter")
    assert type(caught.value).__name__ in kinds


def test_the_command_page_has_an_example_of_every_command_and_names_every_option():
    page = DOCUMENTS["docs/cli.md"]
    shown = {find_command(line)[0].name + "/" + " ".join(line.split()[1:2]) for line in command_lines(page)}
    for path, command in leaves():
        assert f"{command.name}/{path[0]}" in shown, path
        for option in (option for parameter in command.params for option in parameter.opts if option[:2] == "--"):
            assert f"{option}" in page, (path, option)


def test_every_named_file_of_the_repository_exists():
    named = re.compile(r"(?<![\w./-])(?:configs|benchmarks|examples|tests|docs)/[\w./-]+\.(?:py|yaml|md|txt)\b")
    folders = re.compile(r"`((?:harness|memory|evals|policy|agents|graphs|service|cohelix|configs|benchmarks|tests|docs"
                         r"|examples)/[\w./-]*)`")  # fmt: skip
    for name, text in DOCUMENTS.items():
        missing = [path for path in (*named.findall(text), *folders.findall(text)) if not (ROOT / path).exists()]
        assert not missing, (name, missing)


def test_every_shipped_configuration_is_listed():
    for path in (ROOT / "configs").glob("*.yaml"):
        assert f"configs/{path.name}" in DOCUMENTS["docs/configuration.md"]


def test_the_numbers_of_the_quickstart_are_those_of_its_configuration():
    config, text = load_config(ROOT / "configs" / "quickstart.yaml"), " ".join(DOCUMENTS["README.md"].split())
    strategy, tasks, replicates = config.strategy, config.budget.tasks, config.budget.replicates
    for words in (
        f"{strategy.rounds} rounds it trains {strategy.rollout_steps} rollout steps",
        f"measures it on {tasks.val} val tasks",
        f"attempt {tasks.test} test tasks, {replicates.test} times each",
    ):
        assert words in text


def test_the_sizes_of_the_metro_presets_are_those_of_the_code():
    for name, preset in PRESETS.items():
        sizes = "/".join(str(preset.counts[split]) for split in ("train", "val", "test"))
        assert re.search(f"`{name}`[^/]* {sizes}", DOCUMENTS["docs/configuration.md"]), (name, sizes)


def test_every_make_target_named_exists():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    for name, text in DOCUMENTS.items():
        assert set(re.findall(r"(?:^ {4}|`)make (\w+)", text, re.M)) <= targets, name


def slug(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_relative_links_resolve_with_their_anchors(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", DOCUMENTS[name]):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            assert anchor in [slug(heading) for heading in headings], target


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_yaml_example_is_a_valid_part_of_a_configuration(name):
    for body in blocks(name, "yaml"):
        parse_config({"suite": {"type": "metro"}, **yaml.safe_load(body)}, source=name)


def models(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from models(inner)


def settings(model, prefix=""):
    """Every key of a configuration with its default as the page writes it."""
    for name, field in model.model_fields.items():
        key, inner = prefix + name, list(models(field.annotation))
        if field.annotation is RoleModelConfig:
            key = "roles.<role>"
        if field.annotation is RlConfig and prefix == "strategy.stages.":
            yield key, "{}"  # the page refers to the keys of strategy.rl
            continue
        if not inner or type(None) in typing.get_args(field.annotation):
            default = field.get_default(call_default_factory=True)
            if field.is_required():
                yield key, "required"
            else:
                yield key, "{}" if isinstance(default, BaseModel) else json.dumps(default)
        for one in inner:
            yield from settings(one, f"{key}.")


def test_the_configuration_page_has_exactly_the_keys_and_defaults_of_the_code():
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| (.*) \|$", DOCUMENTS["docs/configuration.md"], re.M)
    assert {(key, default) for key, default, _ in rows} == set(settings(RunConfig))
    assert all(len(effect) > 5 for _, _, effect in rows)


def test_the_roles_that_the_configuration_page_names_are_all_roles():
    section = DOCUMENTS["docs/configuration.md"].partition("## `roles`")[2].partition("|")[0]
    assert set(RolesConfig.model_fields) <= set(re.findall(r"`(\w+)`", section))


def test_the_library_example_uses_public_names():
    (body,) = blocks("README.md", "python")
    compile(body, "README.md", "exec")
    assert set(re.findall(r"cohelix\.(\w+)\(", body)) <= set(cohelix.__all__)


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """The suite of docs/extending.md, installed the way the page says."""
    (body,), (registration,) = blocks("docs/extending.md", "python"), blocks("docs/extending.md", "toml")
    (tmp_path / "sums_suite.py").write_text(body)
    metadata = tmp_path / "sums_suite-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sums-suite\nVersion: 1\n")
    ((group, points),) = tomllib.loads(registration)["project"]["entry-points"].items()
    listed = "\n".join(f"{name} = {target}" for name, target in points.items())
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{listed}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return build_suite(PluginConfig(name="sums"))


def test_the_example_suite_can_be_listed_shown_and_validated(sums):
    found = validate_suite("sums", [])
    assert found["is_valid"] and found["solver_confirmed"] == 3 * 64
    # task 1 of val: 200 + 7 and 11 + 3
    view = suite_view("sums", [], split="val", index=1)
    assert view["prompt"][-1]["content"] == "What is 207 + 14?"
    assert view["task"]["gold"] == "221"


def test_the_example_suites_verifier_names_its_faults_and_its_plays_are_legal_edits(sums):
    task = sums.tasks(split="train")[0]  # 100 + 3
    assert sums.verify(task, "It is 103", finish_reason="stop").reward == 1.0
    wrong = sums.verify(task, "104", finish_reason="stop")
    assert (wrong.reward, wrong.diagnoses[0].fault) == (0.0, "wrong_sum")
    assert sums.verify(task, "10", finish_reason="length").diagnoses[0].fault == "truncation"
    seed = sums.seed_harness()
    changed = {apply_edits(seed, play.edits).harness_id for play in sums.playbook()}
    assert len(changed - {seed.harness_id}) == 3


class Guesser:
    """A policy that answers 7 to everything."""

    policy_id = "policy-seven"

    def generate(self, prompts, sampling, *, progress=None):
        return [Generation(text="It is 7", finish_reason="stop") for _ in prompts]


async def test_the_example_suite_carries_the_roles_of_a_round(sums):
    harness, tasks, traces = sums.seed_harness(), sums.tasks(split="train")[:8], []
    request = EvaluationRequest(
        suite=sums, harness=harness, tasks=tasks, split="train", sampling=Sampling(), purpose="explore"
    )
    assert evaluate(request, Guesser(), sink=traces.extend).mean == 0.0  # no sum is 7
    findings = await Diagnoser().diagnose(traces, tasks, harness=harness)
    assert [(error.fault, error.count) for error in findings.errors] == [("wrong_sum", 8)]
    teacher = Teacher(sums)
    proposal = await Proposer(sums, teacher).propose(harness, findings, history=[], seed=0)
    assert proposal.candidate.protocol.execution in [play.summary for play in sums.playbook()]
    shown = await teacher.demonstrate(harness, tasks, style="direct", wanted=2)
    assert [one.completion for one in shown.accepted] == ["103", "121"]  # 100 + 3 and 107 + 14
