"""Decode and prefill rates: from the modelled points and fits of the source to laws in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tools.profile_facts import Names, Row, number

CONTEXTS_WITH_POINTS = (4096, 16384)
PREFILL_TOKENS = (1024, 4096, 16384)
# The source fits over 1k to 32k tokens of context (its notes).
CONTEXT_RANGE_TOKENS = (1024, 32768)

# How the source writes weights: the dtype a scenario names.
WEIGHTS_DTYPE = {
    "bf16": "bf16",
    "fp8_block": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4_experts_bf16_rest": "mxfp4",
}

NOTES = [
    "Decode and prefill times are modelled by aiconfigurator-core 0.12.0 from measured kernels,"
    " not measured end to end; the coefficients are its least-squares fits (kind: fitted).",
    "n is the number of sequences on the whole engine, also where attention is data-parallel"
    " (dp > 1): read so, the fits are 1.4-7.5% (rms) off the stored points, which is the error"
    " they claim; with n per rank in the expert term they are 4-22% off.",
    "Prefill comes from three single-prompt rates per row. Three coefficients through three"
    " points leave no residual (exactly_determined); where that needs a negative coefficient, a"
    " non-negative fit and its residual are stored.",
    "The source assumes a power-law load of the experts (exponent 1.2), no speculative decoding"
    " and no interference of prefill with decode.",
]
PREFILL_MISSING = "the source has no prefill points for this row"


def rate_rows(facts: Mapping[str, Any], names: Names) -> tuple[list[Row], list[Row]]:
    """Return the rows that can be planned with, and those kept out with their reasons."""
    kept: list[Row] = []
    excluded: list[Row] = []
    for entry in facts["decode"]:
        row = _head(entry, names)
        if "fit" in entry:
            kept.append(row | _laws(entry))
            continue
        excluded.append(
            {
                key: row[key]
                for key in (
                    "id",
                    "model",
                    "gpu",
                    "backend",
                    "backend_version",
                    "weights_dtype",
                    "kv_dtype",
                    "gpus_per_engine",
                )
            }
            | {"reasons": [entry["note"], *entry["suspect"], *entry.get("backend_gap", [])]}
        )
    ids = [row["id"] for row in (*kept, *excluded)]
    if len(set(ids)) != len(ids):
        raise ValueError("two rate rows share one id")
    return kept, excluded


def _head(entry: Mapping[str, Any], names: Names) -> Row:
    model, gpu = names.model(entry["model"]), names.gpu(entry["system"])
    weights, kv = WEIGHTS_DTYPE[entry["weights_dtype"]], entry["kv_dtype"]
    tp, dp = entry["tensor_parallel"], entry["attention_data_parallel"]
    moe_tp, ep = entry["moe_tensor_parallel"], entry["moe_expert_parallel"]
    backend, version = entry["backend"], entry["backend_version"]
    return {
        "id": f"{model}/{gpu}/{backend}-{version}/{weights}-kv-{kv}/"
        f"tp{tp}-dp{dp}-etp{moe_tp}-ep{ep}",
        "model": model,
        "model_as_published": entry["model"],
        "gpu": gpu,
        "backend": backend,
        "backend_version": version,
        "weights_dtype": weights,
        "weights_format": entry["weights_dtype"],
        "kv_dtype": kv,
        "tp": tp,
        "dp": dp,
        "moe_tp": moe_tp,
        "ep": ep,
        "gpus_per_engine": entry["gpus_per_replica"],
        "kv_capacity_tokens": entry["kv_capacity_tokens_per_replica"],
        "source": entry["source"],
        "kind": "fitted",
    }


def _laws(entry: Mapping[str, Any]) -> Row:
    fits = dict(entry["fit"])
    name = "four_param_moe_all_ctx" if "four_param_moe_all_ctx" in fits else "three_param_all_ctx"
    fit = fits.pop(name)
    rates = entry.get("prefill_tokens_per_s_per_gpu") or None
    return {
        "form": "four_parameter" if name.startswith("four") else "three_parameter",
        **_decode_law(fit),
        "context_min_tokens": CONTEXT_RANGE_TOKENS[0],
        "context_max_tokens": CONTEXT_RANGE_TOKENS[1],
        "points": _decode_points(entry),
        "prefill": None if rates is None else prefill_fit(rates, entry["gpus_per_replica"]),
        "prefill_note": PREFILL_MISSING if rates is None else None,
        "suspect": entry.get("suspect", []),
        "remarks": entry.get("backend_gap", []),
        "other_fits": {key: _decode_law(other) for key, other in fits.items()},
    }


def _decode_law(fit: Mapping[str, Any]) -> Row:
    """Milliseconds to seconds; gamma is given per sequence and per 1,000 tokens of its context."""
    law: Row = {
        "alpha_s": number(fit["alpha_ms"] * 1e-3),
        "expert_s": number(fit.get("expert_ms", 0.0) * 1e-3),
        "beta_s": number(fit["beta_ms_per_seq"] * 1e-3),
        "experts": fit.get("experts"),
        "experts_per_token": fit.get("experts_per_token"),
        "rmse_fraction": number(fit["rmse_percent"] / 100),
        "worst_fraction": number(fit["worst_percent"] / 100),
    }
    if "gamma_ms_per_seq_per_1k_tokens" in fit:
        law["gamma_s_per_token"] = number(fit["gamma_ms_per_seq_per_1k_tokens"] * 1e-6)
    return law


def _decode_points(entry: Mapping[str, Any]) -> list[list[float]]:
    points: list[list[float]] = []
    for context in CONTEXTS_WITH_POINTS:
        table = entry[f"decode_ctx_{context}_tokens"]
        points += [
            [context, n, number(ms * 1e-3)]
            for n, ms in zip(table["sequences_per_replica"], table["step_ms"], strict=True)
        ]
    return points


def prefill_fit(rates_per_gpu: Mapping[str, float], gpus_per_engine: int) -> Row:
    """Fit engine-seconds p0 + p1 L + p2 L^2 to the prefill rates of one row.

    Parameters
    ----------
    rates_per_gpu : tokens/s per GPU of one prompt, by ``len_<tokens>_tokens``.
    gpus_per_engine : GPUs that the rate is spread over.

    Returns
    -------
    dict
        Coefficients through the three points where all are non-negative; otherwise those of the
        non-negative fit with least squared relative error, and its root mean square.
    """
    tokens = np.array(PREFILL_TOKENS, dtype=float)
    rates = np.array([rates_per_gpu[f"len_{n}_tokens"] for n in PREFILL_TOKENS])
    seconds = tokens / (rates * gpus_per_engine)
    design = np.vander(tokens, 3, increasing=True)
    exact = np.linalg.solve(design, seconds)
    exactly_determined = bool((exact >= 0).all())
    law = exact if exactly_determined else non_negative_fit(design / seconds[:, None])
    residual = 0.0 if exactly_determined else _rms(design @ law / seconds - 1.0)
    p0, p1, p2 = (_short(value) for value in law)
    return {
        "p0_s": p0,
        "p1_s_per_token": p1,
        "p2_s_per_token2": p2,
        "exactly_determined": exactly_determined,
        "rmse_fraction": _short(residual),
        "min_tokens": PREFILL_TOKENS[0],
        "max_tokens": PREFILL_TOKENS[-1],
        "points": [[n, _short(s)] for n, s in zip(PREFILL_TOKENS, seconds, strict=True)],
    }


def non_negative_fit(relative_design: np.ndarray) -> np.ndarray:
    """Return x >= 0 that brings `relative_design` x closest to 1 in every row."""
    from scipy.optimize import nnls

    solution, _ = nnls(relative_design, np.ones(len(relative_design)))
    return np.asarray(solution)


def _rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def _short(value: float) -> float:
    """Eight digits: more than the rates carry, fewer than linear algebra libraries disagree in."""
    return float(f"{value:.8g}")


def by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return `rows` grouped by model id, in the order of the source."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["model"], []).append(row)
    return groups
