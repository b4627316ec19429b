"""Each section of a plan's report: split, rates, what binds, staleness, tokens, cost, compute."""

from __future__ import annotations

import math

from allocator.plan import Decisions, EngineGroup, Limit, Plan, Prediction
from allocator.report.facts import (
    drawn,
    generator_hour_usd,
    gpu_hour_usd,
    interval,
    pools_of,
    section_of,
    shared,
    staleness_limit,
    used_gpus,
)
from allocator.report.numbers import apart, given, money, percent, plural, shares_in, three
from allocator.report.palette import Role, Tone
from allocator.report.tree import (
    Bars,
    Block,
    Fact,
    Facts,
    Histogram,
    Part,
    Section,
    Sentence,
    Stack,
    Table,
)
from allocator.report.words import (
    FATES,
    MODE_WORDS,
    PEAKS,
    bottleneck_words,
    cause_words,
)

#: Below these shares a wait or a loss is not worth a sentence, and a histogram tail not a bin.
WORTH_SAYING = 0.005
TAIL = 0.002
MOST_BINS = 24


def split_section(plan: Plan, decisions: Decisions, name: str = "split") -> Section:
    """Return who gets which GPUs, drawn to scale, and how each side is laid out."""
    pools = pools_of(plan)
    single = len({*used_gpus(decisions), *(pool.name for pool in pools)}) <= 1
    trainer = decisions.trainer
    groups = decisions.generator.groups
    parts = []
    if shared(decisions):
        both = max(trainer.gpus, decisions.generator.gpus)
        parts.append(Part(_side("both in turn", trainer.gpu, single), both, f"{both:,}", "trainer"))
    else:
        parts.append(
            Part(
                _side("trainer", trainer.gpu, single), trainer.gpus, f"{trainer.gpus:,}", "trainer"
            )
        )
    for group in () if shared(decisions) else groups:
        gpus = group.engines * group.gpus_per_engine
        role: Role = "prefill" if group.role == "prefill" else "generator"
        label = "generator" if group.role == "aggregated" else group.role
        parts.append(Part(_side(label, group.gpu, single), gpus, f"{gpus:,}", role))
    reward = decisions.reward
    if reward is not None and reward.pool is not None and reward.gpu is not None:
        parts.append(
            Part(_side("reward", reward.gpu, single), reward.gpus, f"{reward.gpus:,}", "reward")
        )
    used = used_gpus(decisions)
    for pool in pools:
        idle = max(0, pool.gpus - used.get(pool.name, 0))
        word = "not rented" if _on_demand(plan) else "idle"
        if idle or single:
            parts.append(Part(_side(word, pool.gpu, single), idle, f"{idle:,}", "idle"))
    total = sum(pool.gpus for pool in pools) or sum(used.values())
    where = (
        f"{total:,} {trainer.gpu} (pool {trainer.pool})"
        if single
        else "pools " + ", ".join(f"{p.name} ({p.gpus:,} {p.gpu})" for p in pools)
    )
    rows = [Fact("trainer", f"{plural(trainer.ranks, 'rank')} of {trainer.parallelism}")]
    rows += [Fact(group.role if len(groups) > 1 else "engines", _engines(group))
             for group in groups]  # fmt: skip
    if decisions.mode != "async":
        rows.insert(0, Fact("mode", MODE_WORDS.get(decisions.mode, decisions.mode)))
    if reward is not None and reward.engines:
        each = plural(reward.gpus_per_engine, "GPU")
        rows.append(Fact("reward", f"{reward.type}: {reward.engines:,} x {each}"))
    rows.append(Fact("step", _batch(decisions)))
    return Section(name, (Stack(tuple(parts), where), Facts(tuple(rows), inline=False)))


def _on_demand(plan: Plan) -> bool:
    return section_of(plan, "hardware").get("billing") == "on_demand"


def _side(label: str, gpu: str, single: bool) -> str:
    return label if single else f"{label} {gpu}"


def _engines(group: EngineGroup) -> str:
    total = group.engines * group.in_flight_per_engine
    backend = f"{group.backend} {group.backend_version}".strip()
    return (
        f"{group.engines:,} x {plural(group.gpus_per_engine, 'GPU')}"
        + (f", {group.layout}" if group.gpus_per_engine > 1 else "")
        + (f", {backend}" if backend else "")
        + (f", {group.weights_dtype}" if group.weights_dtype != "bf16" else "")
        + (f"; {group.in_flight_per_engine:,} in flight each ({total:,})" if total else "")
    )


