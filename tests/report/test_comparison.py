from __future__ import annotations

import io
import json
import re
import struct
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

import allocator
from allocator.comparison import Comparison
from allocator.comparison.identity import TERMS
from allocator.plan import Availability, PlanWarning
from allocator.report.comparison import LABELS, comparison_content, comparison_file
from allocator.report.comparison_words import sentence
from allocator.report.figures import comparison_picture
from allocator.report.tree import Facts, Waterfall
from tests.report.plans import decisions, good_plan, prediction, scenario, two_pool_plan

EXAMPLES = Path(__file__).parents[2] / "examples"


@cache
def published_against_mixed() -> Comparison:
    """Return the published H200 run against H200 trainer with GB300 generator."""
    return allocator.compare(
        EXAMPLES / "qwen3-235b-h200.yaml", EXAMPLES / "h200-trainer-gb300-generator.yaml"
    )


@cache
def more_trainers() -> Comparison:
    """Return the published run against one in which the trainer sets the pace."""
    path = EXAMPLES / "qwen3-235b-h200.yaml"
    return allocator.compare(
        path, path, overrides_b=["trainer_gpus=32", "oversampling=1", "in_flight=2808"]
    )


def text_of(comparison: Comparison, width: int = 100, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=stream, width=width, highlight=False, markup=False, emoji=False).print(comparison)
    stream.seek(0)
    return stream.read()


def chain_of(comparison: Comparison) -> Waterfall:
    section = comparison_content(comparison).section("dollars")
    assert section is not None
    (chain,) = section.blocks
    assert isinstance(chain, Waterfall)
    return chain


def dollars(text: str) -> float:
    return float(text.replace("$", "").replace(",", ""))


@pytest.mark.parametrize("build", [published_against_mixed, more_trainers])
def test_the_printed_chain_adds_up_and_never_runs_below_zero(build: object) -> None:
    assert callable(build)
    steps = chain_of(build()).steps
    assert (steps[0].label, steps[-1].label) == ("A", "B")
    assert sum(dollars(step.text) for step in steps[:-1]) == pytest.approx(
        dollars(steps[-1].text), abs=1e-9
    )
    for step, following in pairwise(steps[:-1]):
        assert step.end == following.start
    assert min(min(step.start, step.end) for step in steps) >= 0.0
    roles = [step.role for step in steps[1:-1] if step.label != "the rest"]
    assert roles == sorted(roles, reverse=True)
    for step in steps[1:-1]:
        assert (step.end > step.start) == (step.role == "dearer")


def test_a_screen_tells_the_whole_story() -> None:
    comparison = published_against_mixed()
    text = text_of(comparison)
    assert max(map(len, text.splitlines())) <= 80
    said = " ".join(text.split())
    a, b = comparison.a, comparison.b
    saved = b.usd_per_useful_mtok / a.usd_per_useful_mtok - 1.0
    for part in (
        f"B costs ${b.usd_per_useful_mtok:.2f} per million useful tokens, A "
        f"${a.usd_per_useful_mtok:.2f} (-${-comparison.difference_usd:.2f}, {saved:.1%}).",
        "evaluated as its plan: fixes it",
        "Of written tokens 62.4% -> 0% are of rollouts cancelled by oversampling (factor 2.5 -> 1)",
        "A GPU-hour of the trainer costs $1.59, of the generator $1.59 -> $2.79.",
        "The generator sets the pace in both",
        "A: the generator sets the pace and is held up 0% of its time, the trainer waits "
        f"{a.trainer_wait_fraction:.1%}.",
        "algorithm.dynamic_sampling off -> refill",
        "trainer.gpus 64 -> 40",
    ):
        assert part in said


def test_who_waits_is_said_where_the_pace_changes_hands() -> None:
    said = " ".join(text_of(more_trainers()).split())
    assert "The generator sets the pace in A, the trainer in B" in said
    assert re.search(r"B: the trainer sets the pace and waits [\d.e-]+% of its time", said)
    assert "of what the generator could deliver is not taken" in said


@pytest.mark.parametrize("width", [40, 60, 80])
def test_narrow_and_plain_terminals(width: int) -> None:
    text = text_of(published_against_mixed(), width, "ascii")
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= width


def test_what_makes_dearer_and_cheaper_differ_without_colour() -> None:
    lines = text_of(published_against_mixed(), encoding="ascii").splitlines()
    price = next(line for line in lines if line.lstrip().startswith("price  "))
    tail = next(line for line in lines if line.lstrip().startswith("tail  "))
    assert "++" in price.split("$")[1]
    assert "--" in tail.split("$")[1]


