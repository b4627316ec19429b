"""Rules about engines: measured rates far from what the same GPUs can do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from allocator.audit.finding import Finding, Planned, said
from allocator.physics.decode import decode_step_s
from allocator.physics.prefill import prefill_s
from allocator.problem.build import Problem, build_problem
from allocator.problem.system import EngineKinds
from allocator.scenario.errors import ScenarioError
from allocator.scenario.load import override
from allocator.scenario.profiles import load_catalogue

#: How many times slower than its profile an engine may be before a new split is no remedy: the
#: modelled rates of published engines lie within 0.86 and 1.32 of the measured ones, broken set-ups
#: were 10 times slower and more (verl #3114, slime #385, rLLM #292).
FAR_OFF = 5.0


def far_off_roofline(planned: Planned) -> Iterator[Finding]:
    """The user's own rates are several times slower than a profile or the data sheet says.

    Both laws are asked for one decode step of the sequences that the plan decodes, and for the
    prefill of one prompt.
    """
    if planned.scenario.engine.rates is None:
        return
    usual = _without_own_rates(planned)
    if usual is None:
        return
    group = planned.decoders
    own = planned.problem.system.engines
    prediction = planned.prediction
    decoding = max(1.0, prediction.decoding / group.engines)
    context = decoding * prediction.in_flight_context_tokens
    prompt = max(1.0, planned.problem.system.workload.prompt_tokens)
    for what, key, mine, theirs in (
        (
            f"a decode step of {said(decoding)} sequences",
            "decode",
            decode_step_s(own.decode, decoding, context),
            decode_step_s(usual.decode, decoding, context),
        ),
        (
            f"the prefill of {said(prompt)} tokens",
            "prefill",
            prefill_s(own.prefill, prompt, prompt),
            prefill_s(usual.prefill, prompt, prompt),
        ),
    ):
        alike = np.flatnonzero(_alike(usual, planned.problem, group.pool, str(group.layout)))
        if not alike.size:
            return
        best = int(alike[np.argmin(np.asarray(theirs)[alike])])
        measured_s, expected_s = float(np.min(mine)), float(np.asarray(theirs)[best])
        if measured_s <= FAR_OFF * expected_s:
            continue
        label = usual.labels[best]
        source = "the data sheet" if label.estimate else f"{label.backend} {label.backend_version}"
        yield Finding(
            "far_off_roofline",
            "error",
            f"{what} takes {said(1e3 * measured_s)} ms by engine.rates, "
            f"{said(measured_s / expected_s)} times the {said(1e3 * expected_s)} ms of {source} on "
            f"the same {group.gpu}, {group.layout}: an engine that is set up wrong, or another "
            "workload than stated, and no matter of the split",
            f"engine.rates.{key}",
            "fix the engine first and do not re-split: look for eager mode, one busy replica of "
            f"several, a cold cache; then measure again, down to at most "
            f"{said(1e3 * FAR_OFF * expected_s)} ms",
        )


def _without_own_rates(planned: Planned) -> EngineKinds | None:
    """Engine kinds of the same scenario from profiles, else from data sheets; None without both."""
    changes = {"engine.rates": None, "engine.estimate": "allow", "engine.backend": "auto"}
    if planned.scenario.engine.backend_version is not None:
        changes["engine.backend_version"] = None
    try:
        return build_problem(override(planned.scenario, changes), load_catalogue()).system.engines
    except ScenarioError:
        # No profile and too few data-sheet values: there is nothing to compare with.
        return None


def _alike(usual: EngineKinds, problem: Problem, pool: str, layout: str) -> list[bool]:
    """Which kinds are the plan's: the same pool and the same layout."""
    return [
        problem.system.pools[label.pool].name == pool and str(label.layout) == layout
        for label in usual.labels
    ]
