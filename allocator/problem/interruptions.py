"""What stops a run from time to time: evaluations, checkpoints, failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator.problem.system import Interruptions, WorkloadLaw

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.schema import Scenario


def interruptions(scenario: Scenario, workload: WorkloadLaw, ledger: Ledger) -> Interruptions:
    """Resolve what stops the run.

    An evaluation writes samples x mean response tokens, those of the workload where the scenario
    states no others. A failure undoes the work since the last checkpoint, so failures need one.

    Raises
    ------
    ScenarioError
        With `failures` and no `checkpoint`: each failure would undo the whole run.
    """
    evaluation, checkpoint, failures = scenario.evaluation, scenario.checkpoint, scenario.failures
    if failures is not None and checkpoint is None:
        raise scenario.error(
            "checkpoint", "{every_steps, seconds} beside failures: nothing else is left of a run"
        )
    evaluated = 0.0
    if evaluation is not None:
        response = workload.lengths.mean
        if evaluation.response_tokens is not None:
            path = "evaluation.response_tokens"
            response = ledger.quantity(path, evaluation.response_tokens, "token")
        evaluated = evaluation.samples * response
    written_s, restart_s, between = 0.0, 0.0, None
    if checkpoint is not None:
        written_s = ledger.quantity("checkpoint.seconds", checkpoint.seconds, "s")
    if failures is not None:
        between = ledger.quantity("failures.mtbf_gpu_hours", failures.mtbf_gpu_hours, "GPU h")
        restart_s = ledger.quantity("failures.restart_s", failures.restart_s, "s")
    return Interruptions(
        evaluation_every_steps=None if evaluation is None else float(evaluation.every_steps),
        evaluation_tokens=evaluated,
        checkpoint_every_steps=None if checkpoint is None else float(checkpoint.every_steps),
        checkpoint_s=written_s,
        checkpoint_blocks=checkpoint is not None and checkpoint.blocks,
        mtbf_gpu_hours=between,
        restart_s=restart_s,
    )
