"""The main path written a second time, by another hand: one plan, scalars, formulas from the texts.

Written from the design's text and the formulas of the queue law alone, without a look at
`allocator.physics` or at the stages of `allocator.evaluator`, so that a slip in one of the two
shows as a difference. It covers the asynchronous path with whole groups, nothing cut and a trainer
of one rank (load imbalance 1). Nothing here is fast, general or called by the product.
"""

# Names are those of the formulas.
# ruff: noqa: N802, N803, N806

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaln, ndtr

Array = NDArray[np.float64]
NODES = 4096
Phi = NormalDist().cdf


@dataclass(frozen=True)
class Run:
    """Numbers of one plan: the resolved inputs (SI) and the decisions."""

    # Lengths (after the cap), prompt, environment, reward
    mean: float
    cv: float
    cap: float
    prompt: float
    environment_s: float
    solve: tuple[float, float, float, float] | None  # always, never, alpha, beta
    refill: bool
    # One engine: t(b) = alpha + expert (1 - miss^b) + beta b + gamma b c,
    # prefill_s(P) = p0 + p1 P + p2 P^2
    alpha: float
    expert: float
    miss: float
    beta: float
    gamma: float
    p0: float
    p1: float
    p2: float
    kv_bytes_per_token: float
    kv_budget: float
    engines: int
    cap_per_engine: int
    limit_per_engine: bool
    # Trainer
    gpus: int
    peak: float
    hfu: float
    recomputation: bool
    old_log_probs: bool
    reference_model: bool
    trainer_fixed_s: float
    optimizer_steps: int
    epochs: int
    step_cv: float
    state_bytes: float
    activation_bytes: float
    width: int
    # Forward pass: 2 N per token, `pair_flops` per layer and (query, key) pair
    params_active: float
    matmul_params: float
    layers: float
    pair_flops: float
    # Weight sync
    sync_s: float
    sync_every: int
    blocks: bool
    pauses: bool
    # Batch and queue
    groups: int
    group_size: int
    queue: int
    # Money
    pool_gpus: float
    usd_per_gpu_hour: float


@dataclass(frozen=True)
class Answer:
    """Predicted numbers by name, and P(staleness <= n)."""

    numbers: dict[str, float]
    within: Callable[[int], float]