def test_every_term_has_a_label_and_a_sentence() -> None:
    assert tuple(LABELS) == TERMS
    for comparison in (published_against_mixed(), more_trainers()):
        for term in comparison.terms:
            said = sentence(term, comparison)
            assert said.endswith(".")
            assert "None" not in said
            assert "n/a" not in said


def test_plans_by_hand_are_compared_too() -> None:
    once = prediction()
    dear = replace(once, usd_per_hour=2 * once.usd_per_hour,
                   usd_per_useful_mtok=2 * once.usd_per_useful_mtok,
                   spending=replace(once.spending, sandboxes=once.usd_per_hour))  # fmt: skip
    comparison = allocator.compare(good_plan(), good_plan(prediction=dear))
    assert comparison.term("sandboxes").usd_per_useful_mtok == pytest.approx(
        once.usd_per_useful_mtok, rel=1e-6
    )
    other = allocator.compare(good_plan(), two_pool_plan())
    assert {change.path for change in other.scenario_changes} == {
        "hardware.pools[0].name", "hardware.pools[0].price.kind",
        "hardware.pools[0].price.vintage", "hardware.pools[1]",
    }  # fmt: skip


def test_what_a_run_pays_for_besides_is_told_with_its_number() -> None:
    """Sandboxes, stops of the run and engines that only prefill each appear where there are any."""
    once = prediction()
    groups = decisions().generator.groups
    readers = (replace(groups[0], role="prefill", engines=4), replace(groups[0], engines=20))
    other = good_plan(
        decisions=replace(decisions(), generator=replace(decisions().generator, groups=readers)),
        prediction=replace(
            once,
            spending=replace(once.spending, sandboxes=12.0, reward_api=3.0),
            environment=replace(once.environment, sandboxes=400.0),
            availability=Availability(0.9, 0.04, 0.0, 0.05, 0.01),
        ),
    )
    comparison = allocator.compare(good_plan(), other)
    for name, said in (
        ("sandboxes", "Sandboxes cost $0 -> $12.0 per hour, 0 -> 400 at a time."),
        ("reward_api", "Reward calls to an API cost $0 -> $3.00 per hour."),
        ("availability", "In 100% -> 90.0% of its time the run makes steps that count; the rest "
         "goes to evaluations 0% -> 4.00%, failures 0% -> 6.00%."),
        ("split", "GPUs: trainer 64, generator 192, of them for prefill only 0 -> 32. Paid for "
         "each generator GPU, the slower side: 1.33."),
    ):  # fmt: skip
        assert sentence(comparison.term(name), comparison) == said


def test_names_and_keys_cannot_play_with_a_page() -> None:
    evil = "<script>alert('x')</script>"
    comparison = replace(
        allocator.compare(good_plan(), good_plan(scenario=scenario(evil))),
        warnings=(PlanWarning("code<b>", evil),),
    )
    page = comparison_file(comparison, ".html")
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_files_by_their_ending() -> None:
    comparison = published_against_mixed()
    data = json.loads(comparison_file(comparison, ".json"))
    assert [term["name"] for term in data["terms"]] == list(TERMS)
    assert all(term["text"] for term in data["terms"])
    assert {key: data[key] for key in ("difference_usd", "generator_share")} == {
        "difference_usd": comparison.difference_usd, "generator_share": 1.0
    }  # fmt: skip
    markdown = comparison_file(comparison, ".md")
    assert "| price | +$1.10 |" in markdown
    page = comparison_file(comparison, ".HTML")
    assert page.startswith('<div class="rl-plan">')
    assert "+$1.10" in page
    assert comparison._repr_html_() == page.rstrip("\n")


def test_a_plan_beside_itself_says_so() -> None:
    comparison = allocator.compare(good_plan(), good_plan())
    report = comparison_content(comparison)
    assert "(the same)" in report.headline
    why = report.section("why")
    assert why is not None
    assert not any(isinstance(block, Facts) for block in why.blocks)
    said = " ".join(text_of(comparison).split())
    assert "The scenarios do not differ. " in said
    assert "The decisions do not differ." in said


def test_the_picture_is_1600_by_900(tmp_path: Path) -> None:
    path = tmp_path / "chain.png"
    comparison_picture(more_trainers(), path)
    header = path.read_bytes()[:24]
    assert struct.unpack(">II", header[16:24]) == (1600, 900)
