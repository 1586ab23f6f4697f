"""The six roles, the trainer and the stores as the nodes of a strategy see them: ids in, ids out.

Every method finds its work in the ledger or does and records it, and adds a call to the step record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from agents.records import Contender, Decision, Demonstrations, Findings, PastProposal, Proposal
from evals.suites.base import Suite
from graphs.config import RunConfig
from graphs.config_train import BlockPlan
from graphs.desk import Committed, Desk, Judged, Proposed
from graphs.lab import Block
from graphs.limits import reached_limit
from graphs.seeds import derive_seed
from graphs.state import PairScore, Spent, Trial
from graphs.work import Produced, as_inputs, by_role
from harness.edit import AddDemonstration, apply_edits
from harness.errors import UserError
from harness.model import Harness
from harness.records import Split, Task
from memory.records import PairRecord
from memory.store import Store

SPLITS: tuple[Split, ...] = ("val", "test")

T = TypeVar("T")


class Crew:
    """Everything a strategy may ask for."""

    def __init__(self, config: RunConfig, run_id: str, store: Store, suite: Suite, desk: Desk) -> None:
        self._config = config
        self._run_id = run_id
        self._store = store
        self._suite = suite
        self._roles = desk.roles
        self._lab = desk.lab
        self._scout = desk.scout
        self._work = desk.work
        self._loop = asyncio.Runner()

    def close(self) -> None:
        """End the trainer's processes and the event loop behind the roles' model calls."""
        self._lab.close()
        self._loop.close()

    # The first pair

    def base_checkpoint(self) -> str:
        """Checkpoint id of the weights that the run starts from."""
        return self._lab.base_checkpoint()

    def write_demonstrations(self, count: int) -> str:
        """The suite's seed harness with ``count`` verified demonstrations; returns its id."""
        seed_harness = self._suite.seed_harness()
        self._store.lineage.save_harness(seed_harness, note="seed harness of the suite", run_id=self._run_id)
        if not count:
            return seed_harness.harness_id
        tasks, style = self._scout.tasks(split="train"), self._config.strategy.demonstration_style
        done = self._work.once(
            "teacher",
            "demonstrate",
            as_inputs(
                harness_id=seed_harness.harness_id,
                suite=self._suite.fingerprint,
                pool=len(tasks),
                count=count,
                style=style,
                model=self._config.roles.teacher,
            ),
            lambda: by_role(self._demonstrate(seed_harness, tasks, style, count)),
        )
        edits = [AddDemonstration.model_validate({"demonstration": shown}) for shown in done.result["accepted"]]
        return self._save(apply_edits(seed_harness, edits), seed_harness, "demonstrations by the teacher, verified")

    def _demonstrate(self, harness: Harness, tasks: Sequence[Task], style: str, count: int) -> Demonstrations:
        try:
            return self.wait(self._roles.teacher.demonstrate(harness, tasks, style=style, wanted=count))
        except ValueError as error:
            raise UserError(
                "the teacher cannot write the first demonstrations",
                got=f"strategy.demonstration_style={style!r} ({error})",
                do="name a style of the suite",
            ) from error

    def deploy(
        self,
        checkpoint_id: str,
        harness_id: str,
        *,
        parent_id: str = "",
        round_number: int = 0,
        note: str = "first pair",
    ) -> Committed:
        """Measure a pair on val and store it."""
        score = self.score_val(checkpoint_id, harness_id)
        pair = PairRecord(
            run_id=self._run_id,
            checkpoint_id=checkpoint_id,
            harness_id=harness_id,
            parents=(parent_id,) if parent_id else (),
            round_number=round_number,
            val_score=score,
            note=note,
        )
        return Committed(self._store.lineage.save_pair(pair), harness_id, score)

    def score_val(self, checkpoint_id: str, harness_id: str) -> float:
        """Mean val accuracy of a pair."""
        return self._scout.measure(checkpoint_id, self._harness(harness_id), split="val").mean

    # Evidence

    def train(self, checkpoint_id: str, harness_id: str, plan: BlockPlan) -> Block:
        """One RL block; its rollouts are the evidence."""
        return self._lab.train(checkpoint_id, self._harness(harness_id), self._scout.tasks(split="train"), plan)

    def explore(self, checkpoint_id: str, harness_id: str, *, count: int, round_number: int) -> str:
        """Attempts of unchanged weights at train tasks drawn for this round; returns the evidence key."""
        return self._scout.explore(checkpoint_id, self._harness(harness_id), count=count, round_number=round_number)

    # Proposals

    def diagnose(self, evidence_key: str, harness_id: str) -> str:
        """Findings from the round's traces; returns their ledger key."""
        trace_ids: list[str] = self._work.result(evidence_key)
        done = self._work.once(
            "diagnoser",
            "diagnose",
            as_inputs(evidence_key=evidence_key, harness_id=harness_id, model=self._config.roles.diagnoser),
            lambda: by_role(
                self.wait(
                    self._roles.diagnoser.diagnose(
                        self._store.traces.by_ids(trace_ids),
                        self._suite.tasks(split="train"),
                        harness=self._harness(harness_id),
                    )
                )
            ),
        )
        return done.key

    def propose(self, harness_id: str, findings_key: str, trials: Sequence[Trial], *, round_number: int) -> Proposed:
        """One candidate from the findings; it is stored, whatever the gate will say."""
        harness, history = self._harness(harness_id), [self._past(trial) for trial in trials]
        seed = derive_seed(self._config.seed, "propose", round_number)
        done = self._work.once(
            "proposer",
            "propose",
            as_inputs(
                harness_id=harness_id,
                findings_key=findings_key,
                history=[past.model_dump(mode="json") for past in history],
                seed=seed,
                model=self._config.roles.proposer,
            ),
            lambda: by_role(
                self.wait(
                    self._roles.proposer.propose(
                        harness, Findings.model_validate(self._work.result(findings_key)), history=history, seed=seed
                    )
                )
            ),
        )
        proposal = Proposal.model_validate(done.result)
        if proposal.candidate is not None:
            self._save(proposal.candidate, harness, proposal.play_id or proposal.rationale)
        return Proposed(done.key, proposal.candidate_id)

    def _past(self, trial: Trial) -> PastProposal:
        proposal = Proposal.model_validate(self._work.result(trial["proposal_key"]))
        decision = Decision.model_validate(self._work.result(trial["decision_key"]))
        return PastProposal(
            round_number=trial["round"],
            incumbent_id=decision.incumbent_id,
            candidate_id=decision.candidate_id,
            play_id=proposal.play_id,
            summary=proposal.rationale,
            outcome=decision.outcome,
            incumbent_score=decision.incumbent_score,
            candidate_score=decision.candidate_score,
        )

    # Gate and commit

    def judge(self, checkpoint_id: str, harness_id: str, candidate_id: str) -> Judged:
        """Audit the candidate, measure both versions at these weights, decide; without a candidate only measure."""
        incumbent = self._harness(harness_id)
        candidate = self._harness(candidate_id) if candidate_id else None
        gate = self._roles.gate
        is_sound = candidate is not None and not gate.judge(incumbent, candidate).findings
        before = self._scout.measure(checkpoint_id, incumbent, split="val")
        after = self._scout.measure(checkpoint_id, candidate, split="val") if candidate and is_sound else None
        done = self._work.once(
            "gate",
            "judge",
            as_inputs(
                incumbent=before.evaluation_id,
                candidate_id=candidate_id,
                candidate=after.evaluation_id if after else None,
                rule=gate.config.rule,
                max_unscored_share=gate.config.max_unscored_share,
            ),
            lambda: by_role(gate.judge(incumbent, candidate, incumbent_evaluation=before, candidate_evaluation=after)),
        )
        return Judged(done.key, done.result["outcome"] if candidate_id else "none")

    def commit(self, checkpoint_id: str, parent_id: str, decision_key: str, *, round_number: int) -> Committed:
        """Store decision, candidate and the pair now in force in one transaction; the weights are kept."""
        decision = Decision.model_validate(self._work.result(decision_key))
        is_accepted = decision.outcome == "accept"
        harness_id = decision.candidate_id if is_accepted else decision.incumbent_id
        score = decision.candidate_score if is_accepted else decision.incumbent_score
        if score is None:
            score = self.score_val(checkpoint_id, harness_id)
        pair = PairRecord(
            run_id=self._run_id,
            checkpoint_id=checkpoint_id,
            harness_id=harness_id,
            parents=(parent_id,),
            round_number=round_number + 1,
            val_score=score,
            note=f"{decision.outcome} in round {round_number + 1}" if decision.candidate_id else "measured",
        )
        if decision.candidate_id:
            row = decision.to_record(run_id=self._run_id, round_number=round_number + 1, checkpoint_id=checkpoint_id)
            self._store.lineage.commit(row, self._harness(decision.candidate_id), pair)
        else:
            self._store.lineage.save_pair(pair)
        wrote = {"pair_id": pair.pair_id, "harness_id": harness_id, "val_score": score, "outcome": decision.outcome}
        said = f"pair {pair.pair_id}, val {score:.4f}"
        saw = {"decision_key": decision_key, "checkpoint_id": checkpoint_id, "parent": parent_id}
        self._work.note("store", "commit", "", Produced.model_validate(
            {"result": None, "saw": saw, "wrote": wrote, "said": said}))  # fmt: skip
        return Committed(pair.pair_id, harness_id, score)

    # The end

    def exhausted(self, spent: Spent | None) -> str:
        """Which limit of the budget is reached, or an empty text."""
        steps = self._store.steps.list(self._run_id)
        return reached_limit(self._config.budget, spent, wall_s=sum(step.seconds for step in steps))

    def select(self, pairs: Sequence[PairScore]) -> int:
        """Index of the best-val pair."""
        contenders = [
            Contender(
                pair_id=pair["pair_id"],
                checkpoint_id=pair["checkpoint_id"],
                harness_id=pair["harness_id"],
                val_score=pair["val_score"],
                round_number=pair["round"],
                note=pair["phase"],
            )
            for pair in pairs
        ]
        listed: list[Any] = [contender.model_dump(mode="json") for contender in contenders]
        done = self._work.once(
            "selector",
            "select",
            as_inputs(contenders=listed, model=self._config.roles.selector),
            lambda: by_role(self.wait(self._roles.selector.select(contenders))),
        )
        return int(done.result["index"])

    def report(self, first: PairScore, final: PairScore, *, facts: dict[str, Any]) -> str:
        """Test the selected pair and the first one; returns the ledger key of what was measured."""
        measured: list[Any] = [
            {
                "label": label,
                "evaluation_id": self._scout.measure(
                    pair["checkpoint_id"], self._harness(pair["harness_id"]), split=split
                ).evaluation_id,
            }
            for label, pair in (("base", first), ("final", final))
            for split in SPLITS
        ]
        result = {**facts, "measured": measured, "first_pair": dict(first), "final_pair": dict(final)}
        done = self._work.once(
            "store", "report", as_inputs(result=result), lambda: Produced(result=result, wrote={"measured": measured})
        )
        return done.key

    def result(self, key: str) -> Any:
        """What the ledger holds under a key of the state."""
        return self._work.result(key)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a role's work on the one event loop that all model calls of the run share."""
        return self._loop.run(work)

    # Inside

    def _harness(self, harness_id: str) -> Harness:
        return self._store.lineage.harness(harness_id)

    def _save(self, harness: Harness, parent: Harness, note: str) -> str:
        return self._store.lineage.save_harness(harness, (parent.harness_id,), note, run_id=self._run_id)
