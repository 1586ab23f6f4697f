import subprocess
import sys

from cohelix.startup import NAMES, shadow_message, shadowed


def test_this_distribution_resolves_all_its_own_names():
    assert shadowed() == {}


def test_a_folder_that_hides_a_package_is_named_with_what_to_do(tmp_path):
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "__init__.py").write_text("")
    # PYTHONPATH comes before installed distributions, as a second distribution's package might
    done = subprocess.run(
        [sys.executable, "-c", "from cohelix.cli import main; import sys; sys.argv=['cohelix','--help']; main()"],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert f"import agents -> {(tmp_path / 'agents' / '__init__.py').resolve()}" in done.stderr
    assert "fresh virtual environment" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_message_lists_every_hidden_name():
    message = shadow_message(dict.fromkeys(NAMES, "/elsewhere/__init__.py"))
    assert all(f"import {name} ->" in message for name in NAMES)