def _batch(decisions: Decisions) -> str:
    queue = decisions.queue_batches
    text = (
        f"{decisions.prompts_per_step:,} prompts x {decisions.group_size:,} = "
        f"{plural(decisions.batch, 'sample')}; oversampling {given(decisions.oversampling)}"
    )
    if decisions.mode == "async":
        text += f"; queue {queue:,} {'batch' if queue == 1 else 'batches'}"
    if decisions.epochs != 1:
        text += f"; {plural(decisions.epochs, 'epoch')}"
    share = decisions.trained_share
    return text if share == 1 else f"{text}; {percent(share)} of a group trained"


def rates_section(plan: Plan, decisions: Decisions, prediction: Prediction) -> Section:
    """Return the two rates on one scale, what is trained, who waits and what that costs."""

    def part(label: str, path: str, value: float, role: Role) -> Part:
        return Part(label, drawn(value), three(value) + interval(plan, path), role)

    bars = Bars(
        (
            part("trainer could take", "trainer_samples_per_s", prediction.trainer_samples_per_s,
                 "trainer"),
            part("generator could give", "accepted_samples_per_s",
                 prediction.accepted_samples_per_s, "generator"),
            part("trained", "trained_samples_per_s", prediction.trained_samples_per_s, "trained"),
        ),
        "samples/s",
    )  # fmt: skip
    return Section("rates", (bars, *_waits(plan, decisions, prediction)))


def _waits(plan: Plan, decisions: Decisions, prediction: Prediction) -> list[Sentence]:
    trainer, generator = decisions.trainer, decisions.generator
    if shared(decisions):
        return [Sentence(_turns(prediction))]
    trainer_usd = gpu_hour_usd(plan, trainer.pool, trainer.gpu)
    generator_usd = generator_hour_usd(plan)
    lines: list[Sentence] = []
    wait = prediction.trainer_wait_fraction
    if wait >= WORTH_SAYING:
        usd = None if trainer_usd is None else wait * trainer.gpus * trainer_usd
        text = f"The trainer waits {percent(wait)} of the time"
        lines.append(Sentence(text + _idle_worth(prediction, trainer.gpus, usd), "warn"))
    wait = prediction.generator_wait_fraction
    if wait >= WORTH_SAYING:
        usd = None if generator_usd is None else wait * generator_usd
        text = f"The generator waits {percent(wait)} of the time"
        lines.append(Sentence(text + _idle_worth(prediction, generator.gpus, usd), "warn"))
    lost = prediction.token_fate.dropped_overflow
    if lost >= WORTH_SAYING:
        usd = None if generator_usd is None else lost * generator_usd
        worth = "" if usd is None else f": {money(usd)} of {money(prediction.usd_per_hour)}/h"
        text = f"{percent(lost)} of generated tokens overflow the queue"
        lines.append(Sentence(f"{text}{worth}.", "warn"))
    return lines or [Sentence("Neither side waits for the other.", "good")]


def _turns(prediction: Prediction) -> str:
    """Return how GPUs that train and generate in turn divide a step."""
    step_s, scoring_s = prediction.step_s, prediction.environment.reward_wait_s
    parts = (
        ("generate", prediction.generation_s - scoring_s),
        ("wait for scores", scoring_s),
        ("train", prediction.train_s),
        ("sync and switch", step_s - prediction.generation_s - prediction.train_s),
    )
    said = [f"{name} {percent(s / step_s)}" for name, s in parts if s / step_s >= WORTH_SAYING]
    return f"Of a step of {three(step_s)} s the GPUs {', '.join(said)}."


def _idle_worth(prediction: Prediction, gpus: int, usd: float | None) -> str:
    worth = "" if usd is None else f", {money(usd)} of {money(prediction.usd_per_hour)}/h"
    return f": {plural(gpus, 'GPU')} idle{worth}."


def binds_section(plan: Plan, prediction: Prediction) -> Section:
    """Return the bottleneck and its cause in words, and the limits that bind."""
    text = f"{bottleneck_words(prediction.bottleneck)} {cause_words(prediction.cause)}".strip()
    binding = tuple(limit for limit in plan.limits if limit.binding and limit.holds)
    blocks: list[Block] = [Sentence(text)]
    if binding:
        blocks.append(limits_table(binding))
    elif not any(not limit.holds for limit in plan.limits):
        blocks.append(Sentence("No limit binds.", "muted"))
    return Section("binds", tuple(blocks))


