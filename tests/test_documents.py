"""Documents inside windows: against each document alone, and against the definition, pair by pair."""

import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tbptt.bptt import Plan, window_loss
from tbptt.errors import UserError
from tbptt.evaluate import evaluate, evaluate_tokens
from tbptt.metrics import IGNORED
from tbptt.nn import LanguageModel
from tbptt.nn.pieces import cut
from tbptt.streams import Window, WindowLoader
from tbptt.truncation import CarryDrop, WindowLengths

CELLS = [("lstm", None), ("gru", None), ("rnn", "tanh"), ("rnn", "relu")]
KERNELS = ["ours", "torch", "auto"]
TYPES, STEPS, STREAMS = 13, 9, 3


def model_of(cell: str, nonlinearity: str | None = None, **changes: Any) -> LanguageModel:
    """In float64, with a learned initial state that is none of zeros where there is one."""
    torch.manual_seed(2)
    values: dict[str, Any] = {"vocab_size": TYPES, "embedding_size": 5, "hidden_size": 7, "num_layers": 2}
    values |= {"dropout": 0.0, "tie_weights": False, "learn_initial_state": False}
    model = LanguageModel(**{**values, "cell": cell, "nonlinearity": nonlinearity, **changes}).double()
    for name, parameter in model.named_parameters():
        if "initial" in name:
            nn.init.normal_(parameter)
    return model


def text(tokens: int) -> Tensor:
    return torch.randint(TYPES, (tokens,), generator=torch.Generator().manual_seed(4))


