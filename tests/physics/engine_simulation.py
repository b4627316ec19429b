"""Event simulation of one inference engine with turns and tools, apart from any law it checks.

A fixed number of rollouts is in flight; one that ends is replaced at once.  Each takes a place in
the KV cache (in order of arrival), is prefilled, decodes together with all others, calls its tool,
and so on.  Decode steps lengthen with every token written; lengths and tool times are log-normal,
the lengths dealt like cards (1,000 quantiles in random order), which takes noise out.
Prefill either stops all decoders, one call at a time, or runs on servers apart.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from allocator.physics.decode import DecodeLaw
from allocator.physics.moments import FloatArray
from allocator.physics.prefill import PrefillLaw

QUANTILES = ndtri((np.arange(1_000) + 0.5) / 1_000)


@dataclass(frozen=True)
class Setting:
    in_flight: int
    decode: DecodeLaw
    prefill: PrefillLaw
    prompt_tokens: float
    response_mean: float
    response_cv: float
    turns: int = 1
    tool_tokens: float = 0.0
    tool_s: float = 0.0  # between two turns
    tool_cv: float = 1.0
    last_s: float = 0.0  # after the last turn, without KV
    places: float = 1e9  # decoding sequences whose KV fits
    tool_weight: float = 1.0  # KV of a sequence in a tool over that of another
    held: bool = True  # whether KV survives a tool
    prefill_servers: int = 0  # apart from the engine; 0: the engine itself

    def responses(self) -> FloatArray:
        """The response lengths that are dealt, each as often."""
        lengths = np.exp(math.sqrt(math.log1p(self.response_cv**2)) * QUANTILES)
        return np.asarray(lengths * self.response_mean / lengths.mean())


@dataclass(frozen=True)
class Outcome:
    samples_per_s: float
    decoding: float
    resident: float  # weighted as `places` are
    decode_context_mean: float
    decode_context_sd: float
    tool_context_mean: float
    token_s: float  # slope of the time on the engine over the response length
    residence_s: float


@dataclass
class Rollout:
    response: float
    started: float
    context: float
    turn: int = 0
    read: float = 0.0
    placed: bool = False
    left: float = 0.0  # when it last left the engine
    away: float = 0.0  # seconds in tools and waiting for a place


@dataclass
class Sums:
    time: float = 0.0
    decoding: float = 0.0
    resident: float = 0.0
    context: float = 0.0
    context_squared: float = 0.0
    held: float = 0.0
    held_context: float = 0.0
    finished: list[tuple[float, float, float]] = field(default_factory=list)


def lognormal(rng: np.random.Generator, mean: float, cv: float) -> float:
    if mean == 0.0 or cv == 0.0:
        return mean
    sigma = math.sqrt(math.log1p(cv * cv))
    return float(rng.lognormal(math.log(mean) - sigma * sigma / 2.0, sigma))


class Engine:
    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.rng = np.random.default_rng(seed)
        self.now = 0.0
        self.lengths: list[float] = []
        self.order = 0  # breaks ties in the heaps
        self.written = 0.0  # tokens a sequence that decoded from the beginning would have written
        self.context = 0.0  # of all decoding sequences together
        self.holders = 0
        self.holders_in_tools = 0
        self.decoders: list[tuple[float, int, Rollout]] = []  # by the token at which they end
        self.prefills: list[tuple[float, int, Rollout]] = []
        self.tools: list[tuple[float, int, Rollout]] = []
        self.outside: deque[Rollout] = deque()
        self.to_read: deque[Rollout] = deque()
        self.sums = Sums()

    def push(self, heap: list[tuple[float, int, Rollout]], key: float, rollout: Rollout) -> None:
        self.order += 1
        heapq.heappush(heap, (key, self.order, rollout))

    def new(self) -> Rollout:
        s = self.setting
        if not self.lengths:
            self.lengths = self.rng.permutation(s.responses()).tolist()
        return Rollout(
            self.lengths.pop(), self.now, s.prompt_tokens, read=s.prompt_tokens, left=self.now
        )

    def stopped(self) -> bool:
        return self.setting.prefill_servers == 0 and bool(self.prefills)

    def resident(self) -> float:
        return self.holders - (1.0 - self.setting.tool_weight) * self.holders_in_tools

    def enter(self, rollout: Rollout) -> None:
        rollout.away += self.now - rollout.left
        self.to_read.append(rollout)

    def settle(self) -> None:
        """Admit whoever finds a place and start the prefills that find a server."""
        s = self.setting
        while self.outside and self.resident() + 1.0 <= s.places:
            rollout = self.outside.popleft()
            rollout.placed = True
            self.holders += 1
            self.enter(rollout)
        while self.to_read and len(self.prefills) < max(s.prefill_servers, 1):
            rollout = self.to_read.popleft()
            law, tokens = s.prefill, rollout.read
            seconds = tokens * (law.p1_s_per_token + law.p2_s_per_token2 * rollout.context)
            self.push(self.prefills, self.now + (law.p0_s if tokens else 0.0) + seconds, rollout)

    def decode_seconds(self) -> float:
        """Until the next sequence ends its turn, were nothing else to happen."""
        if not self.decoders or self.stopped():
            return math.inf
        fixed, growing = self.speed()
        tokens = self.decoders[0][0] - self.written
        return tokens * fixed + growing * tokens * tokens / 2.0

    def speed(self) -> tuple[float, float]:
        """Seconds of a step now, and by how much each step is longer than the one before."""
        law, count = self.setting.decode, len(self.decoders)
        touched = 1.0 - law.expert_miss**count
        step = law.alpha_s + law.expert_s * touched + law.beta_s * count
        return step + law.gamma_s_per_token * self.context, law.gamma_s_per_token * count

    def advance(self, seconds: float) -> None:
        """Let time pass: tokens are written, areas under the counts grow."""
        sums, count = self.sums, len(self.decoders)
        before = self.context
        if count and not self.stopped():
            fixed, growing = self.speed()
            root = math.sqrt(fixed * fixed + 2.0 * growing * seconds)
            tokens = 2.0 * seconds / (fixed + root)
            self.written += tokens
            self.context += count * tokens
        middle = (before + self.context) / 2.0
        sums.time += seconds
        sums.decoding += count * seconds
        sums.resident += self.resident() * seconds
        sums.context += middle * seconds
        self.now += seconds

    def sample(self) -> None:
        """Look at every context now (seen often enough, its mean square)."""
        s = self.setting
        for end, _, rollout in self.decoders:
            at_end = rollout.context + rollout.response / s.turns
            self.sums.context_squared += (at_end - (end - self.written)) ** 2

    def end_turn(self, rollout: Rollout) -> None:
        s = self.setting
        rollout.turn += 1
        rollout.left = self.now
        grown = rollout.response / s.turns
        self.context -= rollout.context + grown
        rollout.context += grown
        last = rollout.turn == s.turns
        if last or not s.held:
            rollout.placed = False
            self.holders -= 1
        if last:
            self.push(self.tools, self.now + s.last_s, rollout)
            return
        self.holders_in_tools += rollout.placed
        seconds = lognormal(self.rng, s.tool_s, s.tool_cv)
        self.sums.held += seconds
        self.sums.held_context += seconds * rollout.context
        rollout.context += s.tool_tokens
        rollout.read = s.tool_tokens if s.held else rollout.context
        self.push(self.tools, self.now + seconds, rollout)

    def end_tool(self, rollout: Rollout) -> None:
        if rollout.turn == self.setting.turns:
            residence = self.now - rollout.started
            away = rollout.away + self.now - rollout.left
            self.sums.finished.append((rollout.response, residence, residence - away))
            rollout = self.new()
        if rollout.placed:
            self.holders_in_tools -= 1
            self.enter(rollout)
        else:
            self.outside.append(rollout)

    def step(self) -> None:
        self.settle()
        decode = self.decode_seconds()
        prefill = self.prefills[0][0] - self.now if self.prefills else math.inf
        tool = self.tools[0][0] - self.now if self.tools else math.inf
        first = min(decode, prefill, tool)
        self.advance(max(first, 0.0))
        if first == prefill:
            rollout = heapq.heappop(self.prefills)[2]
            end = self.written + rollout.response / self.setting.turns
            self.context += rollout.context
            self.push(self.decoders, end, rollout)
        elif first == tool:
            self.end_tool(heapq.heappop(self.tools)[2])
        else:
            self.written = self.decoders[0][0]
            self.end_turn(heapq.heappop(self.decoders)[2])


def simulate(setting: Setting, rollouts: int, seed: int) -> Outcome:
    engine = Engine(setting, seed)
    engine.outside.extend(engine.new() for _ in range(setting.in_flight))
    warm = rollouts // 5
    while len(engine.sums.finished) < warm:
        engine.step()
    engine.sums, looks, events = Sums(), 0, 0
    while len(engine.sums.finished) < rollouts - warm:
        engine.step()
        events += 1
        if events % 20 == 0:
            engine.sample()
            looks += len(engine.decoders)
    sums = engine.sums
    lengths, residences, on_engine = np.array(sums.finished).T
    mean = sums.context / sums.decoding
    return Outcome(
        samples_per_s=len(lengths) / sums.time,
        decoding=sums.decoding / sums.time,
        resident=sums.resident / sums.time,
        decode_context_mean=mean,
        decode_context_sd=math.sqrt(max(sums.context_squared / looks - mean * mean, 0.0)),
        tool_context_mean=sums.held_context / sums.held if sums.held else 0.0,
        token_s=float(np.polyfit(lengths, on_engine, 1)[0]),
        residence_s=float(residences.mean()),
    )