def main_path(r: Run) -> Answer:
    """Lengths -> engine -> trainer -> queue -> staleness -> accounts, for one plan."""
    s, batch, m = r.group_size, r.groups * r.group_size, r.optimizer_steps
    mu, sigma = log_normal(r.mean, r.cv, r.cap)
    e1, e2, e3 = (moment(k, mu, sigma, r.cap) for k in (1, 2, 3))
    t1, t2 = r.prompt + e1, r.prompt**2 + 2 * r.prompt * e1 + e2
    f = signal_fraction(r.solve, s)
    kept = f if r.refill else 1.0
    engine = closed_loop(r, e1, e2, e3)
    dispatched = r.engines * engine.x
    # Trainer
    forward = 2 * r.matmul_params * t1 + r.layers * r.pair_flops * t2 / 2
    once = int(r.old_log_probs) + int(r.reference_model)
    executed = batch * forward * ((3 + int(r.recomputation)) * r.epochs + once)
    train_s = executed / (r.gpus * r.peak * r.hfu) + r.trainer_fixed_s * m * r.epochs
    v_t = batch / (train_s + (r.sync_s / r.sync_every if r.blocks else 0.0))
    # Match
    v_free = dispatched * kept
    pause = (r.sync_s if r.pauses else 0.0) / (r.sync_every * batch)
    v_g = max(v_free / (1 + v_free * pause), v_free * (1 - v_t * pause))
    running = v_g / v_free  # as many in flight as without pauses: each stays so much longer
    work = 1 - r.trainer_fixed_s * m * r.epochs / train_s
    tokens_cv2 = (t2 / t1**2 - 1) / batch
    table = length_table(mu, sigma, r.cap, s)
    wait, drop, batches_within = queue_and_staleness(
        table,
        u=v_g / v_t,
        groups=r.groups,
        queue=r.queue,
        train=batch / v_t / (engine.token_s / running * table.mean),
        constant=engine.fixed_s / (engine.token_s * table.mean),
        kept=kept,
        step_cv=math.sqrt(r.step_cv**2 + (1 + r.step_cv**2) * work**2 * tokens_cv2),
        late=0.0 if r.pauses else r.sync_s / (engine.token_s / running * table.mean),
    )
    v = v_t * (1 - wait)

    def within(versions: int) -> float:  # m per batch: m x lag + j, j uniform on 0..m-1
        return sum(batches_within((versions - j) // m) for j in range(m)) / m

    # Accounts
    useful_tokens = v * t1 * (1.0 if r.refill else f)
    usd_per_hour = r.pool_gpus * r.usd_per_gpu_hour
    prompt_forward = 2 * r.matmul_params * r.prompt + r.layers * r.pair_flops * r.prompt**2 / 2
    rollout_flops = prompt_forward / s + forward - prompt_forward
    search = dispatched * v_g / v_free * (batch / v) * rollout_flops
    # Model FLOPs of every pass over the batch: useful and useless tokens alike
    mfu = 6 * r.params_active * batch * t1 * r.epochs / (r.gpus * r.peak)
    numbers = {
        "decoding": engine.b,
        "samples_per_s_per_engine": engine.x,
        "token_s": engine.token_s,
        "fixed_s": engine.fixed_s,
        "sequences_fit": engine.n_kv,
        "train_s": train_s,
        "trainer_samples_per_s": v_t,
        "offered_samples_per_s": v_g,
        "load": v_g / v_t,
        "wait_fraction": wait,
        "dropped_fraction": drop,
        "trained_samples_per_s": v,
        "step_s": batch / v,
        "search_flops": search,
        "learning_flops": executed,
        "update_fraction": executed / (executed + search),
        "mfu_busy": mfu / train_s,
        "mfu_wall": mfu / (batch / v),
        "useful": f * (1 - drop),
        "no_signal": 1 - f if r.refill else (1 - f) * (1 - drop),
        "dropped_overflow": kept * drop,
        "usd_per_useful_mtok": usd_per_hour / (useful_tokens * 3600) * 1e6,
        "trainer_memory_bytes": r.state_bytes / r.gpus + r.activation_bytes / r.width,
    }
    return Answer(numbers, within)


@dataclass(frozen=True)
class Engine:
    """One engine: decoding, samples/s, residence fixed + token x length, N_kv."""

    b: float
    x: float
    token_s: float
    fixed_s: float
    n_kv: float


def closed_loop(r: Run, e1: float, e2: float, e3: float) -> Engine:
    """X = b / (R t(b) + b p), N = b + X (env + p); at most N_kv decode, the rest waits."""
    c = r.prompt + e2 / (2 * e1)
    sd = math.sqrt(e3 / (3 * e1) - (e2 / (2 * e1)) ** 2)
    p = (r.p0 + r.p1 * r.prompt + r.p2 * r.prompt**2) / r.group_size
    limits = r.engines if r.limit_per_engine else 1
    together = r.engines // limits

    def t(b: float) -> float:
        experts = r.expert * (1 - math.pow(r.miss, b))
        return r.alpha + experts + r.beta * b + r.gamma * b * c

    def x(b: float) -> float:
        return b / (e1 * t(b) + b * p)

    n_kv = sequences_fit(c * r.kv_bytes_per_token, sd * r.kv_bytes_per_token, r.kv_budget)

    def excess(n: float, b: float) -> float:
        return b + x(b) * (r.environment_s + p) - n

    share = 0.0
    for _ in range(2):
        n = group_places(r, r.cap_per_engine * together, share) / together
        b = min(largest_root(partial(excess, n), n), n_kv)
        token_s = t(b) + b * p / e1
        fixed_s = n / x(b) - e1 * token_s
        share = fixed_s / (fixed_s + e1 * token_s)
    return Engine(b, x(b), token_s, fixed_s, n_kv)


def group_places(r: Run, places: int, share: float) -> float:
    """Rollouts in flight when whole groups start: of few groups of places, at equal intervals T.

    Just before a start those before it hold all places but S, less half a one.
    """
    S = r.group_size
    if places >= 4 * S or S == 1:
        return places - (S - 1) / 2
    mu, sigma = log_normal(r.mean, r.cv, r.cap)
    share = round(share * 64) / 64

    def in_flight(t: float) -> float:  # of a group, t mean stays after its start
        length = (t - share) / (1 - share) * r.mean
        if length <= 0:
            return S
        return 0.0 if length >= r.cap else S * float(ndtr(-(math.log(length) - mu) / sigma))

    def excess(T: float) -> float:
        total, k = -(places - S + 0.5), 1
        while (more := in_flight(k * T)) > 1e-12:
            total, k = total + more, k + 1
        return total

    return S / root(excess, 0.2, 40.0)


# ----------------------------------------------------------------------------- small laws


def moment(k: int, mu: float, sigma: float, cap: float) -> float:
    """E[min(X, cap)^k] of a log-normal X."""
    whole = math.exp(k * mu + k * k * sigma * sigma / 2)
    if math.isinf(cap):
        return whole
    z = (math.log(cap) - mu) / sigma
    return whole * float(ndtr(z - k * sigma)) + cap**k * float(ndtr(-z))


@cache
def log_normal(mean: float, cv: float, cap: float) -> tuple[float, float]:
    """(mu, sigma) such that mean and cv after the cap are the given ones."""
    if math.isinf(cap):
        sigma = math.sqrt(math.log1p(cv * cv))
        return math.log(mean) - sigma * sigma / 2, sigma

    def mu_of(sigma: float) -> float:
        low, high = math.log(mean) - 1, math.log(cap) + 40 * sigma
        return root(lambda mu: moment(1, mu, sigma, cap) / mean - 1, low - sigma * sigma, high)

    def excess(sigma: float) -> float:
        return moment(2, mu_of(sigma), sigma, cap) / (mean * mean * (1 + cv * cv)) - 1

    sigma = root(excess, 1e-2, 8.0)
    return mu_of(sigma), sigma


def root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-15, rtol=1e-15, maxiter=500))