def positions(places: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(sorted(set(places)), dtype=np.int64)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def assert_close(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    for name in left.keys() | right.keys():
        one, other = (side.get(name, torch.zeros(())) for side in (left, right))
        assert (one - other).abs().max() <= tolerance * max(1.0, other.abs().max()), name


def documents(length: int, stream: int, borders: list[int]) -> list[tuple[int, int]]:
    """Begin and end of each document of a stream of so many tokens, in places of the text."""
    begin, end = stream * length, (stream + 1) * length
    edges = [begin, *(place for place in sorted(set(borders)) if begin < place < end), end]
    return list(itertools.pairwise(edges))


def alone(model: LanguageModel, tokens: Tensor, streams: int, borders: list[int]) -> tuple[Tensor, int]:
    """Nats of all documents, each a text of its own with the initial state before it, and how many targets."""
    total, targets = torch.zeros((), dtype=torch.float64), 0
    length = len(tokens) // streams
    for stream in range(streams):
        for begin, end in documents(length, stream, borders):
            if end - begin > 1:
                logits, _ = model(tokens[begin : end - 1].unsqueeze(1))
                total = total + F.cross_entropy(logits[:, 0], tokens[begin + 1 : end], reduction="sum")
                targets += end - begin - 1
    return total, targets


LENGTH = STEPS + 1
# Of three streams that are read in one window; places of their tokens are 0 - 9, 10 - 19, 20 - 29.
CASES = {
    "several in one": [3, 6, 14, 27],
    "adjacent": [4, 5, 6, 18, 19, 20],
    "starts of streams": [0, 10, 20],
    "first and last pairs": [1, 9, 11, 19],
    "one token each": list(range(30)),
    "one token each in one": list(range(10, 20)),
    "beyond the streams": [7, 30, 31, 99],
    **{f"place {place}": [place, 10 + (place + 3) % 10] for place in range(LENGTH)},
}

# Chunks, rows, what is kept, and whether the loader's count is used.
WAYS: list[tuple[tuple[int, ...], int | None, str, bool]] = [
    ((), None, "hidden", True),
    ((1,), 7, "gates", False),
    ((4,), 7, "hidden", True),
    ((6, 2), None, "gates", False),
]


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_a_window_of_documents_is_each_of_them_alone(
    cell: str, nonlinearity: str | None, kernel: str, learned: bool
) -> None:
    """Loss and gradients, whole and in chunks, with logits all at once or in rows; and the state after it."""
    model, tokens = model_of(cell, nonlinearity, kernel=kernel, learn_initial_state=learned), text(3 * LENGTH + 2)
    for borders in CASES.values():
        loader = WindowLoader(tokens, STREAMS, STEPS, reset="document", borders=positions(borders))
        (window,) = loader
        nats, targets = alone(model, tokens, STREAMS, borders)
        assert window.targets == loader.targets == targets
        mean = nats / max(1, targets)
        expected = gradients(model, mean) if targets else {}
        noise = model.initial_state(STREAMS).map(torch.randn_like)
        for sizes, rows, save, divisor in WAYS:
            model.core.save = save
            options = {"plan": Plan(sizes, rows), "reset": window.reset, "divisor": window.divisor if divisor else None}
            loss, after = window_loss(model, window.x, window.y, noise, **options)
            assert loss.item() == pytest.approx(mean.item(), rel=1e-12)
            assert_close(gradients(model, loss), expected)
        loss, state = model.loss(window.x, window.y, noise, reset=window.reset)
        assert loss.item() == pytest.approx(mean.item(), rel=1e-12)
        assert_close(gradients(model, loss), expected)
        assert (state.hidden - after.hidden).abs().max() < 1e-12
        for stream in range(STREAMS):
            begin, end = documents(LENGTH, stream, borders)[-1]
            if end - begin > 1:
                last = model.hidden(tokens[begin : end - 1].unsqueeze(1))[1]
                assert (last.hidden[:, 0] - after.hidden[:, stream]).abs().max() < 1e-12


@pytest.mark.parametrize("kernel", ["ours", "torch"])
@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_context_steps_and_places_of_the_carry_with_documents(cell: str, nonlinearity: str | None, kernel: str) -> None:
    """Documents that begin in the context, in the window, or at the carry, against steps one by one."""
    model = model_of(cell, nonlinearity, kernel=kernel, learn_initial_state=True)
    tokens, context = text(8 * 1).view(-1, 1).repeat(1, STREAMS).roll(1, 1), 3
    targets = tokens.roll(-1, 0)[context:]
    carry = model.initial_state(STREAMS).detach().map(torch.randn_like)
    for number in range(1, 2**8, 23):
        reset = torch.zeros(8, STREAMS, dtype=torch.bool)
        reset[:, 0] = torch.tensor([bool(number >> bit & 1) for bit in range(8)])
        reset[:, 2] = reset[:, 0].roll(1)
        y = targets.masked_fill(reset.roll(-1, 0)[context:], IGNORED)
        state, outputs, states = carry, [], [carry]
        for step in range(8):
            state = state.reset_rows(reset[step], model.initial_state(STREAMS))
            one, state = model.hidden(tokens[step : step + 1], state)
            outputs.append(one)
            states.append(state)
        mean = F.cross_entropy(model.head(torch.cat(outputs[context:])).flatten(0, 1), y.flatten())
        expected = gradients(model, mean)
        for advance, sizes in itertools.product((0, 2, 3, 5, 8), ((), (1,), (3,), (4, 2))):
            options = {"reset": reset, "advance": advance}
            for loss, after in (
                window_loss(model, tokens, y, carry, plan=Plan(sizes, 5), **options),
                model.loss(tokens, y, carry, **options),
            ):
                assert_close(gradients(model, loss), expected)
                assert (after.hidden - states[advance].hidden).abs().max() < 1e-12


@pytest.mark.parametrize("kernel", ["ours", "torch"])
def test_chunks_draw_the_same_dropout_with_documents(kernel: str) -> None:
    model, tokens = model_of("gru", kernel=kernel, dropout=0.4), text(3 * LENGTH)
    (window,) = WindowLoader(tokens, STREAMS, STEPS, reset="document", borders=positions(CASES["several in one"]))
    found = []
    for sizes in (None, (), (1,), (4,), (6, 2)):
        torch.manual_seed(6)
        start = model.initial_state(STREAMS)
        if sizes is None:
            loss, _ = model.loss(window.x, window.y, start, reset=window.reset)
        else:
            loss, _ = window_loss(model, window.x, window.y, start, plan=Plan(sizes), reset=window.reset)
        found.append(gradients(model, loss))
    for other in found[1:]:
        assert_close(other, found[0])


@pytest.mark.parametrize("types", [4, TYPES])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_window_without_a_target_has_no_loss_and_no_gradient(kernel: str, types: int) -> None:
    model = model_of("lstm", kernel=kernel, learn_initial_state=True, vocab_size=types)
    tokens = text(3 * LENGTH) % types
    (window,) = WindowLoader(tokens, STREAMS, STEPS, reset="document", borders=positions(list(range(30))))
    assert window.targets == 0
    assert (window.y == IGNORED).all()
    start = model.initial_state(STREAMS)
    losses = [model.loss(window.x, window.y, start, reset=window.reset)[0]]
    for sizes, rows, divisor in itertools.product(((), (4,)), (None, 7), (window.divisor, None)):
        options = {"plan": Plan(sizes, rows), "reset": window.reset, "divisor": divisor}
        losses.append(window_loss(model, window.x, window.y, start, **options)[0])
    for loss in losses:
        assert loss.item() == 0.0
        assert all((gradient == 0).all() for gradient in gradients(model, loss).values())
    assert model.nats(window.x, window.y, reset=window.reset)[0].item() == 0.0


# Evaluation.


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_evaluation_is_the_sum_over_documents(cell: str, nonlinearity: str | None, kernel: str, streams: int) -> None:
    model, tokens = model_of(cell, nonlinearity, kernel=kernel, learn_initial_state=True), text(96)
    borders = [0, 5, 6, 7, 31, 32, 40, 64, 90, 95]
    with torch.no_grad():
        nats, targets = alone(model, tokens, streams, borders)
    for window in (1, 4, 7, 100):
        loader = WindowLoader(tokens, streams, window, reset="document", borders=positions(borders))
        found = evaluate(model, loader)
        assert found.tokens == loader.targets == targets
        assert found.nats == pytest.approx(nats.item() / targets, rel=1e-12)


def test_a_text_without_a_target_is_refused() -> None:
    with pytest.raises(UserError, match="the text must have a document of 2 tokens"):
        evaluate_tokens(model_of("gru"), text(30), positions(list(range(30))))


# The loader, pair by pair.


def random_case(draw: random.Random) -> tuple[Tensor, dict[str, Any], list[int]]:
    """A text in which token i is the number i, the arguments of its loader, and where documents begin."""
    share, world = draw.randint(1, 3), draw.choice([1, 1, 2])
    streams, tokens = share * world, draw.randint(share * world * 2, 120)
    window = draw.randint(1, 12)
    share_of_borders = draw.choice([0.0, 0.03, 0.2, 0.6, 1.0])
    borders = [place for place in range(tokens + 5) if draw.random() < share_of_borders]
    grow = draw.random() < 0.3
    lengths = WindowLengths(
        window,
        random=draw.random() < 0.3,
        offset=draw.random() < 0.5,
        grow_from=draw.randint(1, window) if grow else None,
        grow_windows=draw.randint(1, 30) if grow else None,
        seed=draw.randint(0, 99),
    )
    options = {
        "batch_size": streams,
        "window_steps": window,
        "horizon": draw.choice([None, window + draw.randint(0, 15)]),
        "lengths": lengths,
        "drop": CarryDrop(draw.choice([0.0, 0.0, 0.4]), seed=draw.randint(0, 99)),
        "world_size": world,
        "limit": draw.choice([None, None, None, 3]),
    }
    return torch.arange(tokens), options, borders


def steps_of(window: Window, length: int, begin: int) -> Iterator[tuple[int, int, int, bool, bool]]:
    """Column, input, target (-1 for context), mark, and whether it is the window's own first step."""
    context = len(window.x) - len(window.y)
    for step, column in itertools.product(range(len(window.x)), range(window.x.shape[1])):
        marks = window.reset
        mark = marks is not None and step < len(marks) and bool(marks[step, column])
        y = int(window.y[step - context, column]) if step >= context else -1
        yield column, int(window.x[step, column]), y, mark, step == context


@pytest.mark.parametrize("seed", range(200))
def test_every_pair_within_a_document_is_a_target_once_a_pass(seed: int) -> None:
    """Marks, targets, counts and divisors by their definition, for any streams, windows, documents and processes."""
    tokens, options, borders = random_case(random.Random(seed))
    streams, world, drop = options["batch_size"], options["world_size"], options["drop"]
    loaders = [
        WindowLoader(tokens, reset="document", borders=positions(borders), rank=rank, **options)
        for rank in range(world)
    ]
    length, share, begins_document = len(tokens) // streams, streams // world, set(borders)
    for number in range(2):
        seen: list[int] = []
        for index, windows in enumerate(zip(*loaders, strict=True)):
            begin = len(seen) and max(seen) % length
            dropped = drop.streams(number, index, streams)
            counted = 0
            for rank, window in enumerate(windows):
                here = 0
                for column, x, y, mark, own_first in steps_of(window, length, begin):
                    stream, step = divmod(x, length)
                    assert stream == rank * share + column
                    lost = own_first and dropped is not None and bool(dropped[stream])
                    assert mark == ((step == 0 and x == window.x[0, column]) or x in begins_document or lost)
                    if y == -1:
                        continue
                    assert y == (IGNORED if x + 1 in begins_document else x + 1)
                    here += y != IGNORED
                    seen.append(x + 1)
                assert window.targets == here
                counted += here
            assert all(window.divisor == pytest.approx(max(1, counted) / world) for window in windows)
        assert len(seen) == len(set(seen))
        if options["limit"] is None:
            pairs = {place for place in range(streams * length) if place % length}
            assert set(seen) == pairs
            counts = sum(loader.targets for loader in loaders)
            assert counts == len(pairs - begins_document)


def test_a_memory_map_is_bisected(tmp_path: Path) -> None:
    """A window of a text with two million documents costs microseconds, not a pass over them."""
    path = tmp_path / "borders.npy"
    np.save(path, np.arange(0, 8_000_000, 4, dtype=np.int64))
    borders = np.load(path, mmap_mode="r")
    loader = WindowLoader(torch.zeros(8_000_000, dtype=torch.uint8), 20, 7, reset="document", borders=borders)
    assert loader.targets == 20 * 399_999 - 20 * 99_999
    window = loader[1001]
    assert window.reset is not None
    marked = window.reset.any(dim=1).nonzero().flatten().tolist()
    assert marked == [step for step in range(7) if (7007 + step) % 4 == 0]


def test_without_documents_windows_are_what_they_were() -> None:
    """No mark, no copy of the targets; and one document is a text."""
    tokens = torch.arange(90)
    for options in ({"reset": "epoch", "borders": positions([7])}, {"reset": "document", "borders": positions([0])}):
        for index, window in enumerate(WindowLoader(tokens, 2, 7, **options)):
            assert (None if window.reset is None else window.reset.tolist()) == (None if index else [[True, True]])
            assert window.targets == window.divisor == window.y.numel()
            assert window.y[:-1].data_ptr() == window.x[1:].data_ptr()


def test_pieces_are_found_without_a_table_of_steps_and_pieces() -> None:
    torch.manual_seed(1)
    marks = torch.rand(50, 3) < 0.3
    pieces = cut(marks, 61)
    assert int(pieces.batch_sizes.sum()) == len(pieces.order) == 183
    assert sorted(pieces.order.tolist()) == list(range(183))
    inputs = torch.arange(183.0).view(61, 3, 1)
    assert torch.equal(pieces.unpack(pieces.pack(inputs), 61), inputs)


# Processes.


def share_of(model: LanguageModel, loader: WindowLoader) -> tuple[list[dict[str, Tensor]], list[float]]:
    """Gradients and loss of each window of a pass."""
    found, losses, state = [], [], model.initial_state(loader[0].x.shape[1]).detach()
    for window in loader:
        options = {"reset": window.reset, "advance": window.advance, "divisor": window.divisor}
        loss, state = window_loss(model, window.x, window.y, state, **options)
        found.append(gradients(model, loss))
        losses.append(loss.item())
    return found, losses


@pytest.mark.parametrize("horizon", [None, 12])
def test_gradients_averaged_over_two_processes_are_those_of_one(horizon: int | None) -> None:
    """Where one has many documents and the other few, in every window of a pass, with dropped carries."""
    model, tokens = model_of("lstm", learn_initial_state=True), text(6 * 40)
    borders = positions([*range(0, 100, 2), 130, 131, 200])
    common = {"reset": "document", "borders": borders, "horizon": horizon, "drop": CarryDrop(0.3, seed=5)}
    whole = share_of(model, WindowLoader(tokens, 6, 7, **common))
    parts = [share_of(model, WindowLoader(tokens, 6, 7, rank=rank, world_size=2, **common)) for rank in range(2)]
    for index, expected in enumerate(whole[0]):
        left, right = (part[0][index] for part in parts)
        zero = torch.zeros((), dtype=torch.float64)
        average = {name: (left.get(name, zero) + right.get(name, zero)) / 2 for name in left.keys() | right.keys()}
        assert_close(average, expected)
        assert (parts[0][1][index] + parts[1][1][index]) / 2 == pytest.approx(whole[1][index], rel=1e-12)
    assert math.isfinite(sum(whole[1]))
