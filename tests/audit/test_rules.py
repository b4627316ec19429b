from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest

import allocator
from allocator.audit import PLAN_RULES, SCENARIO_RULES, Finding, audit
from allocator.audit.knobs import KNOBS
from allocator.audit.outcome import KNOWN
from allocator.preflight import Preflight
from allocator.scenario.errors import ScenarioError
from tests.audit.twins import DEAD, REJECT, SLOW, TWINS, Twins, hosted, local, rates, sound


def named(found: Preflight, code: str) -> list[Finding]:
    return [finding for finding in found.findings if finding.code == code]


def only(found: Preflight, code: str) -> Finding:
    (finding,) = named(found, code)
    return finding


def prediction(found: Preflight) -> Any:
    assert found.plan.prediction is not None
    return found.plan.prediction


def test_nothing_is_wrong_with_the_sound_plan() -> None:
    found = sound()
    assert found.audited == "as configured"
    assert [(f.code, f.level) for f in found.findings] == [("no_solve_rate", "note")]


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: f"{twins.code}-{twins.case[0][:40]}")
def test_a_rule_fires_on_the_case_and_not_on_its_repaired_twin(twins: Twins) -> None:
    finding = only(sound(*twins.case), twins.code)
    assert finding.level == twins.level
    for words in twins.says:
        assert words in finding.text
    assert finding.remedy
    assert finding.where
    assert named(sound(*twins.case, *twins.repair), twins.code) == []


@pytest.mark.parametrize("path", DEAD)
def test_a_key_without_effect_is_said(path: str) -> None:
    finding = only(sound(*DEAD[path]), "dead_knob")
    assert finding.where == path
    assert finding.text.startswith(f"{path} has no effect: ")
    assert "leave it out, or " in finding.remedy


@pytest.mark.parametrize(
    "changes",
    [
        ("algorithm.oversampling_by=sample", "plan.oversampling=1.5"),
        ("algorithm.dynamic_sampling=refill", "workload.solve_rate={always: 0.2}"),
        hosted("retries=1", "failure_fraction=0.05"),
        hosted("retries=1", "timeout_s=3600"),
        hosted("credit_usd=100000", "usd_per_hour=0.01"),
        local("cpus=0.1", "host.cpus=64"),
        rates("{alpha_s: 0.012, beta_s: 0, gamma_s_per_token: 0}", "{p0_s: 0, p1_s_per_token: 1}"),
    ],
)
def test_a_key_with_an_effect_is_not(changes: tuple[str, ...]) -> None:
    assert named(sound(*changes), "dead_knob") == []


def test_every_rule_and_every_knob_has_a_case() -> None:
    codes = {rule.code for rule in SCENARIO_RULES} | {rule.code for rule in PLAN_RULES}
    # One rule looks at every resource of the host.
    assert codes - {"sandbox_host"} <= {twins.code for twins in TWINS}
    keys = {knob.path for knob in KNOBS}
    assert keys == set(DEAD)


def test_every_warning_of_a_plan_has_a_level_and_a_remedy() -> None:
    root = Path(next(iter(allocator.__path__)))
    codes = set()
    for path in root.rglob("*.py"):
        if path.parent.name in ("comparison", "simulation"):
            continue  # findings of a pair of plans or of a simulation, not of a plan
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if name in ("warn", "PlanWarning") and isinstance(first, ast.Constant):
                codes.add(first.value)
    assert "estimate_only" in codes
    assert codes <= set(KNOWN)


# --- numbers that a remedy names do repair ---------------------------------------------------


def test_the_in_flight_that_a_limit_needs_reaches_it() -> None:
    slow = ("plan.trainer_gpus=7", "plan.generator_gpus=1", "plan.in_flight=48")
    found = sound(*slow, "staleness.limit=4", "algorithm.prompts_per_step=16")
    now = prediction(found)
    assert now.load < 1
    finding = only(found, "staleness_limit_idle")
    needed = int(finding.remedy.rsplit("about ", 1)[1].split(" ")[0].replace(",", ""))
    # C M a / B is linear in C while the generator is the slower side; a full queue adds 1.
    more = sound(*slow, "staleness.limit=4", f"plan.in_flight={needed}",
                 "algorithm.prompts_per_step=16")  # fmt: skip
    reached = prediction(more).generation_s / prediction(more).step_s + 1
    assert reached == pytest.approx(4, rel=0.1)
    assert named(more, "staleness_limit_idle") == []


