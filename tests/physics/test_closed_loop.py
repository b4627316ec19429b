"""The closed loop by hand, as a set of limits, and against an event simulation of one engine."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.physics.closed_loop import EngineFlow, engine_flow, resident_sequences
from allocator.physics.decode import DecodeLaw
from allocator.physics.prefill import PrefillLaw, prefill_s
from allocator.physics.turns import (
    later_prefill_s,
    later_reads,
    mean_tool_context_tokens,
    mean_turn_context_tokens,
    sd_turn_context_tokens,
)
from tests.physics.engine_simulation import Setting, simulate

CONSTANT = DecodeLaw(0.01, 0.0, 0.0, 0.0, 0.0)  # X = b / 10 at 1,000 tokens
EXPERTS = DecodeLaw(7e-3, 0.01, 4e-5, 1e-8, 1 - 8 / 128)
PREFILL = PrefillLaw(0.02, 4e-5, 4e-10)


def constant_step(
    in_flight: float,
    limit: float,
    environment: float,
    held: float = 0.0,
    ratio: float = 1.0,
    rate_limit: float = np.inf,
) -> EngineFlow:
    return engine_flow(
        CONSTANT,
        in_flight,
        limit,
        response_tokens=1_000.0,
        context_tokens=0.0,
        prefill_s=0.0,
        environment_s=environment,
        held_s=held,
        held_ratio=ratio,
        rate_limit_per_s=rate_limit,
    )


def test_kv_held_in_tools_takes_room_from_decoding() -> None:
    """A rollout decodes for 10 s and holds its KV in tools for 15 s: two fifths decode."""
    flow = constant_step(200.0, 50.0, environment=20.0, held=15.0)
    assert flow.decoding == pytest.approx(20.0)
    assert flow.samples_per_s == pytest.approx(2.0)
    assert resident_sequences(flow.decoding, flow.samples_per_s, 15.0) == pytest.approx(50.0)
    assert flow.fixed_s == pytest.approx(200.0 / 2.0 - 10.0)  # the rest waits for KV
    assert flow.kv_bound
    assert not flow.station_bound
    lighter = constant_step(200.0, 50.0, environment=20.0, held=15.0, ratio=0.5)
    assert lighter.decoding == pytest.approx(50.0 / 1.75)


def test_held_kv_that_fits_changes_nothing() -> None:
    free = constant_step(60.0, 1e9, environment=20.0)
    held = constant_step(60.0, 50.1, environment=20.0, held=15.0)
    assert free.decoding == held.decoding == pytest.approx(20.0)
    assert not held.kv_bound


def test_a_slow_station_sets_the_rate() -> None:
    flow = constant_step(60.0, 1e9, environment=20.0, rate_limit=0.5)
    assert flow.samples_per_s == pytest.approx(0.5)
    assert flow.decoding == pytest.approx(5.0)
    assert flow.fixed_s == pytest.approx(60.0 / 0.5 - 10.0)
    assert flow.station_bound
    assert not flow.kv_bound
    assert not constant_step(60.0, 1e9, environment=20.0, rate_limit=2.1).station_bound


def test_each_row_has_its_own_limit() -> None:
    flow = engine_flow(
        CONSTANT,
        np.array([60.0, 200.0, 60.0, 30.0]),
        np.array([1e9, 50.0, 1e9, 25.0]),
        response_tokens=1_000.0,
        context_tokens=0.0,
        prefill_s=0.0,
        environment_s=np.array([20.0, 20.0, 20.0, 0.0]),
        held_s=np.array([0.0, 15.0, 0.0, 0.0]),
        rate_limit_per_s=np.array([np.inf, np.inf, 0.5, np.inf]),
    )
    assert flow.decoding == pytest.approx([20.0, 20.0, 5.0, 25.0])
    assert flow.kv_bound.tolist() == [False, True, False, True]
    assert flow.station_bound.tolist() == [False, False, True, False]


@given(
    in_flight=st.floats(1, 500),
    limit=st.floats(1, 500),
    held=st.floats(0, 200),
    ratio=st.floats(0.2, 2),
    outside=st.floats(0, 100),
    prefill=st.floats(0, 1),
    rate_limit=st.floats(0.005, 20),
)
def test_the_most_that_all_limits_allow(
    in_flight: float,
    limit: float,
    held: float,
    ratio: float,
    outside: float,
    prefill: float,
    rate_limit: float,
) -> None:
    flow = engine_flow(
        EXPERTS,
        in_flight,
        limit,
        response_tokens=2_000.0,
        context_tokens=5_000.0,
        prefill_s=prefill,
        environment_s=held + outside,
        held_s=held,
        held_ratio=ratio,
        rate_limit_per_s=rate_limit,
    )
    rate, decoding = float(flow.samples_per_s), float(flow.decoding)
    used = {
        "cap": (decoding + rate * (held + outside + prefill)) / in_flight,
        "kv": float(resident_sequences(decoding, rate, held, ratio)) / limit,
        "station": rate / rate_limit,
    }
    assert max(used.values()) == pytest.approx(1.0, rel=1e-9)
    binding = "kv" if flow.kv_bound else "station" if flow.station_bound else "cap"
    assert used[binding] == pytest.approx(1.0, rel=1e-9)
    assert not (flow.kv_bound and flow.station_bound)
    # Little: what is in flight stays in flight for its whole residence.
    residence = flow.fixed_s + 2_000.0 * flow.token_s
    assert rate * residence == pytest.approx(in_flight, rel=1e-9)


def predicted(setting: Setting) -> tuple[EngineFlow, dict[str, float]]:
    """The laws for a simulated setting: the flow, and the contexts met."""
    mean, second, third = (float(np.mean(setting.responses() ** m)) for m in (1, 2, 3))
    turns, prompt, tool = setting.turns, setting.prompt_tokens, setting.tool_tokens
    context = float(mean_turn_context_tokens(turns, prompt, tool, mean, second))
    reads = later_reads(turns, prompt, tool, mean, second, kept_share=float(setting.held))
    prefill = float(prefill_s(setting.prefill, prompt, prompt))
    prefill += float(later_prefill_s(setting.prefill, reads))
    tools = (turns - 1) * setting.tool_s
    apart = setting.prefill_servers > 0
    flow = engine_flow(
        setting.decode,
        setting.in_flight,
        setting.places,
        response_tokens=mean,
        context_tokens=context,
        prefill_s=0.0 if apart else prefill,
        environment_s=tools + setting.last_s + (prefill if apart else 0.0),
        held_s=tools if setting.held else 0.0,
        held_ratio=setting.tool_weight,
        rate_limit_per_s=setting.prefill_servers / prefill if apart else np.inf,
    )
    contexts = {
        "decode": context,
        "spread": float(sd_turn_context_tokens(turns, tool, mean, second, third)),
        "tool": float(mean_tool_context_tokens(turns, prompt, tool, mean)),
    }
    return flow, contexts


BUSY = Setting(
    in_flight=160,
    decode=EXPERTS,
    prefill=PREFILL,
    prompt_tokens=2_000.0,
    response_mean=4_000.0,
    response_cv=0.7,
    turns=4,
    tool_tokens=800.0,
    tool_s=20.0,
    last_s=10.0,
    places=70,
)
SIMULATED = {
    "one turn": replace(BUSY, in_flight=64, turns=1, last_s=30.0, places=1e9),
    "room for all": replace(BUSY, in_flight=96, places=1e9),
    "KV held": BUSY,
    "KV held long": replace(BUSY, tool_s=60.0),
    "light in tools": replace(BUSY, tool_s=60.0, tool_weight=0.5),
    "heavy in tools": replace(BUSY, tool_s=60.0, tool_weight=1.5),
    "KV evicted": replace(BUSY, held=False, places=50),
    "prefill apart": replace(BUSY, in_flight=96, prefill_servers=2, places=1e9),
    "prefill apart, too slow": replace(
        BUSY, prefill_servers=1, prefill=PrefillLaw(0.4, 8e-5, 4e-10), places=1e9
    ),
}


@pytest.mark.parametrize("name", SIMULATED)
def test_one_engine_simulated(name: str) -> None:
    setting = SIMULATED[name]
    flow, contexts = predicted(setting)
    seen = simulate(setting, 5_000, seed=5)
    held = (setting.turns - 1) * setting.tool_s if setting.held else 0.0
    resident = resident_sequences(flow.decoding, flow.samples_per_s, held, setting.tool_weight)
    assert flow.samples_per_s == pytest.approx(seen.samples_per_s, rel=0.02)
    assert flow.decoding == pytest.approx(seen.decoding, rel=0.04)
    assert flow.token_s == pytest.approx(seen.token_s, rel=0.03)
    residence = flow.fixed_s + setting.response_mean * flow.token_s
    assert residence == pytest.approx(seen.residence_s, rel=0.02)
    if not setting.prefill_servers:  # a queue before prefill servers apart holds KV here as well
        assert resident == pytest.approx(seen.resident, rel=0.02)
    assert contexts["decode"] == pytest.approx(seen.decode_context_mean, rel=0.02)
    assert contexts["spread"] == pytest.approx(seen.decode_context_sd, rel=0.08)
    if setting.turns > 1:
        assert contexts["tool"] == pytest.approx(seen.tool_context_mean, rel=0.02)


def test_what_binds_in_the_simulated_settings() -> None:
    flows = {name: predicted(setting)[0] for name, setting in SIMULATED.items()}
    assert [name for name, flow in flows.items() if flow.kv_bound] == [
        "KV held",
        "KV held long",
        "light in tools",
        "heavy in tools",
        "KV evicted",
    ]
    assert [name for name, flow in flows.items() if flow.station_bound] == [
        "prefill apart, too slow"
    ]
