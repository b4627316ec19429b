"""What the profiles say, as content trees: the catalogue, one profile, defaults, and a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from allocator.report.numbers import plural, three
from allocator.report.palette import Tone
from allocator.report.tree import Report, Section, Sentence, Table
from allocator.scenario.errors import ScenarioError, nearest_of, shown
from allocator.scenario.profiles import (
    Catalogue,
    Datum,
    GpuProfile,
    ModelProfile,
    SandboxProfile,
    fold_id,
)
from allocator.scenario.records import datum_names

KINDS = ("measured", "vendor", "fitted", "assumed")
Profile = GpuProfile | ModelProfile | SandboxProfile


def exact(datum: Datum | None) -> str:
    """Return a profile's number as it stands, empty when no source gives it."""
    return "" if datum is None else f"{datum.value:.6g}"


def rounded(datum: Datum | None) -> str:
    """Return a profile's number with three digits and an SI prefix, empty when it has none."""
    return "" if datum is None else three(datum.value)


def find_profile(catalogue: Catalogue, name: str) -> Profile:
    """Return the GPU, model or sandbox provider that `name` (an id or alias) stands for.

    Raises
    ------
    ScenarioError
        If there is none; names the nearest id.
    """
    found = catalogue.aliases.get(fold_id(name))
    if found is None:
        near = nearest_of(fold_id(name), catalogue.aliases)
        raise ScenarioError(
            expected="the id or alias of a GPU, model or sandbox provider"
            " (see `allocator profiles list`)",
            given=shown(name),
            nearest=None if near is None else catalogue.aliases[near],
        )
    if found in catalogue.gpu_ids:
        return catalogue.gpu(found)
    return catalogue.sandbox(found) if found in catalogue.sandbox_ids else catalogue.model(found)


def data_of(profile: Profile) -> dict[str, Datum]:
    """Return the numbers of a profile that have a value, by name."""
    named = ((name, getattr(profile, name)) for name in datum_names(type(profile)))
    return {name: datum for name, datum in named if datum is not None}


def catalogue_content(catalogue: Catalogue) -> Report:
    """Return all GPUs, models and sandbox providers with their main numbers."""
    gpus = [catalogue.gpu(key) for key in catalogue.gpu_ids]
    models = [catalogue.model(key) for key in catalogue.model_ids]
    gpu_table = Table(
        ("id", "BF16 FLOP/s", "HBM bytes", "HBM bytes/s", "GPUs a node", "also called"),
        tuple(
            (g.id, rounded(g.bf16_flops_per_s), rounded(g.hbm_bytes), rounded(g.hbm_bytes_per_s),
             exact(g.gpus_per_node), ", ".join(g.aliases))
            for g in gpus
        ),
        (1, 2, 3, 4),
    )  # fmt: skip
    model_table = Table(
        ("id", "parameters", "active", "layers", "attention", "rates on"),
        tuple(
            (m.id, rounded(m.params_total), rounded(m.params_active), exact(m.layers), m.attention,
             ", ".join(_rated(catalogue, m.id)) or "none")
            for m in models
        ),
        (1, 2, 3),
    )  # fmt: skip
    providers = [catalogue.sandbox(key) for key in catalogue.sandbox_ids]
    sandbox_table = Table(
        ("id", "USD/h a vCPU", "USD/h a GiB", "at once", "also called"),
        tuple(
            (p.id, exact(p.vcpu_usd_per_hour), exact(p.memory_gib_usd_per_hour), _at_once(p),
             ", ".join(p.aliases))
            for p in providers
        ),
        (1, 2),
    )  # fmt: skip
    return Report(
        "Profiles", "", "plain",
        f"{plural(len(gpus), 'GPU type')}, {plural(len(models), 'model')},"
        f" {plural(len(providers), 'sandbox provider')}",
        "Every number with its source: allocator profiles show ID",
        (Section("gpus", (gpu_table,)), Section("models", (model_table,)),
         Section("sandboxes", (sandbox_table,))),
    )  # fmt: skip


def _at_once(provider: SandboxProfile) -> str:
    limits = provider.limits_of("concurrent_sandboxes") or provider.limits_of("pool_vcpus")
    return ", ".join(
        f"{limit.plan} {limit.limit.value:,.0f}"
        + ("" if limit.limit.unit == "sandbox" else f" {limit.limit.unit}")
        for limit in limits
    )