def limits_table(limits: tuple[Limit, ...]) -> Table:
    """Return limits as rows: verdict, name, value against limit, what one more is worth."""
    rows, tones = [], []
    for limit in limits:
        word: str
        tone: Tone
        word, tone = ("holds", "plain") if limit.holds else ("BROKEN", "bad")
        if limit.holds and limit.binding:
            word, tone = "binds", "warn"
        rows.append((word, limit.name, _against(limit), limit.unit, _worth(limit)))
        tones.append(tone)
    header = ("verdict", "limit", "value", "unit", "what more is worth")
    return Table(header, tuple(rows), (2,), tuple(tones), compact=True)


def _against(limit: Limit) -> str:
    at_most = (limit.value <= limit.limit) == limit.holds
    value, bound = apart(limit.value, limit.limit)
    if limit.holds and at_most:
        return f"{value} of {bound}"
    return f"{value}, {'at most' if at_most else 'at least'} {bound}"


def _worth(limit: Limit) -> str:
    for start, worth, unit in (
        ("one more", limit.value_of_one_more, ""),
        ("1% more", limit.elasticity, "%"),
    ):
        if worth is not None and math.isfinite(worth):
            sign = "+" if worth > 0 else ""
            return f"{start}: objective {sign}{three(worth)}{unit}"
    return ""


def staleness_section(plan: Plan, prediction: Prediction) -> Section:
    """Return staleness against its limit, and its distribution."""
    stale = prediction.staleness
    found = staleness_limit(plan)
    facts = [
        Fact("mean", three(stale.mean) + interval(plan, "staleness.mean")),
        Fact("p50", str(stale.p50)),
        Fact("p95", str(stale.p95) + interval(plan, "staleness.p95", given)),
    ]
    if found:
        metric, limit, enforce = found
        value = {"mean": stale.mean, "p95": stale.p95, "p99": stale.p99, "max": stale.max}.get(
            metric
        )
        unbounded = metric == "max" and value is None
        over = value is not None and value > limit
        verdict = "; not bounded" if unbounded else "; BROKEN" if over else ""
        facts.append(
            Fact(
                "limit",
                f"{metric} <= {given(limit)}",
                note=enforce + verdict,
                tone="bad" if verdict else "plain",
            )
        )
    else:
        facts.append(Fact("limit", "none stated"))
    if stale.rejected_fraction >= WORTH_SAYING:
        facts.append(Fact("rejected", percent(stale.rejected_fraction), "of samples", tone="warn"))
    blocks: list[Block] = [Facts(tuple(facts))]
    # A table that does not reach its own median is none.
    if len(stale.cdf) > stale.p50:
        blocks.append(_histogram(stale.cdf, stale.mean, found))
    return Section("staleness", tuple(blocks))


def _histogram(
    cdf: tuple[float, ...], mean: float, found: tuple[str, float, str] | None
) -> Histogram:
    shares = [max(0.0, b - a) for a, b in zip((0.0, *cdf), cdf, strict=False)]
    first = next((i for i, below in enumerate(cdf) if below > TAIL), 0)
    last = next((i for i, below in enumerate(cdf) if below >= 1 - TAIL), len(cdf) - 1)
    last = min(max(last, first), first + MOST_BINS - 1)
    shown = shares[first : last + 1]
    rest = 1 - sum(shares[: last + 1])
    open_ended = rest > TAIL
    if open_ended:
        shown[-1] += rest
    limit = found[1] if found else None
    text = "" if found is None else f"limit {given(found[1])} on the {found[0]}"
    return Histogram(
        tuple(shown), first, open_ended, "versions", mean, f"mean {three(mean)}", limit, text
    )


def tokens_section(prediction: Prediction) -> Section:
    """Return the fate of generated tokens: a bar and percentages that sum to 100."""
    fate = prediction.token_fate
    amounts = [drawn(getattr(fate, role)) for role, _ in FATES]
    tenths = shares_in(1000, amounts)
    parts = tuple(
        Part(label, amount, f"{tenth / 10:.1f}%", role)
        for (role, label), amount, tenth in zip(FATES, amounts, tenths, strict=True)
        if amount > 0
    )
    return Section("tokens", (Stack(parts, "of generated"),))


