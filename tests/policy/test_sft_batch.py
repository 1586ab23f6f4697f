"""How an update's records become rows; and that packed records stay apart."""

from __future__ import annotations

import pytest
import torch
from tiny_policy import tiny_llama
from transformers import MambaConfig, MambaForCausalLM

from policy.config import SftConfig
from policy.errors import TrainingError
from policy.sft.batch import IGNORED, RecordStream, cut_update, micro_batch, passes_per_update
from policy.sft.packing import check_packing
from policy.sft.tokens import SftTokens


def tokens(name: str, prompt: int, completion: int, start: int = 10) -> SftTokens:
    ids = tuple(range(start, start + prompt + completion))
    return SftTokens(name, ids[:prompt], ids[prompt:])


SHORT, LONG, MIDDLE = tokens("a", 1, 2, 10), tokens("b", 2, 4, 20), tokens("c", 2, 2, 30)


def lay_out(records, update_tokens, row_limit=None):
    return micro_batch(records, update_tokens=update_tokens, pad_token_id=0, row_limit=row_limit)


def test_rows_are_padded_on_the_right_and_prompts_have_no_label():
    made = lay_out([SHORT, MIDDLE], 4)
    assert made.input_ids.tolist() == [[10, 11, 12, 0], [30, 31, 32, 33]]
    assert made.labels.tolist() == [[IGNORED, 11, 12, IGNORED], [IGNORED, IGNORED, 32, 33]]
    assert made.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert (made.tokens, made.cells, made.update_tokens) == (7, 8, 4)


def test_packed_rows_restart_their_positions_at_every_record_and_at_the_padding():
    made = lay_out([SHORT, LONG, MIDDLE], 8, row_limit=8)
    # b (6 tokens) does not fit after a (3) in 8; c (4) does
    assert made.input_ids.tolist() == [[10, 11, 12, 30, 31, 32, 33], [20, 21, 22, 23, 24, 25, 0]]
    assert made.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 0]]
    assert made.labels.tolist()[0] == [IGNORED, 11, 12, IGNORED, IGNORED, 32, 33]
    assert made.attention_mask is None and "attention_mask" not in made.arguments


def test_a_pass_without_records_is_one_row_that_adds_nothing():
    made = lay_out([], 4)
    assert made.tokens == 0 and set(made.labels.flatten().tolist()) == {IGNORED}


def test_every_epoch_meets_every_record_once_in_an_order_of_its_own():
    records = [tokens(f"r{index}", 1, 1) for index in range(7)]
    stream = RecordStream(records, SftConfig(epochs=2, batch_size=4), seed=3)
    # 14 positions in batches of 4: 4, 4, 4 and the last of 2
    updates = [[record.record_id for record in stream.update(number)] for number in range(4)]
    assert [len(update) for update in updates] == [4, 4, 4, 2]
    flat = sum(updates, [])
    assert sorted(flat[:7]) == sorted(flat[7:]) == [f"r{index}" for index in range(7)]
    assert flat[:7] != flat[7:]
    again = RecordStream(records, SftConfig(epochs=2, batch_size=4), seed=3)
    assert [record.record_id for record in again.update(2)] == updates[2], "an update is known by its number alone"
    other = RecordStream(records, SftConfig(epochs=2, batch_size=4), seed=4)
    assert [record.record_id for record in other.update(0)] != updates[0]


@pytest.mark.parametrize(("micro", "processes", "passes"), [(0, 1, 1), (2, 1, 4), (3, 1, 3), (2, 2, 2), (0, 2, 1)])
def test_an_update_is_cut_into_equal_passes_over_all_processes(micro, processes, passes):
    config = SftConfig.model_construct(**{**SftConfig().model_dump(), "batch_size": 8, "micro_batch_size": micro})
    records = [tokens(f"r{length}", 1, length) for length in range(1, 9)]
    assert passes_per_update(config, processes=processes) == passes
    cuts = [cut_update(records, config, process=number, processes=processes) for number in range(processes)]
    assert all(len(cut) == passes for cut in cuts)
    dealt = [record.record_id for cut in cuts for part in cut for record in part]
    assert sorted(dealt) == sorted(record.record_id for record in records)
    assert max(len(part) for cut in cuts for part in cut) <= (micro or 8)
    short = cut_update(records[:1], config, process=processes - 1, processes=processes)
    assert len(short) == passes, "the last, short update keeps the number of passes; some are empty"


def losses(model, records, row_limit):
    batch = lay_out(records, 8, row_limit)
    logits = model(**{k: v for k, v in batch.arguments.items() if k != "labels"}, use_cache=False).logits
    labels = batch.labels[:, 1:].flatten()
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels, reduction="sum", ignore_index=IGNORED
    )
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return loss.item(), gradients


def test_packed_loss_and_gradient_equal_those_of_a_row_each(tokenizer):
    model = tiny_llama(tokenizer)
    apart, gradient = losses(model, [SHORT, LONG, MIDDLE], None)
    packed, packed_gradient = losses(model, [SHORT, LONG, MIDDLE], 50)
    assert packed == pytest.approx(apart, rel=1e-5)
    for name, expected in gradient.items():
        assert torch.allclose(packed_gradient[name], expected, rtol=1e-3, atol=1e-4), name


def test_a_model_that_keeps_records_apart_may_be_packed_and_one_that_does_not_is_refused(tokenizer):
    check_packing(tiny_llama(tokenizer).train(), [SHORT, LONG], row_limit=50, lay_out=lambda r, n: lay_out(r, n, 50))
    torch.manual_seed(0)
    mamba = MambaForCausalLM(
        MambaConfig(vocab_size=len(tokenizer), hidden_size=16, state_size=4, num_hidden_layers=1, initializer_range=0.5)
    )
    with pytest.raises(TrainingError, match="MambaForCausalLM.*does not keep packed records apart.*set sft.packing to"):
        check_packing(mamba, [SHORT, LONG], row_limit=50, lay_out=lambda r, n: lay_out(r, n, 50))