def _rated(catalogue: Catalogue, model: str) -> list[str]:
    return [gpu for gpu in catalogue.gpu_ids if catalogue.rates(model, gpu)]


def profile_content(catalogue: Catalogue, profile: Profile) -> Report:
    """Return one profile: its numbers with their sources, then prices, rates or limits."""
    rows = tuple(
        (name, exact(datum), datum.unit, datum.kind, datum.as_of or "", datum.source)
        for name, datum in data_of(profile).items()
    )
    numbers = Table(("name", "value", "unit", "kind", "as of", "source"), rows, (1,))
    more: tuple[Section, ...]
    if isinstance(profile, SandboxProfile):
        more = _limits(profile)
    elif isinstance(profile, GpuProfile):
        more = (_prices(catalogue, profile),)
    else:
        more = (_rates(catalogue, profile),)
    aliases = ", ".join(profile.aliases)
    return Report(
        profile.id, "", "plain", "", f"also called {aliases}" if aliases else "",
        (Section("numbers", (numbers,)), *more),
    )  # fmt: skip


def _prices(catalogue: Catalogue, gpu: GpuProfile) -> Section:
    rows = tuple(
        (row.kind, row.vintage or "", exact(row.usd_per_gpu_hour), row.usd_per_gpu_hour.kind,
         row.usd_per_gpu_hour.source)
        for row in catalogue.prices(gpu.id)
    )  # fmt: skip
    if not rows:
        return Section("prices", (Sentence("No price in the catalogue."),))
    return Section("prices", (Table(("for", "survey", "USD/h", "kind", "source"), rows, (2,)),))


def _rates(catalogue: Catalogue, model: ModelProfile) -> Section:
    found = [row for gpu in catalogue.gpu_ids for row in catalogue.rates(model.id, gpu)]
    if not found:
        return Section("rates", (Sentence("No measured or fitted rates in the catalogue."),))
    rows = tuple(
        (row.gpu, f"{row.backend} {row.backend_version}", f"{row.weights_dtype}/{row.kv_dtype}",
         str(row.gpus_per_engine), f"tp {row.tp} dp {row.dp} ep {row.ep}",
         f"{100 * row.rmse_fraction:.1f}%", row.kind,
         f"not used: {'; '.join(row.suspect)}" if row.suspect else "")
        for row in found
    )  # fmt: skip
    tones: tuple[Tone, ...] = tuple("warn" if row.suspect else "plain" for row in found)
    header = ("gpu", "backend", "weights/KV", "GPUs", "layout", "error", "kind", "remark")
    return Section("rates", (Table(header, rows, (3, 5), tones),))


def _limits(provider: SandboxProfile) -> tuple[Section, ...]:
    limits = tuple(
        (row.plan, row.name, exact(row.limit), _spread(row.limit), row.limit.unit, row.raised_by,
         row.limit.as_of or "", row.limit.source)
        for row in provider.limits
    )  # fmt: skip
    header = ("plan", "limit", "value", "low to high", "unit", "raised by", "as of", "source")
    sections = [Section("limits", (Table(header, limits, (2,)),))]
    if provider.starts:
        starts = tuple(
            ("" if row.concurrency is None else f"{row.concurrency:g}", exact(row.seconds),
             row.what, row.seconds.kind, row.seconds.source)
            for row in provider.starts
        )  # fmt: skip
        table = Table(("sandboxes", "seconds", "what", "kind", "source"), starts, (0, 1))
        sections.append(Section("start-up", (table,)))
    told = tuple(Sentence(f"{note.text} ({note.source})") for note in provider.notes)
    return (*sections, Section("notes", told))


def _spread(datum: Datum) -> str:
    low, high = datum.low, datum.high
    return "" if low is None or high is None else f"{low:g} to {high:g}"


def profile_data(catalogue: Catalogue, profile: Profile) -> dict[str, Any]:
    """Return one profile with its prices or rates, as records that JSON can hold (see `plain`)."""
    if isinstance(profile, SandboxProfile):
        return {"sandbox": profile}
    if isinstance(profile, GpuProfile):
        return {"gpu": profile, "prices": catalogue.prices(profile.id)}
    found = [row for gpu in catalogue.gpu_ids for row in catalogue.rates(profile.id, gpu)]
    return {"model": profile, "rates": found}


