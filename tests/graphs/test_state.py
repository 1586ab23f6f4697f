from graphs.seeds import derive_seed
from graphs.state import add_spent, latest, merge_pairs, merge_trials


def _pair(checkpoint: str, harness: str, score: float) -> dict:
    return {
        "pair_id": f"{checkpoint}/{harness}", "checkpoint_id": checkpoint, "harness_id": harness,
        "val_score": score, "phase": "alternate", "round": 0,
    }  # fmt: skip


def test_merging_pairs_keeps_the_first_score_and_place_of_a_repeated_pair():
    old = [_pair("c0", "h0", 0.5)]
    new = [_pair("c0", "h0", 0.9), _pair("c1", "h0", 0.6)]
    merged = merge_pairs(old, new)
    assert [(pair["checkpoint_id"], pair["val_score"]) for pair in merged] == [("c0", 0.5), ("c1", 0.6)]
    assert old == [_pair("c0", "h0", 0.5)]  # the old list is not changed in place


def test_spending_adds_up_and_a_missing_side_counts_nothing():
    one = {"tokens": 10, "cost_usd": 0.5, "evaluations": 3}
    two = {"tokens": 5, "cost_usd": 0.25, "evaluations": 0}
    assert add_spent(one, two) == {"tokens": 15, "cost_usd": 0.75, "evaluations": 3}
    assert add_spent(None, one) == one


def test_the_latest_write_wins_even_when_it_is_empty():
    assert latest("harness-1", "") == ""


def test_seeds_differ_by_root_and_by_every_name():
    seeds = {derive_seed(0, "rl", 1), derive_seed(0, "rl", 2), derive_seed(1, "rl", 1), derive_seed(0, "val", 1)}
    assert len(seeds) == 4
    assert derive_seed(7, "rl", 0) == derive_seed(7, "rl", 0)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_trial_merged_twice_is_kept_once():
    trial = {"round": 0, "proposal_key": "p", "decision_key": "d"}
    other = {"round": 1, "proposal_key": "q", "decision_key": "e"}
    assert merge_trials([trial], [trial, other]) == [trial, other]