def largest_root(function: Callable[[float], float], high: float) -> float:
    """The largest root in (0, high]; function(high) >= 0 > function(0+)."""
    grid = [high * (1 - i / 400) for i in range(400)] + [high * 1e-9]
    for upper, lower in pairwise(grid):
        if function(lower) < 0:
            return root(function, lower, upper)
    raise ValueError("no root")


def sequences_fit(mean_bytes: float, sd_bytes: float, budget: float) -> float:
    """N with N c + 1.65 sqrt(N) sd(c) = budget."""
    half = 1.65 * sd_bytes / 2
    return ((math.sqrt(half * half + mean_bytes * budget) - half) / mean_bytes) ** 2


def signal_fraction(solve: tuple[float, float, float, float] | None, group_size: int) -> float:
    """w (1 - [Beta(al+S, be) + Beta(al, be+S)] / Beta(al, be))."""
    if solve is None:
        return 1.0
    always, never, al, be = solve
    whole = float(betaln(al, be))
    all_solved = math.exp(float(betaln(al + group_size, be)) - whole)
    none_solved = math.exp(float(betaln(al, be + group_size)) - whole)
    return (1 - always - never) * (1 - all_solved - none_solved)


# ----------------------------------------------------------------------------- length table


@dataclass(frozen=True)
class LengthTable:
    """Table of one length law and group size; times in mean lengths (`mean`: tokens of one)."""

    mean: float
    cv: float
    M: float
    sd: float
    D: float
    S: int
    nodes: Array
    J_nodes: Array
    V_slope_nodes: Array
    V_nodes: Array

    def J(self, x: float) -> float:
        inside = float(np.interp(x, self.nodes, self.J_nodes))
        return inside + max(0.0, x - float(self.nodes[-1]))

    def V(self, w: float) -> float:
        inside = float(np.interp(w, self.nodes, self.V_nodes))
        return inside + max(0.0, w - float(self.nodes[-1])) * self.cv**2 / self.S

    def V_slope(self, w: float) -> float:
        return float(np.interp(w, self.nodes, self.V_slope_nodes))