def test_the_batch_or_the_limit_that_is_named_lets_slow_rollouts_in() -> None:
    case = (*SLOW, *REJECT)
    finding = only(sound(*case), "never_accepted")
    limit = int(finding.remedy.rsplit(" ", 1)[1])
    batch = int(finding.remedy.split("about ")[1].split(" ")[0].replace(",", ""))
    assert limit > 1
    assert named(sound(*case, f"staleness.limit={limit}"), "never_accepted") == []
    wider = f"algorithm.prompts_per_step={-(-batch // 8)}"
    assert named(sound(*case, wider), "never_accepted") == []


def test_what_is_never_accepted_is_part_of_what_is_rejected() -> None:
    found = sound(*SLOW, *REJECT)
    share = float(only(found, "never_accepted").text.split("for ")[1].split("%")[0]) / 100
    assert 0.1 <= share <= prediction(found).staleness.rejected_fraction


def test_a_shorter_limit_shuts_out_more() -> None:
    shares = []
    for limit in (2, 1, 0):
        found = named(sound(*SLOW, *REJECT, f"staleness.limit={limit}"), "never_accepted")
        shares.append(float(found[0].text.split("for ")[1].split("%")[0]) if found else 0.0)
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_sandboxes_are_counted_over_all_engines() -> None:
    case = hosted("max_concurrent=200")
    per_engine = ("plan.in_flight=null", "plan.in_flight_per_engine=64")
    finding = only(sound(*case, *per_engine), "sandbox_quota")
    assert "plan.in_flight_per_engine: 50," in finding.remedy
    assert "plan.in_flight: 200," in only(sound(*case), "sandbox_quota").remedy


def test_sandboxes_at_work_are_call_rate_times_call_time() -> None:
    tools = ("workload.tool_s=20", *local("cpus=1", "host.cpus=64"))
    found = sound(*tools)
    calls = 20 * prediction(found).generated_samples_per_s
    remedy = only(found, "sandbox_cpus").remedy
    assert calls > 64
    assert "even given out call by call" in remedy
    assert f"so {math.ceil(calls / 0.8):,} sandboxes" in remedy
    roomy = only(sound(*tools, "sandbox.host.cpus=200"), "sandbox_cpus").remedy
    assert "given out call by call" in roomy
    assert "are enough" in roomy
    # Memory is held while a sandbox exists, at work or not.
    held = only(sound("workload.tool_s=20", *local("memory_gib=1", "host.memory_gib=64")),
                "sandbox_memory").remedy  # fmt: skip
    assert "call by call" not in held


def test_zero_in_flight_is_refused_with_the_path_and_what_would_be_legal() -> None:
    with pytest.raises(ScenarioError, match=r"plan\.in_flight: expected a whole number >= 1"):
        sound("plan.in_flight=0")


# --- order and repetition ---------------------------------------------------------------------


def test_findings_come_worst_first() -> None:
    found = sound("plan.in_flight=16", "algorithm.dynamic_sampling=refill", "staleness.limit=30")
    levels = [finding.level for finding in found.findings]
    assert levels == sorted(levels, key=("error", "warning", "note").index)
    assert set(levels) == {"error", "warning", "note"}


def test_a_rule_takes_the_place_of_the_warning_that_says_less() -> None:
    idle = (*REJECT, "staleness.limit=30")
    found = sound(*idle)
    assert "staleness_limit_idle" in {warning.code for warning in found.plan.warnings}
    assert "cannot bind" in only(found, "staleness_limit_idle").text


def test_a_broken_limit_that_a_rule_explains_is_said_once() -> None:
    found = sound("staleness.limit=0")
    assert [f.code for f in found.findings if f.where == "staleness.limit"] == ["zero_concurrency"]
    assert any(not limit.holds for limit in found.plan.limits)


def test_a_scenario_alone_is_audited_by_the_rules_that_need_no_plan() -> None:
    from allocator.scenario.load import loads

    scenario = loads(
        "{model: qwen3-8b, workload: {response_tokens: {mean: 4000, cv: 1}}, "
        "hardware: {billing: on_demand, pools: [{gpu: h200-sxm, gpus: 64}]}, budget: {hours: 24}}"
    )
    assert [finding.code for finding in audit(scenario, None)] == ["no_scale"]
