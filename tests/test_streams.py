import itertools

import pytest
import torch

from tbptt.errors import UserError
from tbptt.streams import WindowLoader


def pairs(loader: WindowLoader) -> list[tuple[int, int, int]]:
    """(stream, input, target) of every step."""
    found = []
    for window in loader:
        for x, y in zip(window.x, window.y, strict=True):
            found += [(stream, int(a), int(b)) for stream, (a, b) in enumerate(zip(x, y, strict=True))]
    return found


@pytest.mark.parametrize(("streams", "window"), [(1, 1), (1, 90), (2, 5), (3, 7), (4, 8), (7, 3), (44, 35), (45, 1)])
def test_every_adjacent_pair_of_a_stream_is_a_target_once(streams: int, window: int) -> None:
    # Token i is the number i, so a pair (i, i + 1) shows at once whether the target follows the input in the text.
    loader = WindowLoader(torch.arange(90, dtype=torch.uint8), streams, window)
    length = 90 // streams
    expected = {(s, i, i + 1) for s in range(streams) for i in range(s * length, (s + 1) * length - 1)}
    found = pairs(loader)
    assert len(found) == len(expected) == loader.targets
    assert set(found) == expected
    assert loader.spare == 90 - streams * length


def test_ninety_characters_in_three_streams_give_87_pairs() -> None:
    found = pairs(WindowLoader(torch.arange(90, dtype=torch.uint8), 3, 7))
    assert len(found) == 87
    assert all(y == x + 1 for _, x, y in found)


def test_spare_tokens_and_a_short_last_window() -> None:
    loader = WindowLoader(torch.arange(1003, dtype=torch.int16), 4, 7)
    steps = [len(window.x) for window in loader]
    assert loader.spare == 3
    assert len(loader) == len(steps) == 36
    assert steps == [7] * 35 + [4]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_windows_are_continuous_in_every_stream_of_every_process(world_size: int) -> None:
    tokens = torch.randint(50, (1000,), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    whole = list(WindowLoader(tokens, 6, 11))
    parts = [list(WindowLoader(tokens, 6, 11, rank=rank, world_size=world_size)) for rank in range(world_size)]
    for index, window in enumerate(whole):
        assert torch.equal(torch.cat([part[index].x for part in parts], dim=1), window.x)
        assert torch.equal(torch.cat([part[index].y for part in parts], dim=1), window.y)
    for part in parts:
        for before, after in itertools.pairwise(part):
            assert torch.equal(after.x[0], before.y[-1])


def test_only_the_first_window_resets() -> None:
    tokens = torch.arange(30)
    assert [None if w.reset is None else w.reset.tolist() for w in WindowLoader(tokens, 2, 5)] == [
        [[True, True]],
        None,
        None,
    ]
    assert all(w.reset is None for w in WindowLoader(tokens, 2, 5, reset="never"))


@pytest.mark.parametrize("after", range(9))
def test_a_restored_position_names_the_next_window_and_rolls_over(after: int) -> None:
    tokens = torch.arange(70)
    source = WindowLoader(tokens, 2, 4)
    assert len(source) == 9
    seen = iter(source)
    for _ in range(after + 1):
        next(seen)
    state = source.state_dict()
    restored = WindowLoader(tokens, 2, 4)
    restored.load_state_dict(state)
    rest = [window.x[0, 0].item() for window in restored]
    expected = [source[index].x[0, 0].item() for index in range((after + 1) % 9, 9)]
    assert rest == expected
    assert len(list(restored)) == 9, "the pass after the restored one is whole"


def test_iter_twice_before_the_first_window_keeps_the_position() -> None:
    loader = WindowLoader(torch.arange(70), 2, 4)
    loader.load_state_dict({"next_window": 5, "batch_size": 2, "window_steps": 4})
    iter(loader)
    assert next(iter(loader)).x[0, 0] == 20


def test_a_pass_that_was_left_early_starts_anew() -> None:
    loader = WindowLoader(torch.arange(70), 2, 4)
    seen = iter(loader)
    next(seen)
    next(seen)
    assert next(iter(loader)).x[0, 0] == 0


@pytest.mark.parametrize(
    ("streams", "window", "words"),
    [
        (20, 35, ["data.batch_size=20", "at least 40 tokens", "12", "bptt.window=35", "data.batch_size=6 or less"]),
        (0, 35, ["data.batch_size", "at least 1", "0"]),
        (-1, 35, ["data.batch_size", "at least 1", "-1"]),
        (2.5, 35, ["data.batch_size", "integer", "2.5"]),
        (True, 35, ["data.batch_size", "integer"]),
        (2, 0, ["bptt.window", "at least 1", "0"]),
        (2, "9", ["bptt.window", "integer", "'9'"]),
    ],
)
def test_what_cannot_be_folded_is_refused(streams: int, window: int, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        WindowLoader(torch.arange(12), streams, window)
    for word in words:
        assert word in str(error.value)


def test_the_shortest_text() -> None:
    loader = WindowLoader(torch.arange(12), 2, 35)
    assert [len(window.x) for window in loader] == [5]
    assert loader.targets == 10


def test_streams_that_processes_cannot_share_are_refused() -> None:
    with pytest.raises(UserError, match="data.batch_size=5 must be a multiple of the 2 processes.*data.batch_size=4"):
        WindowLoader(torch.arange(100), 5, 7, world_size=2)


@pytest.mark.parametrize(("key", "name"), [("batch_size", "data.batch_size"), ("window_steps", "bptt.window")])
def test_a_position_of_other_windows_is_refused(key: str, name: str) -> None:
    loader = WindowLoader(torch.arange(100), 5, 7)
    with pytest.raises(UserError, match=f"{name} must stay 9"):
        loader.load_state_dict({**loader.state_dict(), key: 9})


def test_a_position_behind_the_end_is_refused() -> None:
    loader = WindowLoader(torch.arange(100), 5, 7)
    with pytest.raises(UserError, match="stopped before window 77"):
        loader.load_state_dict({**loader.state_dict(), "next_window": 77})