@cache
def length_table(mu: float, sigma: float, cap: float, S: int) -> LengthTable:
    """Distribution of one length and of the longest of S; variance of group ends in a window.

    All on the nodes 0..N: V and V' too end at the longest length, whatever the transform reaches.
    """
    top = min(cap, math.exp(mu - sigma * NormalDist().inv_cdf(1e-7 / S)))
    h = top / NODES
    H = np.append(ndtr((np.log((np.arange(NODES) + 0.5) * h) - mu) / sigma), 1.0)
    b = np.diff(H, prepend=0.0)
    at = np.arange(NODES + 1.0)
    mean = h * float(at @ b)
    cv = math.sqrt(float((at * at) @ b) * h * h / mean**2 - 1)
    h /= mean
    longest = H**S
    a = np.diff(longest, prepend=0.0)
    M = h * float(at @ a)
    sd = math.sqrt(h * h * float((at * at) @ a) - M * M)
    D = 2 * h * float(np.sum(longest * (1 - longest)))
    J = np.append(0.0, h * np.cumsum(longest[:-1]))

    others = H ** (S - 1)
    behind = S * np.correlate(np.diff(others, prepend=others[0]), b, "full")[NODES:]
    behind[0] = S * float(b @ others)
    points = 2 ** math.ceil(math.log2(max(16 * NODES, 64 / h)))
    phi, psi, R = (np.fft.fft(masses, points)[1:] for masses in (b, a, behind))
    gam = psi / (S * (1 - phi))
    spectrum = np.empty(points)
    spectrum[0] = cv**2 / S
    spectrum[1:] = (
        np.abs(gam) ** 2 * S * (1 - np.abs(phi) ** 2)
        + 1
        - np.abs(psi) ** 2
        + 2 * np.real(gam * np.conj(R - S * psi * np.conj(phi)))
    )
    covariance = np.fft.ifft(spectrum).real[: NODES + 1]
    slope = covariance[0] + 2 * np.append(0.0, np.cumsum(covariance[1:]))
    V = np.append(0.0, h * np.cumsum(slope[:-1]))
    return LengthTable(mean, cv, M, sd, D, S, h * at, J, slope, V)


