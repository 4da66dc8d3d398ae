"""The search: which candidates of a space to measure next, and which one is best.

`Search.ask` gives requests to measure, `Search.tell` takes results. A runner in this process, or workers on
other machines, serve the requests in any order: with equal results, equal seeds give equal searches.

The plan: the default; seeds (an analytic model's best, a database's); batches that a classifier chooses;
descent to a point without better neighbours; a final on fresh measurements. The classifier is that of LFBO
(Song, Yu, Neiswanger and Ermon, "A General Recipe for Likelihood-free Bayesian Optimization", ICML 2022):
trained to tell the better third of the points from all, each better point weighted by its improvement, it
estimates the expected improvement. Its trees are extremely randomized (Geurts, Ernst and Wehenkel, 2006).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ..driver.tuning_database import Failure
from .space import Key, Point, Space, Values, is_ordered
from .statistics import UNKNOWN, Estimate, estimate, lower_bound

Stage = Literal["race", "final"]
_WORST = -3.0
"""The log speedup that stands for a failure in the model, and the least that it sees."""


@dataclass(frozen=True)
class Settings:
    """Numbers of the search."""

    trials: int = 100
    """The most candidates that are compiled and measured, the default not counted."""
    batch: int = 8
    """Candidates of a batch."""
    far: float = 0.2
    """The share of a batch that is far from the best points."""
    best: int = 3
    """The points whose neighbours the classifier chooses from."""
    seeds: int = 24
    """The points that the analytic model chooses at the start."""
    sample: int = 2000
    """The random points from which it chooses."""
    blocks: int = 5
    """Blocks of the first measurement of a candidate; each is one sample of its speedup."""
    most_blocks: int = 20
    """Blocks after which a race ends without a winner."""
    trees: int = 40
    """Trees of the classifier."""
    quantile: float = 1 / 3
    """The share of points that it learns as good."""
    patience: int = 2
    """Batches without improvement after which the descent begins."""
    finalists: int = 8
    """Candidates of the final."""
    final_blocks: int = 8
    """Blocks of each process of the final; the better half of the finalists is measured again and again."""
    final_rounds: int = 10
    """Rounds that measure the last two finalists again where it is not clear that one is better."""
    final_processes: int = 6
    """Processes that measure each finalist in each round."""
    margin: float = 0.003
    """The least improvement that is accepted, with confidence."""
    risk: float = 0.005
    """The probability that a candidate as fast as the default is accepted, if measuring is unbiased, even
    without the margin.
    """


@dataclass(frozen=True)
class Request:
    """A measurement to do: a candidate beside the default, in a process of its own."""

    number: int
    """Unique within the search."""
    point: Point
    blocks: int
    """The samples wanted: one for each A-B-B-A block."""
    stage: Stage = "race"


@dataclass(frozen=True)
class Result:
    """The result of a request."""

    samples: tuple[float, ...] = ()
    """Natural logarithms of the speedup, the default's time ÷ the candidate's, one for each block."""
    failure: Failure | None = None
    """Why there are no samples. The candidate is out."""
    digest: str = ""
    """A digest of the candidate's code. Equal code is one candidate."""


@dataclass
class _Candidate:
    """A measured point."""

    point: Point
    groups: list[tuple[float, ...]] = field(default_factory=list)
    failure: Failure | None = None
    fresh: list[tuple[float, ...]] = field(default_factory=list)
    """Samples of the final."""
    cached: Estimate | None = None
    same_as: _Candidate | None = None

    @property
    def now(self) -> Estimate:
        if self.failure is not None or not self.groups:
            return UNKNOWN
        if self.cached is None:
            pooled = [sample for group in self.groups for sample in group]
            self.cached = estimate([pooled], 0.95, 200)
        return self.cached

    @property
    def score(self) -> float:
        return self.now.median


@dataclass(frozen=True)
class Outcome:
    """The end of a search."""

    point: Point
    """The best point: the default, unless another one is better with confidence."""
    estimate: Estimate
    """Its log speedup, from the final's fresh measurements; zero for the default."""
    trials: int
    """Candidates that were measured."""
    failures: int
    """Candidates that failed."""


def _distance(one: Values, other: Values) -> int:
    """The number of knobs in which choices differ."""
    return sum(one.get(name) != other.get(name) for name in {*one, *other})


