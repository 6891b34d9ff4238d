import math
import sys

import pytest
import torch

from tbptt.errors import UserError
from tbptt.nn import LanguageModel
from tbptt.sample import choose, sample
from tbptt.text import Vocabulary

TEXT = "abcd" * 50


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.build(TEXT, "char")


@pytest.fixture(scope="module")
def cycle(vocabulary: Vocabulary) -> LanguageModel:
    """A model that has learnt a, b, c, d, a, b, ..."""
    torch.manual_seed(0)
    model = LanguageModel(
        len(vocabulary),
        cell="gru",
        embedding_size=6,
        hidden_size=8,
        num_layers=1,
        dropout=0.5,
        tie_weights=False,
        learn_initial_state=False,
    )
    tokens = torch.from_numpy(vocabulary.encode(TEXT)).long()[:, None]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model.eval()
    for _ in range(60):
        loss, _ = model.loss(tokens[:-1], tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_the_likeliest_continuation(cycle: LanguageModel, vocabulary: Vocabulary) -> None:
    assert sample(cycle, vocabulary, length=6, prompt="ab", temperature=0) == "cdabcd"


@pytest.mark.parametrize("length", [0, 1, 7])
@pytest.mark.parametrize("prompt", ["", "a", "abcd" * 600])
def test_length_counts_new_symbols(cycle: LanguageModel, vocabulary: Vocabulary, length: int, prompt: str) -> None:
    assert len(sample(cycle, vocabulary, length=length, prompt=prompt)) == length


def test_a_long_prompt_in_pieces_is_the_prompt(
    cycle: LanguageModel, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = "abcd" * 20 + "abc"
    whole = sample(cycle, vocabulary, length=20, prompt=prompt)
    monkeypatch.setattr(sys.modules["tbptt.sample"], "PROMPT_STEPS", 7)
    assert sample(cycle, vocabulary, length=20, prompt=prompt) == whole


def test_the_seed_decides(cycle: LanguageModel, vocabulary: Vocabulary) -> None:
    drawn = [sample(cycle, vocabulary, length=30, temperature=20.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_nothing_outside_is_touched(cycle: LanguageModel, vocabulary: Vocabulary) -> None:
    cycle.train()
    before = torch.get_rng_state()
    sample(cycle, vocabulary, length=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert cycle.training
    cycle.eval()


def shares(temperature: float, top_k: int | None = None, draws: int = 4000) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    logits = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    drawn = torch.stack([choose(logits, temperature, top_k, generator) for _ in range(draws)])
    return [(drawn == token).double().mean().item() for token in range(3)]


def test_temperature_is_that_of_the_softmax() -> None:
    assert shares(0.5) == pytest.approx([0.867, 0.117, 0.016], abs=0.02)
    weight = [math.exp(2), math.exp(1), 1]
    assert shares(1.0) == pytest.approx([w / sum(weight) for w in weight], abs=0.03)
    assert shares(1e9) == pytest.approx([1 / 3] * 3, abs=0.03)


@pytest.mark.parametrize("temperature", [0, 1e-8, 1e-40, 5e-324])
def test_zero_and_tiny_temperatures_take_the_likeliest(temperature: float) -> None:
    assert shares(temperature, draws=50) == [1, 0, 0]


def test_top_k() -> None:
    weight = [math.exp(2), math.exp(1)]
    assert shares(1.0, top_k=2) == pytest.approx([w / sum(weight) for w in weight] + [0], abs=0.03)
    assert shares(1.0, top_k=1, draws=50) == [1, 0, 0]
    assert shares(1e9, top_k=99) == pytest.approx([1 / 3] * 3, abs=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": -1}, "length must be an integer of at least 0"),
        ({"length": 1.5}, "length must be an integer"),
        ({"temperature": -1}, "temperature must be a finite number of at least 0"),
        ({"temperature": math.nan}, "temperature must be a finite number"),
        ({"temperature": math.inf}, "temperature must be a finite number"),
        ({"temperature": "hot"}, "temperature must be a finite number"),
        ({"top_k": 0}, "top_k must be an integer of at least 1"),
        ({"prompt": "a 李"}, "prompt must hold only symbols.*U\\+674E"),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    cycle: LanguageModel, vocabulary: Vocabulary, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        sample(cycle, vocabulary, **{"length": 3, **options})  # type: ignore[arg-type]


def test_the_unknown_token_is_drawn_only_if_allowed(cycle: LanguageModel) -> None:
    # 'd' is rare here: it becomes the unknown token, which this model then writes after every 'c'.
    vocabulary = Vocabulary.build("abc" * 50, "char", need_unknown=True)
    allowed = sample(cycle, vocabulary, length=40, temperature=50.0, allow_unknown=True)
    assert "<unk>" in allowed
    assert "<unk>" not in sample(cycle, vocabulary, length=40, temperature=50.0)