# ----------------------------------------------------------------------------- queue, staleness


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def queue_and_staleness(
    t: LengthTable,
    *,
    u: float,
    groups: int,
    queue: int,
    train: float,
    constant: float,
    kept: float,
    step_cv: float,
    late: float = 0.0,
) -> tuple[float, float, Callable[[int], float]]:
    """Trainer's wait, share dropped and P(staleness <= n batches); times in mean lengths."""
    G, S, c, L, K = groups, t.S, step_cv, queue - 1, kept
    m = u - 1 if abs(u - 1) > 1e-9 else 1e-9
    w1 = train / u

    def index(w: float) -> float:
        return 1 - K * (1 - t.V(w) / w)

    I1 = index(w1)
    vs = clip(1 - K * (1 - t.V_slope(w1)), 0, 1)
    # The walk: one step, its variance and skew
    varD = max(I1 / G - (1 - vs**2) / (6 * G**2), I1 / (10 * G))
    s = math.sqrt(varD + c**2 * u**2)
    g = clip(2 * (varD**2 - c**4 * u**3) / s**3, -2, 2)
    g = g if abs(g) >= 1e-4 else 1e-4
    z = 6 / g * (math.cbrt(max(1 + g * m / (2 * s), 1e-12)) - 1) + g / 6
    f, A, Bq = Phi(-z), 1 - g**2 / 36, g / 6
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    i = s * density * (A**2 + A * Bq * z + Bq**2 * (z**2 + 2) / 3) - m * f
    i = max(i, 1e-15, 1e-15 - m)
    o = i + m
    cor = min(f * (1 - f) * (1 - vs) / (2 * G), f * o, (1 - f) * i)
    i1, o1 = i - cor, o - cor
    # Between the two walls
    s1 = u * I1 / G + c**2 * u**2
    kk = L + math.sqrt(math.pi * s1 / 2)
    r = 1 / (m**2 / (2 * s1) + math.pi**2 * s1 / (2 * kk**2))
    sig2 = u * index((1 + 2 * r) * w1) / G + c**2 * u**2
    thL = clip(2 * m * L / sig2, -60, 60)
    iota = m / (o1 / i1 * math.expm1(thL) + m / i1)
    wait = iota / (u + iota)
    drop = max(0.0, (u + iota - 1) / (u + iota))
    pw = min(1.0, f * iota / i1)
    # Backlog beyond the fill: on 0, exponential over (0, L), on L
    bb = math.sqrt(o1 / i1)
    weights = (m / i1 / (1 + bb), bb * math.expm1(thL), math.exp(thL) * bb * (m / i1) / (1 + bb))
    total = sum(weights)
    inner, inner_var = exponential_between(thL, L)
    EY = (weights[1] * inner + weights[2] * L) / total
    VarY = (weights[1] * (inner_var + inner**2) + weights[2] * L**2) / total - EY**2
    # Staleness
    d = 1 - drop
    tau = w1 * u / (1 - wait)
    W = t.M + constant
    age = (EY + 0.5) * d
    mu = W / tau + age + 0.5 - wait - pw * (S - 1) / (2 * S * G) + late / tau
    slots = S * G * (1 + constant) / (K * w1)
    even = 1 - min(1, t.cv**2 / S)
    stretch = 1 - K * d * tau * t.D / (4 * G * t.sd**2) * even - pw * min(1, t.cv) / slots
    gl = tau / max(0.2, stretch)
    length = W / tau + age
    rho = max(2 * VarY / sig2, 1e-9)
    steps = c**2 * (length - 2 * rho * (1 - math.exp(-length / rho)))
    ends = d**2 * index(age * tau) * (EY + 0.5) / G * length / (length + 2 * rho)
    starved = max(0.0, W * index(W) / (G * w1) - (1 - vs**2) / (3 * G**2))
    var = d**2 * (VarY + 1 / 12) + 2 * d * EY * wait
    var += (1 - pw) ** 2 * (steps + ends) + pw**2 * starved
    hw = math.sqrt(3 * max(var, 1e-6))

    def within(n: int) -> float:
        if n < 0:
            return 0.0
        high, low = (t.M + gl * (n + 0.5 - mu + side) for side in (hw, -hw))
        return (t.J(high) - t.J(low)) / (2 * gl * hw)

    return wait, drop, within


def exponential_between(thL: float, L: float) -> tuple[float, float]:
    """Mean and variance of a density growing as e^(thL y / L) over (0, L)."""
    if abs(thL) < 1e-2:
        return L * (0.5 + thL / 12 - thL**3 / 720), L**2 * (1 / 12 - thL**2 / 240 + thL**4 / 6048)
    mean = L * (-1 / math.expm1(-thL) - 1 / thL)
    return mean, L**2 * (1 / thL**2 - 1 / (4 * math.sinh(thL / 2) ** 2))
