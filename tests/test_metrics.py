import math

import pytest
import torch

from tbptt.metrics import TokenLoss, bits, perplexity


def test_windows_are_weighted_by_their_tokens() -> None:
    loss = TokenLoss()
    for _ in range(10):
        loss.add(torch.tensor(1.0 * 70), 70)
    loss.add(torch.tensor(5.0 * 3), 3)
    assert loss.nats == pytest.approx((10 * 70 + 15) / 703, abs=1e-12)
    assert loss.tokens == 703


def test_half_precision_means_neither_overflow_nor_round() -> None:
    loss = TokenLoss()
    loss.add_mean(torch.tensor(9.0, dtype=torch.float16), 10_001)
    assert loss.nats == 9
    again = TokenLoss.from_dict(loss.to_dict(), "cpu")
    assert (again.nats, again.tokens) == (9, 10_001)


def test_units_of_a_uniform_guess_among_four() -> None:
    loss = TokenLoss()
    loss.add(torch.tensor(math.log(4) * 8, dtype=torch.float64), 8)
    assert loss.nats == pytest.approx(1.386294, abs=1e-6)
    assert loss.perplexity == pytest.approx(4)
    assert loss.bits == pytest.approx(2)


@pytest.mark.parametrize("nats", [710.0, 1e6, math.inf])
def test_a_perplexity_beyond_floats_is_infinite(nats: float) -> None:
    assert perplexity(nats) == math.inf


def test_bits() -> None:
    assert bits(math.log(2)) == 1


def test_no_tokens_is_nan() -> None:
    assert math.isnan(TokenLoss().nats)


def test_many_small_windows_add_up() -> None:
    loss = TokenLoss()
    window = torch.tensor(0.1)
    for _ in range(100_000):
        loss.add(window, 1)
    assert loss.nats == pytest.approx(window.item(), abs=1e-12)
