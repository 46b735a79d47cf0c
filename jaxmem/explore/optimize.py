"""Search a space by gradient, exactly.

Starts spread over the space descend together under vmap with Adam, in logarithmic or logit
coordinates and with a normalised loss. Whole-number fields are relaxed: the model is evaluated at
the lattice value nearest to the search point and the derivative passes straight through, so every
value that the search ever sees is exact. Constraints enter by an augmented Lagrangian. The best
points are then improved over their exact neighbours, and the winner is evaluated once more on its
own.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmem.core import design as records
from jaxmem.core import relax
from jaxmem.core.errors import InputError
from jaxmem.core.program import N_FEW, N_LANE, Program, unwrapped
from jaxmem.explore import space as spaces

N_ROUND = 4
"""Rounds of descent, after each of which the multipliers are updated."""
PENALTY = 30.0
"""Weight of a squared violation, in units of the logarithm of the objective."""
NOT_FEASIBLE = 1e3
"""Loss of a point that cannot run: worse than any that can."""
TOLERANCE = 1e-9
"""Relative slack within which a constraint counts as met."""


class Bound(NamedTuple):
    """A constraint: `sign * metric <= sign * value`."""

    metric: str
    value: float
    sign: int


def at_most(metric: str, value: float) -> Bound:
    """The metric must not exceed `value`."""
    return Bound(metric, float(value), 1)


def at_least(metric: str, value: float) -> Bound:
    """The metric must reach `value`."""
    return Bound(metric, float(value), -1)


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The best point found, evaluated exactly.

    Attributes:
        design: the best design.
        workload: its workload.
        metrics: what the scalar evaluation of the two gives.
        choice: value by path of every field of the space.
        binding: names of the constraints that hold with equality within 1 %.
        sensitivity: elasticity (d log objective / d log field) of every numeric field there.
        gap: how much worse than `compare_to`, relative; NaN where there is nothing to compare with.
        n_evaluation: points evaluated, one with its gradient counting once.
        n_gradient: of those, how many with their gradient.
        feasible: whether a point that meets every constraint was found.
    """

    design: Any
    workload: Any
    metrics: Any
    choice: dict[str, Any]
    binding: tuple[str, ...]
    sensitivity: dict[str, float]
    gap: float
    n_evaluation: int
    n_gradient: int
    feasible: bool


