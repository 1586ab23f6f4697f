"""Rules of the house that a reader of the code relies on, read from the source itself."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("harness", "memory", "evals", "policy", "agents", "graphs", "service", "cohelix")
SOURCES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TEST_FILES = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)]

HEAVY = {
    **dict.fromkeys(("torch", "trl", "vllm", "ray", "transformers", "peft"), "policy"),
    "litellm": "agents",
    "langgraph": "graphs",
}
"""Libraries and the one package that may import them."""
BOUNDARIES = {
    "agents/llm/call.py": "model call",
    "agents/llm/provider.py": "model call",
    "agents/teacher.py": "user code",
    "cohelix/cli.py": "the command's end: known failures become words, others keep their traceback",
    "evals/runner.py": "engine and user code",
    "evals/suites/guard.py": "user code",
    "evals/suites/registry.py": "user code",
    "graphs/runner.py": "store, on the way out of another failure",
    "policy/engines/api_engine.py": "model call",
    "policy/block.py": "user code",
    "policy/process.py": "trainer: the other processes hear of a failure",
    "policy/worker.py": "trainer: a failure becomes data for another process",
}
"""Files that may catch everything, and the boundary they stand at."""


def nodes(kind):
    for name, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield name, node


def imported(node):
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]


def test_there_is_source_to_read():
    assert len(SOURCES) > 100 and {name.split("/")[0] for name in SOURCES} == set(PACKAGES)


def test_split_is_a_required_keyword_so_that_a_mixed_up_split_is_a_type_error():
    # typer reads the commands' options from their signatures; a store's filter may leave the split open
    exempt = {("cohelix/cli.py", "eval_"), ("cohelix/cli_suite.py", "show"), ("memory/traces.py", "find")}
    for name, function in nodes(FUNCTIONS):
        if (name, function.name) in exempt:
            continue
        arguments = function.args
        assert "split" not in [one.arg for one in (*arguments.posonlyargs, *arguments.args)], (name, function.name)
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            assert one.arg != "split" or default is None, (name, function.name)


def test_heavy_libraries_are_imported_in_their_own_package_alone():
    for name, node in nodes((ast.Import, ast.ImportFrom)):
        for module in imported(node):
            home = HEAVY.get(module.split(".")[0])
            assert home is None or name.startswith(f"{home}/"), (name, module)


def test_nothing_is_pickled():
    for name, node in nodes((ast.Import, ast.ImportFrom)):
        assert not {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"} & set(imported(node)), name
    for name, call in nodes(ast.Call):
        assert ast.unparse(call.func) not in ("torch.save", "torch.load"), (name, call.lineno)


def test_every_zip_is_strict():
    for name, call in nodes(ast.Call):
        if ast.unparse(call.func) == "zip":
            assert any(keyword.arg == "strict" for keyword in call.keywords), (name, call.lineno)


def test_everything_is_caught_at_the_boundaries_alone():
    found = set()
    for name, handler in nodes(ast.ExceptHandler):
        if handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException"):
            found.add(name)
    assert found == set(BOUNDARIES)


def test_modules_and_functions_stay_short():
    for name, tree in SOURCES.items():
        lines = (ROOT / name).read_text(encoding="utf-8").count("\n")
        assert lines < 500, f"{name} has {lines} lines; split it"
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                length = node.end_lineno - node.lineno + 1
                assert length < 80, f"{name}: {node.name} has {length} lines; split it"


def test_no_module_is_a_drawer():
    for name in SOURCES:
        assert not {"utils", "util", "helpers", "common", "manager", "misc"} & set(Path(name).with_suffix("").parts), (
            name
        )


@pytest.mark.parametrize("name", [name for name in SOURCES if name.endswith("/config.py")])
def test_every_field_of_a_configuration_says_what_it_does(name):
    for record in (node for node in ast.walk(SOURCES[name]) if isinstance(node, ast.ClassDef)):
        for field, after in zip(record.body, [*record.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert said, f"{name}: {record.name}.{ast.unparse(field.target)}"


@pytest.mark.parametrize(
    "module", ["policy/advantage.py", "policy/loss.py", "evals/statistics.py"], ids=lambda name: Path(name).stem
)
def test_maths_is_pure(module):
    allowed = {"__future__", "collections", "itertools", "math", "typing", "numpy", "scipy", "torch", "harness"}
    for node in ast.walk(SOURCES[module]):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            assert {one.split(".")[0] for one in imported(node)} <= allowed, module
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            raise AssertionError(f"{module}, line {node.lineno}: maths keeps no state")


def test_published_maths_names_its_source():
    for name, function in [
        ("policy/advantage.py", "grpo"),
        ("policy/advantage.py", "hybrid_dgpo"),
        ("policy/advantage.py", "is_all_equal"),
        ("policy/loss.py", "clipped_surrogate"),
        ("policy/loss.py", "k3_divergence"),
        ("policy/loss.py", "token_sum"),
        ("evals/statistics.py", "paired_t"),
        ("evals/statistics.py", "holm"),
        ("evals/statistics.py", "macro_f1"),
        ("evals/evaluation.py", "pair_evaluations"),
        ("evals/reward.py", "route_reward"),
        ("evals/suites/route.py", "score_route"),
    ]:
        (found,) = [node for node in SOURCES[name].body if isinstance(node, FUNCTIONS) and node.name == function]
        assert "Source: METHODS §" in (ast.get_docstring(found) or ""), (name, function)


def test_only_known_markers_are_used():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    known = {marker.partition(":")[0] for marker in config["markers"]}
    assert known == {"gpu", "live", "slow"}
    built_in = {"parametrize", "skipif", "skip", "xfail", "usefixtures", "filterwarnings", "asyncio"}
    for path in TEST_FILES:
        used = set(re.findall(r"pytest\.mark\.(\w+)", path.read_text(encoding="utf-8")))
        assert used <= known | built_in, (path, used)
