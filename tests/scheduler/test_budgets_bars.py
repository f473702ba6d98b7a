"""The bars of predictive budgets in virtual time: the scheduler's real core, providers that count as real ones."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from common.ids import ReplicaName
from common.pool import Replica
from fakes.provider.windows import Bucket
from scheduler.budgets.prediction import Histories, learn, predict
from tests.scheduler.virtual_provider import Agent, Provider, World


def limited(limits: Mapping[str, float]) -> Replica:
    return Replica(ReplicaName("a"), "http://a", models=("m",), limits=limits)


LEARNED = (limited({}),)


def lognormal(chance: random.Random, _: int) -> int:
    return max(1, round(chance.lognormvariate(4.2, 0.4)))


def agents(count: int = 20, steps: int = 12) -> list[Agent]:
    return [Agent(f"r{number}", steps, 150, 1000, lognormal) for number in range(count)]


def fluid_s(world: World) -> float:
    """The least time in which what was served can be: less the initial burst, at the rate of the refill."""
    tokens = sum(provider.served_tokens for provider in world.providers.values())
    limit = sum(provider.tokens.limit for provider in world.providers.values())
    return (tokens - limit) / limit * 60


def refusals(world: World) -> int:
    return sum(len(provider.refused_at) for provider in world.providers.values())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_twenty_agents_share_a_small_window_without_a_429_in_the_fluid_time(seed: int) -> None:
    world = World({"a": Provider(Bucket(6000), Bucket(30))}, agents(), seed)
    world.run()
    assert refusals(world) == 0
    assert all(agent.done == 12 for agent in world.agents)
    assert world.wall_s <= 1.03 * fluid_s(world)
    # Were started runs always first, the last one would wait for nearly all of the time.
    assert max(world.waits_s) <= 0.2 * world.wall_s


def test_limits_are_learned_from_answers_alone() -> None:
    world = World({"a": Provider(Bucket(6000), Bucket(30))}, agents(), 4, pool=LEARNED)
    world.run()
    assert refusals(world) == 0
    assert world.wall_s <= 1.03 * fluid_s(world)


def test_configured_limits_suffice_where_no_header_comes() -> None:
    world = World({"a": Provider(Bucket(6000), Bucket(30), family="none")}, agents(), 5)
    world.run()
    assert refusals(world) == 0
    assert world.wall_s <= 1.03 * fluid_s(world)


@pytest.mark.parametrize("median_s", [0.005, 0.05, 0.4])
@pytest.mark.parametrize("pool", [(), LEARNED])
def test_an_uneven_way_on_which_turns_overtake_each_other_costs_no_429(
    median_s: float, pool: tuple[Replica, ...]
) -> None:
    world = World({"a": Provider(Bucket(6000), Bucket(30))}, agents(), 1, pool=pool, uneven=True)
    world.way_s = lambda chance: median_s * min(8.0, chance.lognormvariate(0, 1))
    world.run()
    assert refusals(world) == 0
    assert world.wall_s <= 1.03 * fluid_s(world)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_provider_that_tells_nothing_but_its_429s_is_learned_from_them(seed: int) -> None:
    """Without windows of our own this is two thousand 429s."""
    world = World({"a": Provider(Bucket(6000), Bucket(30), family="none")}, agents(), seed, pool=LEARNED)
    world.run()
    refused_at = world.providers["a"].refused_at
    assert sum(at > refused_at[0] + 1 for at in refused_at) <= 4, "after the turns that were in flight at the first one"
    assert world.wall_s <= 1.08 * fluid_s(world)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("pool", [(), LEARNED])
def test_fixed_windows_are_recognised_by_answers_without_a_429(seed: int, pool: tuple[Replica, ...]) -> None:
    fixed = Provider(Bucket(6000, fixed=True), Bucket(30, fixed=True))
    world = World({"a": fixed}, agents(), seed, pool=pool)
    world.run()
    assert refusals(world) == 0
    assert world.wall_s <= 1.2 * fluid_s(world)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_limit_by_the_minute_is_kept_where_answers_tell_of_one_by_the_day(seed: int) -> None:
    """As Groq does, whose requests a minute nothing tells of."""
    limits = {"requests_per_minute": 10, "tokens_per_minute": 60000}
    world = World({"a": Provider(Bucket(60000), Bucket(10), family="groq")}, agents(), seed, pool=(limited(limits),))
    world.run()
    assert refusals(world) == 0
    assert world.wall_s <= 1.03 * (world.turns - 10) * 60 / 10


@pytest.mark.parametrize("seed", [1, 2])
def test_a_limit_by_the_minute_that_nothing_tells_of_is_learned_beside_what_answers_tell(seed: int) -> None:
    """Else the windows that are told, which have plenty left, are believed ever less: it took twice as long."""
    world = World({"a": Provider(Bucket(60000), Bucket(10), family="groq")}, agents(), seed, pool=LEARNED)
    world.run()
    refused_at = world.providers["a"].refused_at
    assert sum(at > refused_at[0] + 1 for at in refused_at) <= 4
    assert world.wall_s <= 1.03 * (world.turns - len(refused_at) - 10) * 60 / 10


@pytest.mark.parametrize("seed", [1, 2])
def test_no_more_is_used_than_is_configured_where_the_provider_grants_more(seed: int) -> None:
    limits = {"tokens_per_minute": 3000, "requests_per_minute": 15}
    provider = Provider(Bucket(6000), Bucket(30))
    world = World({"a": provider}, agents(), seed, pool=(limited(limits),))
    world.run()
    assert refusals(world) == 0
    assert provider.served_tokens - 3000 <= 3000 * world.wall_s / 60 <= 1.03 * (provider.served_tokens - 3000)


def test_less_is_used_than_is_configured_where_the_provider_grants_less() -> None:
    limits = {"tokens_per_minute": 9000, "requests_per_minute": 40}
    world = World({"a": Provider(Bucket(6000), Bucket(30))}, agents(), 1, pool=(limited(limits),))
    world.run()
    refused_at = world.providers["a"].refused_at
    assert not [at for at in refused_at if at > refused_at[0] + 1], "after the turns that were in flight at the first"
    assert world.wall_s <= 1.05 * fluid_s(world)


def test_two_replicas_with_different_windows_give_nearly_their_sum() -> None:
    providers = {"a": Provider(Bucket(6000), Bucket(30)), "b": Provider(Bucket(3000), Bucket(40))}
    world = World(providers, agents(), 6)
    world.run()
    assert refusals(world) == 0
    assert fluid_s(world) / world.wall_s >= 0.95


def test_a_provider_that_lies_refuses_at_most_twice_an_hour_after_the_first_time() -> None:
    """Turns in flight when it refused for the first time, which nobody could know, count as that first time."""
    world = World({"a": Provider(Bucket(4000), Bucket(30), says=1.5)}, agents(8, steps=600), 7, pool=LEARNED)
    world.run(until=2 * 3600)
    refused_at = world.providers["a"].refused_at
    after = [at for at in refused_at if at > refused_at[0] + 1]
    assert refused_at
    for start in (0, 3600):
        assert sum(start <= at < start + 3600 for at in after) <= 2
    assert world.providers["a"].served_tokens > 0.8 * 4000 * 120


def phases(chance: random.Random, number: int) -> int:
    median = (60, 240, 30, 500)[number // 2500 % 4]
    return max(1, round(median * chance.lognormvariate(0, 0.5)))


SHORT, LONG = (100, 2000), (5000, 40_000)


@pytest.mark.parametrize(
    ("outputs", "prompts", "off"),
    [(lognormal, SHORT, 0.03), (phases, SHORT, 0.03), *((lognormal, LONG, off) for off in (0.03, 0.1, 0.2))],
)
def test_the_quantile_covers_what_it_should(outputs: object, prompts: tuple[int, int], off: float) -> None:
    """Also where the prompt, whose bytes a token differ by `off`, is nearly all of the cost."""
    assert callable(outputs)
    chance = random.Random(8)
    histories, covered, turns = Histories(), 0, 10_000
    key = ("m", "c", "")
    for number in range(turns):
        prompt = chance.randrange(*prompts)
        size = round(prompt * 4 * chance.uniform(1 - off, 1 + off)) + 200
        completion = outputs(chance, number)
        need = predict(histories, key, size, None)
        covered += prompt + completion <= need.prompt + need.completion
        histories = learn(histories, key, need, prompt_bytes=size, prompt_tokens=prompt, completion_tokens=completion)
    assert 0.93 <= covered / turns <= 0.985


def test_phases_make_no_livelock() -> None:
    world = World(
        {"a": Provider(Bucket(6000), Bucket(60))},
        [
            Agent(f"r{n}", 20, 100, 800, lambda c, i: max(1, round((20, 150)[i // 40 % 2] * c.lognormvariate(0, 0.4))))
            for n in range(8)
        ],
        9,
        checked=True,
    )
    world.run()
    assert all(agent.done == 20 for agent in world.agents)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("pool", [(), LEARNED])
def test_a_turn_of_nearly_the_whole_window_is_not_starved_by_small_ones(seed: int, pool: tuple[Replica, ...]) -> None:
    large = Agent("large", 3, 5500, 5500, lambda *_: 50, max_tokens=100)
    world = World({"a": Provider(Bucket(6000), Bucket(60))}, [*agents(5, 20), large], seed, pool=pool)
    world.run()
    assert large.done == 3
    assert refusals(world) == 0
