import itertools
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tbptt.errors import UserError
from tbptt.nn import Core, LanguageModel
from tbptt.state import State

CELLS = [("lstm", None), ("gru", None), ("rnn", "tanh"), ("rnn", "relu")]


def language_model(cell: str = "lstm", nonlinearity: str | None = None, **changes: Any) -> LanguageModel:
    torch.manual_seed(2)
    values: dict[str, Any] = {
        "vocab_size": 11,
        "embedding_size": 5,
        "hidden_size": 7,
        "num_layers": 2,
        "dropout": 0.0,
        "tie_weights": False,
        "learn_initial_state": False,
    }
    return LanguageModel(**{**values, "cell": cell, "nonlinearity": nonlinearity, **changes})


def text(steps: int, streams: int, types: int = 11) -> torch.Tensor:
    return torch.randint(types, (steps, streams), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_a_core_is_the_torch_layer_of_its_weights(cell: str, nonlinearity: str | None, layers: int) -> None:
    core = Core(
        cell,
        input_size=5,
        hidden_size=7,
        num_layers=layers,
        learn_initial_state=False,
        nonlinearity=nonlinearity,
        kernel="torch",
    )
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[cell]
    plain = kind(5, 7, layers, **({"nonlinearity": nonlinearity} if nonlinearity else {}))
    plain.load_state_dict(core.rnn.state_dict())
    inputs = torch.randn(9, 3, 5)
    outputs, state = core(inputs, core.initial_state(3))
    expected, last = plain(inputs)
    assert torch.equal(outputs, expected)
    assert state.hidden.shape == (layers, 3, 7)
    assert torch.equal(state.hidden, last[0] if cell == "lstm" else last)
    assert (state.cell is not None) == (cell == "lstm")


@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_one_window_of_the_whole_text_is_full_bptt(cell: str, nonlinearity: str | None) -> None:
    """Against an unrolled sum of cells, written out, in float64."""
    model = language_model(cell, nonlinearity, num_layers=1).double()
    tokens = text(14, 3)
    loss, _ = model.loss(tokens[:-1], tokens[1:])
    loss.backward()
    parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    hidden = [torch.zeros(3, 7, dtype=torch.float64)] * (2 if cell == "lstm" else 1)
    nats = torch.zeros((), dtype=torch.float64)
    w_ih, w_hh, b_ih, b_hh = (parameters[f"core.rnn.{n}_l0"] for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    for x, y in itertools.pairwise(tokens):
        left = parameters["embedding.weight"][x] @ w_ih.T + b_ih
        right = hidden[0] @ w_hh.T + b_hh
        if cell == "lstm":
            i, f, g, o = (left + right).chunk(4, dim=1)
            c = f.sigmoid() * hidden[1] + i.sigmoid() * g.tanh()
            hidden = [o.sigmoid() * c.tanh(), c]
        elif cell == "gru":
            (lr, lz, ln), (rr, rz, rn) = left.chunk(3, dim=1), right.chunk(3, dim=1)
            r, z = (lr + rr).sigmoid(), (lz + rz).sigmoid()
            hidden = [(1 - z) * (ln + r * rn).tanh() + z * hidden[0]]
        else:
            hidden = [(left + right).tanh() if nonlinearity == "tanh" else (left + right).relu()]
        logits = hidden[0] @ parameters["head.projection.weight"].T + parameters["head.projection.bias"]
        nats = nats - logits.log_softmax(1).gather(1, y[:, None]).sum()
    (nats / tokens[1:].numel()).backward()
    assert loss.item() == pytest.approx(nats.item() / tokens[1:].numel(), rel=1e-12)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, parameters[name].grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_streams_do_not_touch_and_no_step_sees_the_future(cell: str, nonlinearity: str | None) -> None:
    model = language_model(cell, nonlinearity).eval()
    tokens = text(7, 3)
    changed = tokens.clone()
    changed[4, 1] = (changed[4, 1] + 1) % 11
    before, after = model(tokens)[0], model(changed)[0]
    for stream in (0, 2):
        assert torch.equal(before[:, stream], after[:, stream])
    assert torch.equal(before[:4, 1], after[:4, 1])
    assert not torch.equal(before[4, 1], after[4, 1])


@pytest.mark.parametrize("cut", range(1, 7))
@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_two_windows_are_one_window(cell: str, nonlinearity: str | None, cut: int) -> None:
    model = language_model(cell, nonlinearity).double().eval()
    tokens = text(7, 3)
    whole, end = model(tokens)
    first, carry = model(tokens[:cut])
    second, last = model(tokens[cut:], carry.detach())
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(last.hidden, end.hidden, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("layers", [1, 2])
def test_dropout_acts_without_a_warning_with_any_depth(layers: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = language_model(num_layers=layers, dropout=0.5)
    tokens = text(7, 3)
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])


def test_dropout_is_on_embedding_and_output() -> None:
    model = language_model(num_layers=1, dropout=0.5)
    seen: list[torch.Tensor] = []
    model.core.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    hidden, _ = model.hidden(text(40, 10))
    for values in (seen[0], hidden):
        assert (values == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("dropout", [1.5, -0.1, 1.0, "half", float("nan"), True])
def test_dropout_out_of_range_is_refused(dropout: object) -> None:
    with pytest.raises(UserError, match="model.dropout must be a number of at least 0 and less than 1"):
        language_model(dropout=dropout)


def test_tied_weights_are_one_parameter() -> None:
    model = language_model(embedding_size=7, tie_weights=True)
    assert model.head.projection.weight is model.embedding.weight
    untied = language_model(embedding_size=7)
    saved = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in model.parameters())
    assert saved == 11 * 7


def test_unequal_widths_cannot_be_tied() -> None:
    with pytest.raises(UserError, match="tie_weights=true.*embedding_size=10.*hidden_size=16.*tie_weights=false"):
        language_model(embedding_size=10, hidden_size=16, tie_weights=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": "lstmm"}, "model.cell must be one of lstm, gru, rnn.*did you mean lstm"),
        ({"hidden_size": 0}, "model.hidden_size must be an integer of at least 1"),
        ({"num_layers": 1.5}, "model.num_layers must be an integer"),
        ({"embedding_size": "12"}, "model.embedding_size must be an integer"),
        ({"nonlinearity": "relu"}, "model.nonlinearity=relu is for model=rnn alone"),
        ({"cell": "rnn", "nonlinearity": "sigmoid"}, "model.nonlinearity must be one of tanh, relu"),
        ({"tie_weights": 1}, "model.tie_weights must be one of True, False"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        language_model(**change)


@pytest.mark.parametrize("window", [1, 2, 35, 70])
@pytest.mark.parametrize("streams", [1, 3])
def test_a_zero_output_layer_scores_the_logarithm_of_the_vocabulary(window: int, streams: int) -> None:
    model = language_model()
    nn.init.zeros_(model.head.projection.weight)
    tokens = text(70, streams)
    state, nats, count = None, 0.0, 0
    for begin in range(0, 69, window):
        x, y = tokens[begin : begin + window][:-1], tokens[begin + 1 : begin + window]
        if x.numel():
            mean, _ = model.loss(x, y)
            assert mean.item() == pytest.approx(math.log(11), rel=1e-6)
            part, state = model.nats(x, y, state)
            nats, count = nats + part.item(), count + y.numel()
    if count:
        assert nats / count == pytest.approx(math.log(11), rel=1e-7)


def test_evaluation_in_row_chunks_is_the_whole_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = language_model().eval(), text(12, 5)
    expected = F.cross_entropy(model(tokens[:-1])[0].flatten(0, 1).double(), tokens[1:].flatten(), reduction="sum")
    for limit in (1, 11, 11 * 7, 2**22):
        monkeypatch.setattr("tbptt.nn.head.EVALUATION_LOGITS", limit)
        assert model.nats(tokens[:-1], tokens[1:])[0].item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_a_learned_initial_state_is_trained_where_a_text_begins(cell: str, nonlinearity: str | None) -> None:
    model = language_model(cell, nonlinearity, learn_initial_state=True)
    tokens = text(5, 3)
    loss, carry = model.loss(tokens[:-1], tokens[1:])
    loss.backward()
    learned = [model.core.initial_hidden, *([model.core.initial_cell] if cell == "lstm" else [])]
    for parameter in learned:
        assert parameter is not None
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0
    model.zero_grad()
    later, _ = model.loss(tokens[:-1], tokens[1:], carry.detach())
    later.backward()
    assert all(parameter is not None and parameter.grad is None for parameter in learned)


def test_zeros_where_no_state_is_given() -> None:
    model, tokens = language_model().eval(), text(5, 3)
    zeros = State(torch.zeros(2, 3, 7), torch.zeros(2, 3, 7))
    assert torch.equal(model(tokens)[0], model(tokens, zeros)[0])


def test_ten_lines_of_plain_torch_learn() -> None:
    """A cycle of four tokens is learnt to nearly no loss, with neither Lightning nor Hydra."""
    model = language_model(vocab_size=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    tokens = torch.arange(4).repeat(300)[:, None].expand(-1, 2)
    state = None
    for begin in range(0, 1000, 10):
        loss, state = model.loss(tokens[begin : begin + 10], tokens[begin + 1 : begin + 11], state)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = state.detach()
    assert loss.item() < 0.05


@pytest.mark.gpu
@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_on_a_gpu_weights_are_flat_and_results_agree(cell: str, nonlinearity: str | None) -> None:
    model, tokens = language_model(cell, nonlinearity).eval(), text(7, 3)
    expected = model(tokens)[0]
    model.cuda()
    with warnings.catch_warnings():
        # torch warns when weights are not one block of memory and cuDNN has to copy them on each call.
        warnings.simplefilter("error")
        found = model(tokens.cuda())[0]
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
