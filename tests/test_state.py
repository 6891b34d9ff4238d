import pytest
import torch

from tbptt.state import State


def lstm_state(streams: int = 3) -> State:
    generator = torch.Generator().manual_seed(5)
    return State(*(torch.randn(2, streams, 4, generator=generator, requires_grad=True) for _ in range(2)))


def test_detach_ends_the_history() -> None:
    state = lstm_state()
    detached = State(state.hidden * 2, None).detach()
    assert not detached.hidden.requires_grad
    assert torch.equal(detached.hidden, state.hidden * 2)
    assert detached.cell is None


def test_reset_touches_the_marked_streams_alone() -> None:
    state, initial = lstm_state(), State(torch.full((2, 3, 4), 7.0), torch.full((2, 3, 4), 8.0))
    after = state.reset_rows(torch.tensor([False, True, False]), initial)
    assert after.cell is not None
    assert state.cell is not None
    assert (after.hidden[:, 1] == 7).all()
    assert (after.cell[:, 1] == 8).all()
    for kept in (0, 2):
        assert torch.equal(after.hidden[:, kept], state.hidden[:, kept])
        assert torch.equal(after.cell[:, kept], state.cell[:, kept])


def test_reset_keeps_the_type_of_the_carry() -> None:
    state = State(torch.ones(1, 2, 3, dtype=torch.bfloat16))
    assert state.reset_rows(torch.tensor([True, False]), State(torch.zeros(1, 2, 3))).hidden.dtype == torch.bfloat16


@pytest.mark.parametrize("state", [lstm_state(), State(torch.ones(1, 5, 2))], ids=["lstm", "gru"])
def test_dict_round_trip(state: State) -> None:
    again = State.from_dict(state.to_dict())
    assert torch.equal(again.hidden, state.hidden)
    assert (again.cell is None) == (state.cell is None)
    assert not again.hidden.requires_grad


def test_sizes() -> None:
    assert lstm_state(streams=5).batch_size == 5
    assert lstm_state(streams=5).nbytes == 2 * 2 * 5 * 4 * 4