def optimize(
    fn: Callable,
    design: Any,
    workload: Any,
    space: Mapping[str, Any],
    *,
    minimize: str | None = None,
    maximize: str | None = None,
    subject_to: Sequence[Bound] = (),
    n_start: int = 32,
    n_step: int = 48,
    rate: float = 0.15,
    seed: int = 0,
    polish: bool = True,
    compare_to: float | None = None,
    direction: Callable[[Any, Any], Any] | None = None,
) -> Optimum:
    """The best point of a space.

    Args:
        fn: a pure function of (design, workload) that returns a record of metrics.
        design: the base design.
        workload: the base workload.
        space: by field path, a list of values (a lattice, or names to choose from) or `between`.
        minimize: the metric to make small; it must be positive.
        maximize: or the metric to make large; exactly one of the two.
        subject_to: constraints by `at_most` and `at_least`.
        n_start: searches run side by side; names are spread over them.
        n_step: gradient steps of each.
        rate: Adam's step in search coordinates, where a field's whole range is about 8.
        seed: of the starting points.
        polish: improve the best points over their exact neighbours at the end.
        compare_to: the objective of a known best point, for `gap`.
        direction: replaces the gradient, given (gradient, key): for ablations.

    Raises:
        InputError: unknown metric or field, or a space that does not fit.

    Source: augmented Lagrangian, Nocedal and Wright, Numerical Optimization, ch. 17; Adam by optax.

    Example:
        >>> import jaxmem as jm
        >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
        >>> best = optimize(jm.pim.evaluate, d, jm.Decode.create(batch=8, context_tokens=1024),
        ...                 {"ch_per_head": [1, 2, 4, 8]}, minimize="latency_s", n_start=4)
        >>> best.choice["ch_per_head"]
        4.0
    """
    if (minimize is None) == (maximize is None):
        raise InputError("minimize", (minimize, maximize), "exactly one of minimize and maximize")
    bound = spaces.bind(design, workload, space)
    goal = _Goal(minimize or maximize or "", 1 if minimize else -1, tuple(subject_to))
    goal.check(fn, bound)
    search = _Search(fn, bound, goal)

    pool = _pool(bound, 4 * n_start, seed)
    scores = search.scores(pool)
    best_first = _take(pool, _spread_order(bound, pool, scores)[:n_start])
    visited, n_gradient = search.descend(best_first, n_step, rate, seed, direction)
    candidates = _join(pool, visited)
    scores = np.concatenate([scores, search.scores(visited)])
    n_evaluation = len(pool[0]) + n_gradient + len(visited[0])
    chosen = _take(candidates, np.argsort(scores, kind="stable")[: max(1, n_start // 4)])
    if polish:
        chosen, n_polish = search.polish(chosen)
        n_evaluation += n_polish
    winner = _take(chosen, np.argsort(search.scores(chosen), kind="stable")[:1])
    return search.report(winner, compare_to, n_evaluation, n_gradient)


class _Goal(NamedTuple):
    metric: str
    sign: int
    constraints: tuple[Bound, ...]

    def check(self, fn, bound: spaces.Space) -> None:
        with jax.enable_x64(True):
            shape = jax.eval_shape(unwrapped(fn), *bound.base)
        for metric in (self.metric, *(c.metric for c in self.constraints)):
            if metric not in dict(_metric_paths(shape)):
                known = dict(_metric_paths(shape))
                raise InputError("metric", metric, "a metric", known=known)

    def loss(self, metrics):
        """Logarithm of the objective, to be made small."""
        value = _metric(metrics, self.metric)
        return self.sign * jnp.log(jnp.maximum(value, 1e-300))

    def violations(self, metrics):
        """For each constraint, by how much its logarithm is broken; negative where met."""
        return jnp.asarray(
            [
                c.sign
                * (jnp.log(jnp.maximum(_metric(metrics, c.metric), 1e-300)) - math.log(c.value))
                for c in self.constraints
            ]
        ).reshape(len(self.constraints))


class _Search:
    """Evaluations of one space under one goal; points are columns, one a field."""

    def __init__(self, fn: Callable, bound: spaces.Space, goal: _Goal) -> None:
        self.fn, self.bound, self.goal = fn, bound, goal
        self.moves = [i for i, f in enumerate(bound.field) if f.is_number]

    def scores(self, columns) -> np.ndarray:
        """[point] loss, with broken constraints and infeasible points far behind."""
        n = len(columns[0])
        size = N_FEW if n <= N_FEW else N_LANE  # few sizes, so few programs
        if n > size:
            halves = [[c[:size] for c in columns], [c[size:] for c in columns]]
            return np.concatenate([self.scores(half) for half in halves])
        full = [np.concatenate([c, np.repeat(c[-1:], size - n)]) for c in columns]
        axis = spaces.points(self.bound, full)
        metrics = Program(self.fn, self.bound.base, (axis,)).run(0, size)
        with jax.enable_x64(True):
            loss, broken = jax.vmap(lambda m: (self.goal.loss(m), self.goal.violations(m)))(metrics)
        loss, broken = np.asarray(loss)[:n], np.asarray(broken)[:n]
        worst = broken.max(axis=1, initial=-np.inf)
        loss = np.where(worst > TOLERANCE, NOT_FEASIBLE / 2 + worst, loss)
        feasible = np.asarray(metrics.feasible)[:n].astype(bool)
        return np.where(feasible & np.isfinite(loss), loss, NOT_FEASIBLE)

    def descend(self, start, n_step: int, rate: float, seed: int, direction):
        """Adam from every start: the best point that each visited, and how many gradients."""
        import optax

        if not self.moves:
            return start, 0
        fixed = [jnp.asarray(c) for c in start]
        adam = optax.adam(rate)
        n_start = len(start[0])

        def loss(z, choice, weight):
            metrics = unwrapped(self.fn)(*self._at(z, choice))
            violation = self.goal.violations(metrics)
            active = jnp.maximum(violation + weight / PENALTY, 0)
            value = self.goal.loss(metrics)
            total = value + PENALTY / 2 * jnp.sum(active**2)
            met = jnp.all(violation <= TOLERANCE) & (metrics.feasible > 0) & jnp.isfinite(total)
            total = jnp.where(jnp.isfinite(total), total, NOT_FEASIBLE)
            return total, (jnp.where(met, value, jnp.inf), jnp.nan_to_num(violation))

        def descend_one(z, choice, key):
            def one_step(carry, key):
                z, state, weight, best_z, best, violation = carry
                (_, (value, violation)), g = jax.value_and_grad(loss, has_aux=True)(
                    z, choice, weight
                )
                is_better = value < best
                best_z = jnp.where(is_better, z, best_z)
                best = jnp.minimum(value, best)
                g = direction(g, key) if direction else jnp.nan_to_num(g)
                update, state = adam.update(g, state, z)
                return (z + update, state, weight, best_z, best, violation), None

            def one_round(carry, keys):
                carry, _ = jax.lax.scan(one_step, carry, keys)
                z, state, weight, best_z, best, violation = carry
                weight = jnp.maximum(weight + PENALTY * violation, 0)
                return (z, state, weight, best_z, best, violation), None

            n_bound = len(self.goal.constraints)
            zero = jnp.zeros(n_bound)
            carry = (z, adam.init(z), zero, z, jnp.inf, zero)
            keys = jax.random.split(key, (N_ROUND, -(-n_step // N_ROUND)))
            carry, _ = jax.lax.scan(one_round, carry, keys)
            return carry[3]

        with jax.enable_x64(True):
            z = jnp.stack([self._to_z(i, c) for i, c in enumerate(start) if i in self.moves], -1)
            keys = jax.random.split(jax.random.key(seed), n_start)
            best_z = jax.jit(jax.vmap(descend_one))(z, fixed, keys)
            found = jax.vmap(self._from_z)(best_z, fixed)
        n_gradient = n_start * N_ROUND * -(-n_step // N_ROUND)
        return [np.asarray(c) for c in found], n_gradient

    def polish(self, columns):
        """Move each point to its best exact neighbour until none is better."""
        n_evaluation, scale = 0, 0.1
        score = self.scores(columns)
        for _ in range(64):
            around, owner = self._neighbours(columns, scale)
            near = self.scores(around)
            n_evaluation += len(near)
            moved = False
            for i in range(len(score)):
                mine = np.flatnonzero(owner == i)
                if len(mine) and near[mine].min() < score[i] - 1e-12:
                    pick = mine[near[mine].argmin()]
                    score[i], moved = near[pick], True
                    for column, other in zip(columns, around, strict=True):
                        column[i] = other[pick]
            if not moved:
                scale /= 4
            if scale < 1e-5 or (not moved and all(f.range is None for f in self.bound.field)):
                break
        return columns, n_evaluation

    def report(self, winner, compare_to, n_evaluation: int, n_gradient: int) -> Optimum:
        """The winner, evaluated on its own."""
        picks = [c[0] for c in winner]
        design, workload = spaces.at(self.bound, picks)
        metrics = self.fn(design, workload)
        score = float(self.scores(winner)[0])
        value = float(_metric(metrics, self.goal.metric))
        gap = math.nan if compare_to is None else self.goal.sign * (value / compare_to - 1)
        binding = tuple(
            c.metric
            for c in self.goal.constraints
            if abs(float(_metric(metrics, c.metric)) / c.value - 1) < 0.01
        )
        choice = {
            f.path: float(pick) if f.range is not None else _shown(f, int(pick))
            for f, pick in zip(self.bound.field, picks, strict=True)
        }
        return Optimum(
            design=design,
            workload=workload,
            metrics=metrics,
            choice=choice,
            binding=binding,
            sensitivity=self._sensitivity(winner),
            gap=gap,
            n_evaluation=n_evaluation + 1,
            n_gradient=n_gradient,
            feasible=score < NOT_FEASIBLE / 2,
        )

    def _sensitivity(self, winner) -> dict[str, float]:
        picks = [jnp.asarray(c[0]) for c in winner]
        names = [self.bound.field[i].path for i in self.moves]

        def loss(logs):
            return self.goal.sign * self.goal.loss(
                unwrapped(self.fn)(
                    *self._with(dict(zip(self.moves, jnp.exp(logs), strict=True)), picks)
                )
            )

        with jax.enable_x64(True):
            values = jnp.asarray([self._value(i, picks[i]) for i in self.moves])
            slope = np.asarray(jax.jit(jax.grad(loss))(jnp.log(jnp.maximum(values, 1e-300))))
        return {n: float(s) for n, s in zip(names, slope, strict=True)}

    # Search coordinates: a field's range is the logit of its place between its bounds.

    def _ends(self, i: int) -> tuple[float, float, bool]:
        f = self.bound.field[i]
        if f.range is not None:
            return f.range.low, f.range.high, f.range.log
        low, high = float(min(f.values)), float(max(f.values))
        return low, high, low > 0 and high / low > 4

    def _to_z(self, i: int, column):
        low, high, log = self._ends(i)
        value = self._value(i, column)
        if high == low:
            return jnp.zeros_like(value)
        place = jnp.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
        place = jnp.clip(place, 0.02, 0.98)
        return jnp.log(place / (1 - place))

    def _from_place(self, i: int, z):
        low, high, log = self._ends(i)
        place = jax.nn.sigmoid(z)
        value = low * jnp.exp(place * math.log(high / low)) if log else low + place * (high - low)
        if self.bound.field[i].range is None:
            return relax.snap(value, tuple(float(v) for v in self.bound.field[i].values))
        return relax.round(value) if self.bound.field[i].spec.is_integer else value

    def _value(self, i: int, column):
        f = self.bound.field[i]
        if f.range is not None:
            return jnp.asarray(column)
        return jnp.asarray([float(v) for v in f.values])[jnp.asarray(column)]

    def _at(self, z, choice):
        return self._with({i: self._from_place(i, z[k]) for k, i in enumerate(self.moves)}, choice)

    def _with(self, value: dict[int, Any], choice):
        """(design, workload) with numbers set to values and everything else chosen by index."""
        leaves, treedef = jax.tree.flatten(self.bound.base)
        tables = [
            None if i in value else spaces._table(f.values) for i, f in enumerate(self.bound.field)
        ]
        for i, positions in enumerate(self.bound.leaf):
            if i in value:
                leaves[positions[0]] = value[i]
            else:
                for position, table in zip(positions, tables[i] or (), strict=True):
                    leaves[position] = jnp.asarray(table)[choice[i]]
        return jax.tree.unflatten(treedef, leaves)

    def _from_z(self, z, choice):
        found = list(choice)
        for k, i in enumerate(self.moves):
            f, value = self.bound.field[i], self._from_place(i, z[k])
            if f.range is not None:
                found[i] = value
            else:
                values = jnp.asarray([float(v) for v in f.values])
                found[i] = jnp.argmin(jnp.abs(values - value))
        return found

    def _neighbours(self, columns, scale: float):
        """All points one move away: a lattice step, another name, or a shift along a range.

        Lattice moves also come in pairs, since two fields often trade against each other.
        """
        steps: list[list[tuple[int, float]]] = []
        single: list[tuple[int, float]] = []
        for i, f in enumerate(self.bound.field):
            if f.range is not None or f.is_number:
                single += [(i, -1.0), (i, 1.0)]
            else:
                single += [(i, float(k)) for k in range(1, len(f.values))]
        steps += [[s] for s in single]
        steps += [[a, b] for a, b in itertools.combinations(single, 2) if a[0] != b[0]]
        n, rows, owner = len(columns[0]), [], []
        for move in steps:
            moved = [c.copy() for c in columns]
            for i, size in move:
                moved[i] = self._shift(i, moved[i], size, scale)
            rows.append(moved)
            owner.append(np.arange(n))
        around = [np.concatenate([r[i] for r in rows]) for i in range(len(columns))]
        return around, np.concatenate(owner)

    def _shift(self, i: int, column, size: float, scale: float):
        f = self.bound.field[i]
        if f.range is None and f.is_number:
            order = np.argsort([float(v) for v in f.values])
            rank = np.argsort(order)[column]
            return order[np.clip(rank + int(size), 0, len(order) - 1)]
        if f.range is None:
            return (column + int(size)) % len(f.values)
        low, high, log = self._ends(i)
        if log:
            moved = column * (high / low) ** (size * scale)
        else:
            moved = column + size * scale * (high - low)
        moved = np.round(moved) if f.spec.is_integer else moved
        return np.clip(moved, low, high)


def _pool(bound: spaces.Space, n: int, seed: int) -> list[np.ndarray]:
    columns = [np.asarray(c) for c in spaces.sample(bound, n, seed)]
    for i, f in enumerate(bound.field):
        if f.range is not None and f.spec.is_integer:
            columns[i] = np.round(columns[i])
    return columns


def _spread_order(bound: spaces.Space, pool, scores) -> np.ndarray:
    """Best first, but every combination of names in turn, so that none is left out."""
    names = [c for c, f in zip(pool, bound.field, strict=True) if not f.is_number]
    order = np.argsort(scores, kind="stable")
    if not names:
        return order
    _, group = np.unique(np.stack(names), axis=1, return_inverse=True)
    turn = np.zeros(len(order), int)
    for g in np.unique(group):
        mine = order[group[order] == g]
        turn[mine] = np.arange(len(mine))
    return order[np.argsort(turn[order], kind="stable")]


def _take(columns, index) -> list[np.ndarray]:
    return [np.array(c[index]) for c in columns]


def _join(a, b) -> list[np.ndarray]:
    return [np.concatenate([x, y]) for x, y in zip(a, b, strict=True)]


def _metric(metrics: Any, path: str) -> Any:
    head, _, rest = path.partition(".")
    value = getattr(metrics, head)
    return value[rest] if rest else value


def _metric_paths(metrics: Any):
    for name in records.specs(metrics):
        value = getattr(metrics, name)
        if isinstance(value, dict):
            yield from ((f"{name}.{child}", None) for child in value)
        else:
            yield name, None


def _shown(f: spaces.Field, pick: int) -> Any:
    return float(f.values[pick]) if f.is_number else f.labels[pick]