class Search:
    """One search of one kernel's space.

    Args:
        space: The points.
        seed: The seed of all random decisions.
        settings: Numbers of the search.
        seeds: Choices to measure first, such as those of a database.
        prior: An analytic estimate of the time of a point (any monotonic function of it) from its values.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed: pip install 'tilewright[tune]'.
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        settings: Settings = Settings(),
        seeds: Iterable[Values] = (),
        prior: Callable[[Values], float] | None = None,
    ) -> None:
        import sklearn.ensemble  # noqa: F401  # missing packages are reported now, not after the first batch

        self.space, self.settings, self.prior = space, settings, prior
        self._seeds = [dict(seed) for seed in seeds]
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._measured: dict[Key, _Candidate] = {}
        self._by_digest: dict[str, _Candidate] = {}
        self._open: dict[int, Request] = {}
        self._told: dict[int, Result] = {}
        self._number = 0
        self._descended: set[Key] = set()
        self._finishing = self._in_final = False
        self.outcome: Outcome | None = None
        """The end; None while the search goes on."""
        self._fitted: tuple[object, Any] | None = None
        self._plan = self._run()

    # -- Asking and telling --

    def ask(self) -> list[Request]:
        """The requests without a result, all of which may be served at once; none when the search is over."""
        if not self._open and self.outcome is None:
            told, self._told = self._told, {}
            try:
                requests = next(self._plan) if not told else self._plan.send(told)
            except StopIteration:
                return []
            self._open = {request.number: request for request in requests}
        return list(self._open.values())

    def tell(self, request: Request, result: Result) -> None:
        """Give the result of a request. A second result of a request is ignored."""
        if self._open.pop(request.number, None) is not None:
            self._told[request.number] = result

    def finish(self, finalists: int | None = None) -> None:
        """Propose nothing more: after the open requests the final follows, with at most so many
        candidates.
        """
        self._finishing = True
        if finalists is not None:
            self.settings = replace(self.settings, finalists=finalists)

    @property
    def is_final(self) -> bool:
        """Whether the final has begun, or the search is over."""
        return self._in_final

    @property
    def trials(self) -> int:
        """Candidates measured so far, without the default and without those of equal code."""
        return sum(c.same_as is None for c in self._measured.values())

    @property
    def failures(self) -> int:
        """Candidates that failed."""
        return sum(c.failure is not None for c in self._measured.values())

    @property
    def leader(self) -> tuple[Point, Estimate]:
        """The best point so far, by measurements that also chose it: too good by a little."""
        best = self._ranking(1)
        if best and best[0].score > 0:
            return best[0].point, best[0].now
        return self.space.default, Estimate(0.0, 0.0, 0.0, 0)

    def known(self, digest: str) -> Result | None:
        """The result of a candidate with the same code, which a runner tells again instead of measuring."""
        candidate = self._by_digest.get(digest)
        if candidate is None:
            return None
        pooled = tuple(sample for group in candidate.groups for sample in group)
        return Result(pooled, candidate.failure, digest)

    # -- The plan --

    def _run(self) -> Generator[list[Request], dict[int, Result], None]:
        s = self.settings
        yield from self._race(self._initial())
        idle = 0
        while self._left() > 0:
            before = self._best_score()
            batch = self._propose()
            if batch:
                yield from self._race(batch)
            idle = 0 if self._best_score() > before + 0.002 else idle + 1
            if idle >= s.patience or not batch:
                moved = yield from self._descend()
                idle = 0
                if not moved and not batch:
                    break
        yield from self._final()

    def _left(self) -> int:
        return 0 if self._finishing else self.settings.trials - self.trials

    def _best_score(self) -> float:
        return max((c.score for c in self._measured.values()), default=0.0)

    def _ranking(self, most: int) -> list[_Candidate]:
        able = [c for c in self._measured.values() if c.failure is None and c.groups and c.same_as is None]
        return sorted(able, key=lambda c: (-c.score, repr(c.point.key)))[:most]

    def _new(self, proposals: Iterable[Values], most: int) -> list[Point]:
        """The first `most` points among proposals that are feasible and not measured."""
        found: dict[Key, Point] = {}
        for overrides in proposals:
            if len(found) >= most:
                break
            point = self.space.point(overrides)
            if point is not None and point.key not in self._measured and point.key != self.space.default.key:
                found.setdefault(point.key, point)
        return list(found.values())

    def _initial(self) -> list[Point]:
        s, space = self.settings, self.space
        points = self._new(self._seeds, s.trials)
        near = space.neighbours(space.default)
        for overrides in near:
            if not is_ordered(next(c.domain for c in space.default.choices if c.name in overrides)):
                space.point(overrides)  # may reveal knobs
        if self.prior is None:
            proposals = near + [space.nearby(space.default, self._rng) for _ in range(20 * s.batch)]
            count = s.batch
            proposals = [proposals[i] for i in self._rng.permutation(len(proposals))]
        else:
            proposals = near + [space.scattered(space.default, self._rng) for _ in range(s.sample)]
            times = np.array([self.prior(space.expected(p)) for p in proposals])
            proposals = self._varied([proposals[i] for i in np.argsort(times, kind="stable")], s.seeds)
            count = s.seeds
        known = {p.key for p in points}
        more = [p for p in self._new(proposals, count + len(points)) if p.key not in known]
        return [*points, *more][: self._left()] if self._left() > 0 else []

    def _varied(self, proposals: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
        """The proposals in an order in which the first `count` are varied: half of them are the first ones
        that differ in two knobs from each other, half the first ones with each value of each knob without
        order. An analytic model that errs in such a knob errs in all of its best points.
        """
        varied: list[dict[str, Any]] = []
        for proposal in proposals:
            if len(varied) == count // 2:
                break
            if all(_distance(proposal, other) >= 2 for other in varied):
                varied.append(proposal)
        values = [
            (n, v) for n, domain in self.space.domains.items() if not is_ordered(domain) for v in domain
        ]
        for name, value in values * 2:
            others = (p for p in proposals if self.space.expected(p).get(name) == value and p not in varied)
            first = next(others, None)
            if first is not None and sum(self.space.expected(p).get(name) == value for p in varied) < 4:
                varied.append(first)
        return [*varied, *(p for p in proposals if p not in varied)]

    def _race(self, points: Sequence[Point]) -> Generator[list[Request], dict[int, Result], None]:
        """Measure points; again those that may be the best, until one leads or the blocks are used up."""
        s = self.settings
        candidates = []
        for point in points:
            candidate = self._measured[point.key] = _Candidate(point)
            candidates.append(candidate)
        yield from self._measure(candidates, s.blocks)
        blocks = s.blocks
        while blocks < s.most_blocks and not self._finishing:
            lead = self._ranking(1)
            if not lead or lead[0].score <= 0:
                return
            rivals = {id(c): c for c in [*candidates, lead[0]] if c.failure is None and c.same_as is None}
            open_ = [
                c
                for c in rivals.values()
                if c.now.count < s.most_blocks and (c is lead[0] or c.now.upper > lead[0].now.lower)
            ]
            if not open_ or open_ == [lead[0]]:
                return
            yield from self._measure(open_, s.blocks)
            blocks += s.blocks

    def _measure(
        self, candidates: Sequence[_Candidate], blocks: int, stage: Stage = "race", times: int = 1
    ) -> Generator[list[Request], dict[int, Result], None]:
        requests: dict[int, tuple[Request, _Candidate]] = {}
        for _ in range(times):
            for candidate in candidates:
                self._number += 1
                request = Request(self._number, candidate.point, blocks, stage)
                requests[request.number] = request, candidate
        if not requests:
            return
        told = yield [request for request, _ in requests.values()]
        for number, (_, candidate) in requests.items():
            result = told[number]
            if result.failure is not None:
                candidate.failure = result.failure
            elif stage == "final":
                candidate.fresh.append(result.samples)
            else:
                candidate.groups.append(result.samples)
            candidate.cached = None
            if result.digest and candidate.same_as is None:
                first = self._by_digest.setdefault(result.digest, candidate)
                candidate.same_as = None if first is candidate else first

    # -- The model --

    def _propose(self) -> list[Point]:
        s, space = self.settings, self.space
        count = min(s.batch, self._left())
        far_count = round(s.far * count)
        bases = self._bases()
        near: list[dict[str, Any]] = []
        for base in bases:
            near += space.neighbours(base)
            near += [o for c in base.choices for o in space.along(base, c.name)]
            near += [space.nearby(base, self._rng, 3) for _ in range(60)]
        far = [space.scattered(bases[i % len(bases)], self._rng) for i in range(200)]
        points = self._new(self._sorted(near), count - far_count)
        keys = {p.key for p in points}
        points += [p for p in self._new(self._sorted(far), count) if p.key not in keys][: count - len(points)]
        return points

    def _bases(self) -> list[Point]:
        """The best points that differ from each other in two knobs; the default where there is none."""
        bases: list[Point] = []
        for candidate in self._ranking(10 * self.settings.best):
            if all(_distance(candidate.point.values, other.values) >= 2 for other in bases):
                bases.append(candidate.point)
        return bases[: self.settings.best] or [self.space.default]

    def _sorted(self, proposals: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Proposals by the model's expected improvement, the best first; equal ones in random order."""
        unique = list({tuple(sorted(p.items())): p for p in proposals}.values())
        mixed = [unique[i] for i in self._rng.permutation(len(unique))]
        values = self._improvement([self.space.expected(p) for p in mixed])
        return [mixed[i] for i in np.argsort(-values, kind="stable")]

    def _features(self, values: Sequence[Values]) -> np.ndarray:
        features = self.space.features(values)
        if self.prior is not None:
            priors = np.array([self.prior(v) for v in values], float)
            features = np.column_stack([features, np.nan_to_num(priors, posinf=1e30)])
        return features

    def _improvement(self, values: Sequence[Values]) -> np.ndarray:
        """The expected improvement of each point up to a factor, by LFBO's weighted classifier."""
        model = self._classifier()
        if model is None or not values:
            return np.zeros(len(values))
        return np.asarray(model.predict_proba(self._features(values))[:, 1])

    def _classifier(self) -> Any:
        """The classifier fitted to all measurements; None where no point is better than the others."""
        from sklearn.ensemble import ExtraTreesClassifier

        known = [c for c in self._measured.values() if c.failure is not None or c.groups]
        state = self._number, len(self.space.domains)
        if self._fitted is not None and self._fitted[0] == state:
            return self._fitted[1]
        scores = np.array([max(c.score, _WORST) if c.failure is None else _WORST for c in known] + [0.0])
        threshold = float(np.quantile(scores, 1 - self.settings.quantile))
        good = scores > threshold
        model = None
        if good.any():
            inputs = self._features([*(c.point.values for c in known), self.space.default.values])
            gain = scores[good] - threshold
            weights = np.concatenate([np.ones(len(scores)), gain / gain.mean()])
            labels = np.concatenate([np.zeros(len(scores)), np.ones(int(good.sum()))])
            random = np.random.RandomState([self._seed % 2**32, self._number])
            model = ExtraTreesClassifier(self.settings.trees, max_features=None, random_state=random)
            model.fit(np.concatenate([inputs, inputs[good]]), labels, sample_weight=weights)
        self._fitted = state, model
        return model

    # -- Descent and final --

    def _descend(self) -> Generator[list[Request], dict[int, Result], bool]:
        """Move to the best neighbour until none is better; return whether anything was measured."""
        s, any_ = self.settings, False
        while self._left() > 0:
            ranking = [c for c in self._ranking(s.best) if c.point.key not in self._descended]
            if not ranking:
                return any_
            base = ranking[0]
            while self._left() > 0:
                ordered = self._sorted(self.space.neighbours(base.point))
                points = self._new(ordered, min(s.batch, self._left()))
                if not points:
                    self._descended.add(base.point.key)
                    return any_
                any_ = True
                yield from self._race(points)
                best = self._ranking(1)
                if best and best[0] is not base and best[0].score > base.score:
                    break
        return any_

    def _final(self) -> Generator[list[Request], dict[int, Result], None]:
        """Measure the finalists afresh, halving their number each round; accept the best with confidence.

        The bound holds for all finalists and rounds together (Bonferroni), and no sample that chose them
        counts.
        """
        s, self._in_final = self.settings, True
        finalists = [c for c in self._ranking(s.finalists) if c.score > 0]
        risk = s.risk / max(1, len(finalists)) / (1 + s.final_rounds)
        running = finalists
        while running:
            yield from self._measure(running, s.final_blocks, "final", s.final_processes)
            running = [c for c in running if c.failure is None]
            running.sort(key=lambda c: -estimate(c.fresh, resamples=200).median)
            if len(running) <= 2:
                break
            running = running[: len(running) // 2]
        least = math.log1p(s.margin)
        for _ in range(s.final_rounds):
            if any(lower_bound(c.fresh, risk) > least for c in running):
                break
            running = [c for c in running if estimate(c.fresh, resamples=200).median > least]
            if not running:
                break
            yield from self._measure(running, s.final_blocks, "final", s.final_processes)
            running = [c for c in running if c.failure is None]
        chosen, chosen_estimate = self.space.default, Estimate(0.0, 0.0, 0.0, 0)
        for candidate in running:
            found = estimate(candidate.fresh, 1 - risk, 10_000)
            found = replace(found, lower=lower_bound(candidate.fresh, risk))
            if found.lower > least and found.median > chosen_estimate.median:
                chosen, chosen_estimate = candidate.point, found
        self.outcome = Outcome(chosen, chosen_estimate, self.trials, self.failures)
