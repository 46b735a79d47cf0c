"""Energy of streams against hand-worked sums (research/aim.md section 4)."""

import pytest

import jaxmem as jm
from jaxmem.pim import energy, isa, streams, timing

AIM = jm.devices.load("aim-gddr6-16gib")
pJ = 1e-12


@pytest.fixture(scope="module")
def row():
    return timing.run(streams.fragments(1), AIM, "simulator")


def test_commands_of_a_row(row):
    joule = {k: float(v) for k, v in energy.command_module_j(row, AIM).items() if float(v)}
    any_, data = 95.26113155, 66.9270514
    assert joule["MAC16"] == pytest.approx(64 * (1314.45 + any_ + data) * pJ, rel=1e-6)
    assert joule["ACT16"] == pytest.approx((47_205.6 + any_) * pJ, rel=1e-6)
    assert joule["WRGB"] == pytest.approx(64 * (1408 + 0.16274422875 + any_ + data) * pJ, rel=1e-6)
    assert joule["RDMAC16"] == pytest.approx((547.6875 + 1408 + any_ + data) * pJ, rel=1e-6)
    assert joule["TMOD"] == pytest.approx(3 * any_ * pJ, rel=1e-6)


def test_components_are_the_commands_and_standby(row):
    parts = energy.component_module_j(row, AIM)
    commands = sum(map(float, energy.command_module_j(row, AIM).values()))
    total = float(energy.stream_module_j(row, AIM))
    assert total == pytest.approx(sum(map(float, parts.values())), rel=1e-6)
    assert total - float(parts["standby"]) == pytest.approx(commands, rel=1e-5)
    assert float(energy.stream_channel_j(row, AIM)) == pytest.approx(total / 32, rel=1e-6)


def test_standby_is_charged_by_state_over_real_time(row):
    """One of 32 channels has its row open, from its ACT16 to the end."""
    opened = 414 - int(row.open_cycles)
    assert opened == 1 + 32 + 2 * 64 + 1 + 32  # TMOD, its wait, WRGB and WRMAC, TMOD, its wait
    expected = (220 * 263.75e-3 + (32 * 414 - 220) * 183.15e-3) * 0.5e-9
    assert float(energy.standby_module_j(row, AIM)) == pytest.approx(expected, rel=1e-6)
    published = float(energy.published_standby_module_j(row, AIM))
    assert published == pytest.approx(expected / 32, rel=1e-6)


def test_power_times_time_is_energy(row):
    second = int(row.cycles) * 0.5e-9
    joule = float(energy.stream_module_j(row, AIM))
    assert float(energy.stream_module_w(row, AIM)) * second == pytest.approx(joule, rel=1e-6)


def test_commands_that_were_not_issued_cost_nothing():
    """Also where the energy of one is not known."""
    unknown = jm.pim.Design.create(device="hbm-pim", llm="llama3-8b").device
    idle = timing.run(isa.stream([("EOC", {})]), AIM, refresh=False)
    parts = energy.command_module_j(idle, unknown)
    assert all(float(v) == 0 for v in parts.values())


def test_refresh_is_charged():
    work = streams.attention(n_request=1, n_token=2048, n_query=1)
    found = timing.run(work, AIM, "device")
    assert int(found.counts["REFab"]) > 0
    joule = float(energy.command_module_j(found, AIM)["REFab"])
    assert joule == pytest.approx(int(found.counts["REFab"]) * (47_205.6 + 95.26113155) * pJ)
