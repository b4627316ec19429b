"""From what the user says of a rollout to its laws: lengths, turns, cache, solve rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator.physics.length_cut import cut_at
from allocator.physics.length_tables import empirical_from_samples, from_quantiles
from allocator.physics.lengths import (
    Lengths,
    UnreachableLengthsError,
    capped_lognormal_from_mean_cv,
    capped_lognormal_from_p50_p99,
)
from allocator.physics.oversampling import lengths_before_cancelling, oversampling_cut
from allocator.physics.prefill import PrefixCache
from allocator.physics.signal import SolveRate
from allocator.physics.turns import sum_of_calls
from allocator.problem.system import WorkloadLaw
from allocator.problem.tools import tool_times
from allocator.scenario.references import read_lengths_file
from allocator.scenario.workload import LengthsByMean, LengthsByPercentiles, LengthsFromFile

if TYPE_CHECKING:
    from allocator.problem.ledger import Ledger
    from allocator.scenario.quantity import Quantity
    from allocator.scenario.schema import Scenario

LENGTHS = "workload.response_tokens"
#: Share of rollouts at the cap above which the observed lengths say little about the true ones.
TRUNCATION_WARNING = 0.2


def workload_law(scenario: Scenario, ledger: Ledger) -> WorkloadLaw:
    """Resolve the workload: lengths as observed after the cap, prompt, turns, cache, tools.

    `algorithm.length_cut_tokens` ends rollouts of the planned run earlier than those observed: the
    law of lengths is cut there, the observed moments are not.

    Raises
    ------
    ScenarioError
        When no distribution has the observed mean, spread and cap, the longest rollout does not
        fit the context limit of the engine, or a number given here has no effect.
    """
    work = scenario.workload
    prompt = ledger.quantity("workload.initial_prompt_tokens", work.initial_prompt_tokens, "token")
    observed = response_lengths(scenario, ledger)
    lengths = _planned(scenario, observed)
    share = 0.0
    prefix_cache: PrefixCache = "share"
    if isinstance(work.prefix_cache, str):
        prefix_cache = work.prefix_cache
    else:
        share = ledger.quantity("workload.prefix_cache", work.prefix_cache, "1")
    tool_tokens = 0.0
    if work.turns > 1:
        path = "workload.tool_tokens_per_turn"
        tool_tokens = ledger.quantity(path, work.tool_tokens_per_turn, "token")
    else:
        _check_one_turn(scenario)
    _check_context(scenario, prompt + (work.turns - 1) * tool_tokens, lengths)
    _warn_of_cuts(observed, lengths, ledger)
    tool_s, tool_call = tool_times(scenario, ledger)
    mean, second = _observed(scenario, observed)
    return WorkloadLaw(
        prompt_tokens=prompt,
        cached_prompt_share=share,
        prefix_cache=prefix_cache,
        lengths=lengths,
        observed_mean_tokens=mean,
        observed_second_moment_tokens2=second,
        solve_rate=_solve_rate(scenario, ledger),
        turns=work.turns,
        tool_tokens=tool_tokens,
        tool_s=tool_s,
        tool_call=tool_call,
        tool_calls=None if tool_call is None else sum_of_calls(tool_call, work.turns),
        # Without a prefix cache nothing is found again, whatever stays in memory.
        kv_held=scenario.engine.kv_during_tools == "hold" and prefix_cache != "none",
    )


def _check_one_turn(scenario: Scenario) -> None:
    """Refuse what only happens between two turns."""
    tokens = scenario.workload.tool_tokens_per_turn.value
    if tokens > 0.0:
        raise scenario.error(
            "workload.tool_tokens_per_turn",
            "0 with one turn, or workload.turns above 1: tools add context between turns",
            f"{tokens:g}",
        )
    if scenario.engine.kv_during_tools != "hold":
        raise scenario.error(
            "engine.kv_during_tools",
            "hold with one turn, or workload.turns above 1: nothing comes after the tool",
            scenario.engine.kv_during_tools,
        )


def _planned(scenario: Scenario, observed: Lengths) -> Lengths:
    """Lengths of the planned run: those observed, ended at the length cut."""
    cut = scenario.algorithm.length_cut_tokens
    if cut is None:
        return observed
    if float(observed.survival(cut)) == 0.0:
        cap = observed.cap
        longest = float(observed.quantile(1.0 - 1e-12)) if cap is None else cap
        raise scenario.error(
            "algorithm.length_cut_tokens",
            f"fewer than the {longest:,.0f} tokens of the longest rollout: it would cut none",
            f"{cut:,}",
        )
    return cut_at(observed, float(cut))


def _warn_of_cuts(observed: Lengths, planned: Lengths, ledger: Ledger) -> None:
    if observed.truncated_fraction > TRUNCATION_WARNING:
        ledger.warn(
            "truncated_lengths",
            f"{observed.truncated_fraction:.0%} of rollouts end at the cap of {observed.cap:,.0f} "
            "tokens if lengths are log-normal: raise the cap or expect learning from cut answers",
            LENGTHS,
        )
    if planned is not observed and planned.truncated_fraction > TRUNCATION_WARNING:
        ledger.warn(
            "truncated_lengths",
            f"{planned.truncated_fraction:.0%} of rollouts are stopped at {planned.cap:,.0f} tokens"
            " and trained as they stand: expect learning from cut answers",
            "algorithm.length_cut_tokens",
        )


def response_lengths(scenario: Scenario, ledger: Ledger) -> Lengths:
    """Resolve the distribution of response tokens from whichever form the user gave."""
    said = scenario.workload.response_tokens

    def use(key: str, quantity: Quantity, unit: str = "token") -> float:
        return ledger.quantity(f"{LENGTHS}.{key}", quantity, unit)

    if isinstance(said, LengthsFromFile):
        file = scenario.lengths_file
        assert file is not None
        return empirical_from_samples(read_lengths_file(file))
    cap = None if said.max is None else use("max", said.max)
    try:
        if isinstance(said, LengthsByMean):
            mean, cv = use("mean", said.mean), use("cv", said.cv, "1")
            if said.at_oversampling > 1.0:
                return lengths_before_cancelling(
                    mean,
                    cv,
                    cap,
                    oversampling=said.at_oversampling,
                    group_size=_least_group(scenario),
                    by=scenario.algorithm.oversampling_by,
                )
            return capped_lognormal_from_mean_cv(mean, cv, cap)
        if isinstance(said, LengthsByPercentiles):
            return capped_lognormal_from_p50_p99(use("p50", said.p50), use("p99", said.p99), cap)
        return from_quantiles(dict(said.quantiles), cap)
    except UnreachableLengthsError as error:
        raise scenario.error(
            LENGTHS, "observed lengths that a distribution with this cap can have", str(error)
        ) from error


def _least_group(scenario: Scenario) -> int:
    size = scenario.algorithm.group_size
    return size if isinstance(size, int) else size.min


def _observed(scenario: Scenario, lengths: Lengths) -> tuple[float, float]:
    """Mean and second moment of the responses that the observed run trained on."""
    said = scenario.workload.response_tokens
    if not isinstance(said, LengthsByMean) or said.at_oversampling == 1.0:
        return lengths.mean, lengths.second_moment
    by = scenario.algorithm.oversampling_by
    cut = oversampling_cut(lengths, said.at_oversampling, _least_group(scenario), by)
    return float(cut.kept_mean_tokens), float(cut.kept_second_moment_tokens2)


def _check_context(scenario: Scenario, fixed: float, lengths: Lengths) -> None:
    """Refuse rollouts whose prompt, tool outputs and longest response exceed the context limit."""
    limit = scenario.engine.max_context_tokens
    if limit is None:
        return
    tools = scenario.workload.turns > 1
    beside = "prompt, tool outputs" if tools else "prompt"
    if lengths.cap is None:
        raise scenario.error(
            f"{LENGTHS}.max",
            f"a cap, so that {beside} and response stay within engine.max_context_tokens {limit}",
            "no max",
        )
    if fixed + lengths.cap > limit:
        less = "prompt and tool outputs" if tools else "prompt"
        cut = scenario.algorithm.length_cut_tokens
        raise scenario.error(
            f"{LENGTHS}.max" if cut is None else "algorithm.length_cut_tokens",
            f"at most {limit - fixed:,.0f} tokens, engine.max_context_tokens {limit} less the "
            f"{less} of {fixed:,.0f}",
            f"{lengths.cap:,.0f}",
        )


def _check_group_size(scenario: Scenario) -> None:
    least = _least_group(scenario)
    if least < 2:
        raise scenario.error(
            "algorithm.group_size",
            "at least 2 rollouts beside workload.solve_rate: one alone has no advantage",
            least,
        )
    said = scenario.workload.solve_rate
    assert said is not None
    if said.always.value + said.never.value >= 1.0:
        raise scenario.error(
            "workload.solve_rate",
            "always + never below 1: else no group carries signal and no token is useful",
            f"always {said.always.value:g}, never {said.never.value:g}",
        )


def _solve_rate(scenario: Scenario, ledger: Ledger) -> SolveRate | None:
    said = scenario.workload.solve_rate
    if scenario.algorithm.estimator == "ppo":
        if said is not None:
            raise scenario.error(
                "workload.solve_rate",
                "nothing with estimator: ppo: a critic gives every sample an advantage, so solve "
                "rates change nothing",
                said,
            )
        if scenario.algorithm.dynamic_sampling != "off":
            raise scenario.error(
                "algorithm.dynamic_sampling",
                "off with estimator: ppo: a critic leaves no group without an advantage",
                scenario.algorithm.dynamic_sampling,
            )
        return None
    if said is None:
        ledger.warn(
            "no_solve_rate",
            "no workload.solve_rate given: every group is taken to carry signal, so useful tokens "
            "equal trained tokens",
            "workload.solve_rate",
        )
        return None
    path = "workload.solve_rate"
    _check_group_size(scenario)
    return SolveRate(
        always=ledger.quantity(f"{path}.always", said.always, "1"),
        never=ledger.quantity(f"{path}.never", said.never, "1"),
        alpha=ledger.quantity(f"{path}.rest.alpha", said.rest.alpha, "1"),
        beta=ledger.quantity(f"{path}.rest.beta", said.rest.beta, "1"),
    )
