"""SFT stages: what they learn, what they refuse, and that a kill changes no bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import block_script
import pytest
import sft_script
import torch
from scripted_engine import DictLedger
from tiny_policy import tiny_llama
from transformers import LlamaForCausalLM

from policy.checkpoint import load_checkpoint, read_manifest
from policy.config import SftConfig
from policy.errors import CheckpointError, NonFiniteTraining, OverlongRecord, TrainingError
from policy.load import load_policy
from policy.schedule import Schedule
from policy.sft.block import SftBlockTrainer, SftRequest, SftResult
from policy.sft.tokens import encode_record

SCRIPT = Path(sft_script.__file__)
ROOT = SCRIPT.parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def unbroken(home):
    """A whole stage of four updates without a break, by kind; trained once."""
    made = {}

    def result(kind: str) -> SftResult:
        if kind not in made:
            made[kind] = sft_script.train(home, kind, DictLedger())
        return made[kind]

    return result


def reference_losses(home: Path, config: SftConfig) -> list[float]:
    """The same stage as a loop of plain torch: one row per record, token mean over the update, AdamW."""
    from policy.sft.batch import RecordStream

    model, tokenizer = load_policy(block_script.base_folder(home))[:2]
    end = tokenizer.eos_token_id
    records = [encode_record(tokenizer, record, stop_token_ids=[end]) for record in sft_script.make_records()]
    stream = RecordStream(records, config, 42)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    # 14 positions in batches of 4 are 4 updates; 0.3 of them are 1.2, so 2 of warmup, then cosine over 2
    shares, losses = [0.5, 1.0, 1.0, 0.5], []
    for number, share in enumerate(shares):
        rows = stream.update(number)
        total = sum(len(row.completion) for row in rows)
        loss = torch.zeros(())
        for row in rows:
            ids = torch.tensor([row.prompt + row.completion])
            scores = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
            loss = loss - scores[len(row.prompt) - 1 :].sum() / total
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.param_groups[0]["lr"] = config.learning_rate * share
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_stage_is_the_plain_loop_that_its_settings_describe(home, unbroken):
    result = unbroken("full")
    assert [step.loss for step in result.steps] == pytest.approx(reference_losses(home, sft_script.CONFIG), rel=2e-4)
    assert [step.learning_rate for step in result.steps] == pytest.approx([0.005, 0.01, 0.01, 0.005])
    assert [step.records for step in result.steps] == [4, 4, 4, 2], "two epochs of seven records, nothing dropped"
    assert result.steps[-1].loss < 0.5 * result.steps[0].loss
    assert (result.progress.updates, result.progress.position) == (4, 14)


def test_metrics_count_tokens_and_padding(home, unbroken):
    first = unbroken("full").steps[0]
    tokenizer = load_policy(block_script.base_folder(home)).tokenizer
    assert 0 <= first.padding_share < 0.3 and first.tokens > first.loss_tokens > 0
    assert first.tokens_per_s == pytest.approx(first.tokens / first.update_s)
    per_epoch = sum(
        len(encode_record(tokenizer, record, stop_token_ids=[tokenizer.eos_token_id]).completion)
        for record in sft_script.make_records()
    )
    assert sum(step.loss_tokens for step in unbroken("full").steps) == 2 * per_epoch


def test_adapters_learn_and_the_checkpoint_says_what_made_it(unbroken):
    result = unbroken("lora")
    assert result.steps[-1].loss < result.steps[0].loss
    manifest = read_manifest(result.checkpoint)
    assert (manifest.format, manifest.stage, manifest.kind) == (2, "sft", "adapter")
    assert manifest.schedule == Schedule(kind="cosine", warmup_updates=2, total_updates=4)
    assert all("lora_" in name for name in load_checkpoint(result.checkpoint).weights)


def test_the_parts_of_a_batch_and_packing_give_the_same_stage(home, unbroken):
    whole = unbroken("full")
    for changes in ({"micro_batch_size": 0}, {"packing": True}, {"packing": True, "micro_batch_size": 4}):
        config = sft_script.CONFIG.model_copy(update=changes)
        other = sft_script.train(home, "full", DictLedger(), config)
        assert [step.loss for step in other.steps] == pytest.approx([step.loss for step in whole.steps], rel=1e-3)
        assert [step.loss_tokens for step in other.steps] == [step.loss_tokens for step in whole.steps]


@pytest.mark.parametrize(
    ("kind", "kill"),
    [
        ("full", "saved:4"),  # the final checkpoint is on disk, the stage is not recorded
        ("lora", "record:2"),  # update 1 is made and saved, its progress is not recorded
    ],
)
def test_a_killed_stage_run_again_gives_the_same_bits(tmp_path, unbroken, kind, kill):
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), kind, kill],
        capture_output=True, text=True, env=environment, check=False, timeout=300,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    made = []
    request = SftRequest(records=sft_script.make_records(), config=sft_script.CONFIG)
    trainer = SftBlockTrainer(block_script.policy_config(tmp_path, kind), tmp_path)
    result = trainer.train(request, block_script.open_ledger(tmp_path), made.append)
    whole = unbroken(kind)
    assert result.policy_id == whole.policy_id
    assert result.checkpoint_id == whole.checkpoint_id, "optimizer, generators and counters are equal too"
    assert [step.loss for step in result.steps] == [step.loss for step in whole.steps]
    assert 0 < len(made) < 4, "it went on from a checkpoint inside the stage"
    assert list((tmp_path / "blocks").iterdir()) == []


def test_two_processes_give_the_stage_of_one(tmp_path, unbroken):
    block_script.base_folder(tmp_path)
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, str(SCRIPT), str(tmp_path), "full", "memory"],
        capture_output=True, text=True, env=environment, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    pair, one = SftResult.model_validate_json(line), unbroken("full")
    for name in ("loss", "grad_norm", "padding_share"):
        found, expected = ([getattr(step, name) for step in result.steps] for result in (pair, one))
        assert found == pytest.approx(expected, rel=1e-4), name
    assert [step.tokens for step in pair.steps] == [step.tokens for step in one.steps], "counted over both"
    assert (pair.progress, pair.base_id) == (one.progress, one.base_id)


def test_a_finished_stage_is_not_run_again_and_its_request_survives_json(home, unbroken, monkeypatch):
    ledger = DictLedger()
    first = sft_script.train(home, "full", ledger)
    monkeypatch.setattr("policy.sft.block.open_state", lambda *a, **k: pytest.fail("trained again"))
    request = SftRequest(records=sft_script.make_records(), config=sft_script.CONFIG)
    again = SftBlockTrainer(block_script.policy_config(home, "full"), home).train(
        SftRequest.model_validate(json.loads(request.model_dump_json())), ledger
    )
    assert again == first and first.checkpoint_id == unbroken("full").checkpoint_id


def test_overlong_records_stop_the_stage_before_any_training(home, monkeypatch):
    monkeypatch.setattr("policy.sft.trl_trainer.HarnessSftTrainer", lambda *a, **k: pytest.fail("training began"))
    config = sft_script.CONFIG.model_copy(update={"max_tokens": 30})
    with pytest.raises(OverlongRecord, match=r"records are longer than 30 tokens \(sft.max_tokens\): r\d has \d+"):
        sft_script.train(home, "full", DictLedger(), config)
    tall = sft_script.make_records()[0].model_copy(update={"completion": "K01 " * 600})
    wide = sft_script.CONFIG.model_copy(update={"max_tokens": 10_000})
    with pytest.raises(OverlongRecord, match="1 of 1 records are longer than 512 tokens .the policy's context"):
        sft_script.train(home, "full", DictLedger(), wide, (tall,))


def test_requests_without_records_or_with_two_of_one_name_are_refused(home):
    records = sft_script.make_records()
    with pytest.raises(TrainingError, match=r"records \['r3'\] are given more than once"):
        sft_script.train(home, "full", DictLedger(), sft_script.CONFIG, (*records, records[3]))
    trainer = SftBlockTrainer(block_script.policy_config(home, "full"), home)
    with pytest.raises(TrainingError, match="at least one record; got none"):
        trainer.train(SftRequest(records=()), DictLedger())


def test_a_loss_that_is_not_finite_is_typed_and_nothing_is_saved(tmp_path):
    model = tiny_llama(load_policy(block_script.base_folder(tmp_path)).tokenizer)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    assert isinstance(model, LlamaForCausalLM)
    model.save_pretrained(tmp_path / "base")
    with pytest.raises(NonFiniteTraining, match="loss of SFT update 0 is nan"):
        sft_script.train(tmp_path, "full", DictLedger())
    assert not (tmp_path / "checkpoints").exists()


def test_a_stage_may_start_from_a_checkpoints_weights_with_a_fresh_optimizer(home, unbroken):
    first = unbroken("full")
    second = sft_script.train(home, "full", DictLedger(), parent=first.checkpoint)
    assert second.steps[0].loss < first.steps[0].loss
    assert second.steps[0].learning_rate == first.steps[0].learning_rate, "the schedule is the stage's own"
    assert (second.progress.updates, second.base_id) == (4, first.base_id)


def test_reinforcement_learning_does_not_go_on_from_an_unmerged_stage(home, unbroken):
    with pytest.raises(CheckpointError, match="is of stage 'sft', training is 'rl'.*merge it first"):
        block_script.train(home, "lora", 0, 1, unbroken("lora").checkpoint, DictLedger())


def test_the_seed_of_the_run_is_used_where_the_stage_names_none(home, unbroken):
    own = sft_script.CONFIG.model_copy(update={"seed": None})
    results = [sft_script.train(home, "full", DictLedger(), own, seed=seed) for seed in (42, 1)]
    assert results[0].policy_id == unbroken("full").policy_id != results[1].policy_id