def cost_section(plan: Plan, prediction: Prediction) -> Section:
    """Return dollars per useful and per trained token, per hour, and for the run."""
    run = prediction.run

    def priced(label: str, path: str, usd: float) -> Fact:
        return Fact(label, money(usd) + interval(plan, path))

    facts = (
        priced("useful Mtok", "usd_per_useful_mtok", prediction.usd_per_useful_mtok),
        priced("trained Mtok", "usd_per_mtok", prediction.usd_per_mtok),
        priced("run", "run.usd", run.usd),
        Fact("hours", three(run.hours) + interval(plan, "run.hours")),
        Fact("steps", _steps(run.steps), note=f"ended by {run.ended_by}"),
        Fact("per hour", money(prediction.usd_per_hour)),
    )
    return Section("cost", (Facts(facts),))


def _hundredths(fraction: float) -> str:
    return three(100 * fraction)


def _steps(steps: float) -> str:
    """Return a number of steps; whole ones in full, since they are counted and not predicted."""
    return given(round(steps)) if math.isclose(steps, round(steps), rel_tol=1e-9) else three(steps)


def compute_section(plan: Plan, prediction: Prediction) -> Section:
    """Return where the FLOPs go, against the published peak, and how busy the trainer is."""
    fraction = prediction.update_fraction
    without = prediction.update_fraction_without_log_probs
    reward = str(section_of(plan, "reward").get("type", "sparse"))
    facts = [
        Fact("update fraction", three(fraction) + interval(plan, "update_fraction")),
    ]
    peak = next((peak for peak in PEAKS if reward in peak.reward_types), None)
    if peak:
        facts.append(Fact("published peak", given(peak.update_fraction), note=peak.name))
    if without != fraction:
        facts.append(Fact("without log-probs", three(without)))
    facts += [
        Fact("MFU busy", percent(prediction.mfu_busy)),
        Fact("MFU wall", percent(prediction.mfu_wall) + interval(plan, "mfu_wall", _hundredths)),
    ]
    blocks: list[Block] = [Facts(tuple(facts))]
    if peak:
        blocks.append(Sentence(f"Peak: {peak.source}.", "muted"))
    return Section("compute", tuple(blocks))


def environment_section(plan: Plan, prediction: Prediction) -> Section | None:
    """Return tools, sandboxes, rewards and interruptions, where a plan has any."""
    around, running = prediction.environment, prediction.availability
    facts = []
    if around.tool_s > 0:
        facts.append(Fact("tools", three(around.tool_s), "s a rollout"))
    if around.sandboxes > 0:
        facts.append(
            Fact(
                "sandboxes", three(around.sandboxes), f"start in {three(around.sandbox_start_s)} s"
            )
        )
    if around.failed_rollouts_fraction >= WORTH_SAYING:
        lost = percent(around.failed_rollouts_fraction)
        facts.append(Fact("lost attempts", lost, "started again", tone="warn"))
    if around.reward_s > 0 or around.rewards_per_s is not None:
        facts.append(Fact("reward", three(around.reward_s), "s a rollout"))
    if around.rewards_per_s is not None:
        most = three(around.rewards_per_s) + interval(plan, "environment.rewards_per_s")
        facts.append(Fact("rewards", most, "a second at most"))
    if around.prefills_per_s is not None:
        facts.append(Fact("prefill engines", three(around.prefills_per_s), "rollouts/s at most"))
        facts.append(Fact("KV transfer", three(around.kv_transfer_s), "s a rollout"))
    if around.reward_usd_per_hour > 0:
        facts.append(Fact("reward API", money(around.reward_usd_per_hour), "an hour"))
    if around.sandbox_usd_per_hour > 0:
        facts.append(Fact("sandbox price", money(around.sandbox_usd_per_hour), "an hour"))
    if running.productive < 1.0 - WORTH_SAYING:
        parts = (
            ("evaluation", running.evaluation),
            ("checkpoints", running.checkpoint),
            ("restarts", running.restart),
            ("redone work", running.redone),
        )
        lost = ", ".join(f"{name} {percent(share)}" for name, share in parts if share > 0)
        facts.append(Fact("productive", percent(running.productive), note=lost, tone="warn"))
    return Section("outside", (Facts(tuple(facts)),)) if facts else None


def memory_section(prediction: Prediction) -> Section:
    """Return memory per GPU and KV cache per engine against what there is (not in brief)."""
    memory = prediction.memory
    pairs = (
        ("trainer GPU", memory.trainer_gib, memory.trainer_limit_gib),
        ("generator GPU", memory.generator_gib, memory.generator_limit_gib),
        ("KV cache", memory.kv_gib, memory.kv_limit_gib),
    )
    facts = tuple(Fact(name, f"{three(a)} of {three(b)}", "GiB") for name, a, b in pairs)
    return Section("memory", (Facts(facts),), brief=False)