def defaults_content(defaults: Mapping[str, Any]) -> Report:
    """Return the default of every key of a scenario that has one."""
    rows = tuple((path, *_default(value)) for path, value in defaults.items())
    table = Table(("key", "default", "low to high", "kind", "source"), rows)
    return Report("Defaults of a scenario", "", "plain", "", "", (Section("", (table,)),))


def _default(value: Any) -> tuple[str, str, str, str]:
    if not isinstance(value, Mapping) or "value" not in value:
        return ("not set" if value is None else shown(value), "", "", "")
    low, high = value.get("low"), value.get("high")
    spread = "" if low is None or high is None else f"{low:g} to {high:g}"
    return f"{value['value']:g}", spread, str(value.get("kind", "")), str(value.get("source", ""))


def all_data(catalogue: Catalogue) -> Iterator[tuple[str, Datum]]:
    """Yield every number of the catalogue with its place."""
    for key in catalogue.gpu_ids:
        yield from ((datum.where, datum) for datum in data_of(catalogue.gpu(key)).values())
    for key in catalogue.model_ids:
        yield from ((datum.where, datum) for datum in data_of(catalogue.model(key)).values())
        for gpu in catalogue.gpu_ids:
            for row in catalogue.rates(key, gpu):
                yield f"rates/{row.id}", row.datum("alpha_s")
    for price in catalogue.prices():
        yield price.usd_per_gpu_hour.where, price.usd_per_gpu_hour
    for provider in map(catalogue.sandbox, catalogue.sandbox_ids):
        named = (
            *data_of(provider).values(),
            *(row.limit for row in provider.limits),
            *(row.seconds for row in provider.starts),
        )
        yield from ((datum.where, datum) for datum in named)


def check_catalogue(catalogue: Catalogue) -> dict[str, Any]:
    """Return what a check of all profiles finds.

    Returns
    -------
    dict
        `numbers` by kind; `problems`: numbers without kind or source, or with a spread that does
        not hold the value; `not_used`: rate rows that fail the sanity gate; `without_profile`:
        names in data rows that no profile describes.
    """
    kinds: Counter[str] = Counter()
    problems: list[str] = []
    for where, datum in all_data(catalogue):
        kinds[datum.kind] += 1
        if datum.kind not in KINDS:
            problems.append(f"{where}: kind {datum.kind!r} is none of {', '.join(KINDS)}")
        if not datum.source:
            problems.append(f"{where}: no source")
        low = datum.value if datum.low is None else datum.low
        high = datum.value if datum.high is None else datum.high
        if not low <= datum.value <= high:
            problems.append(f"{where}: {datum.value:g} lies outside {low:g} to {high:g}")
    unused = [
        row.id
        for key in catalogue.model_ids
        for gpu in catalogue.gpu_ids
        for row in catalogue.rates(key, gpu)
        if row.suspect
    ]
    return {
        "numbers": {kind: kinds[kind] for kind in (*KINDS, *sorted(set(kinds) - set(KINDS)))},
        "problems": problems,
        "not_used": unused,
        "without_profile": {k: list(v) for k, v in catalogue.not_in_catalogue.items()},
    }


def check_content(found: Mapping[str, Any]) -> Report:
    """Return the findings of `check_catalogue` as a content tree."""
    problems = found["problems"]
    counts = ", ".join(f"{count:,} {kind}" for kind, count in found["numbers"].items())
    sections = [Section("numbers", (Sentence(f"{counts}."),))]
    if problems:
        rows = tuple((problem,) for problem in problems)
        sections.append(Section("problems", (Table(("what",), rows),), tone="bad"))
    if found["not_used"]:
        text = (
            f"{plural(len(found['not_used']), 'rate row')} fail the sanity gate and are not used."
        )
        sections.append(Section("rates", (Sentence(text),)))
    for kind, names in found["without_profile"].items():
        if names:
            text = f"{kind} in data rows that have no profile: {', '.join(names)}."
            sections.append(Section("missing", (Sentence(text),)))
    verdict: tuple[str, Tone] = (
        (plural(len(problems), "problem"), "bad") if problems else ("no problem", "good")
    )
    return Report("Check of all profiles", *verdict, "", "", tuple(sections))
