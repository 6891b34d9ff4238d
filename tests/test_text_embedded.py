import hashlib
import re
import sys
from pathlib import Path

import pytest

from tbptt.errors import UserError
from tbptt.text import embedded
from tbptt.text.prose import is_prose, paragraphs, tokenise


@pytest.fixture(scope="module")
def english_text() -> str:
    return embedded.english()


@pytest.fixture(scope="module")
def code_text() -> str:
    return embedded.source_code()


def fake_library(
    folder: Path, modules: dict[str, str], topics: str = "topics = {'if': 'The rule of the house.'}"
) -> Path:
    for name, text in {embedded.TOPICS: topics, **modules}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_english_has_the_size_and_the_words_of_english(english_text: str) -> None:
    words = english_text.split()
    assert 350_000 < len(words) < 550_000
    assert 10_000 < len(set(words)) < 20_000
    assert words.count("the") / len(words) > 0.03
    plain = sum(word.isalpha() for word in words) / len(words)
    assert plain > 0.7


def test_english_lines_are_single_spaced_unique_and_hold_letters(english_text: str) -> None:
    assert english_text.endswith("\n")
    lines = english_text.split("\n")[:-1]
    assert len(set(lines)) == len(lines)
    assert all(line == " ".join(line.split()) and re.search("[A-Za-z]", line) for line in lines)
    assert not any(line.startswith(">>>") or "::=" in line for line in lines)


def test_end_of_english_is_like_its_beginning(english_text: str) -> None:
    words = english_text.split()
    cut = len(words) * 9 // 10
    head, tail = words[:cut], words[cut:]
    known = set(head)
    assert sum(word in known for word in tail) / len(tail) > 0.93
    assert tail.count("the") / len(tail) == pytest.approx(head.count("the") / len(head), rel=0.25)


def test_source_code_is_the_files_as_they_are(code_text: str) -> None:
    assert 1_000_000 < len(code_text) < 1_400_000
    import textwrap  # read here as an oracle: the path of a module that is loaded anyway

    assert Path(textwrap.__file__).read_text(encoding="utf-8") in code_text
    assert tuple(sorted(embedded.SOURCE_FILES)) == embedded.SOURCE_FILES


def test_order_is_that_of_digests_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "MINIMUM_CHARACTERS", 0)
    names = [f"module{number}.py" for number in range(20)]
    modules = {name: f'"""This is the text of {name}."""' for name in names}
    ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    for folder, items in (("a", modules.items()), ("b", reversed(modules.items()))):
        text = embedded.english(fake_library(tmp_path / folder, dict(items)))
        assert re.findall(r"module\d+\.py", text) == ranked


def test_nothing_is_imported_or_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "MINIMUM_CHARACTERS", 0)
    bomb = '"""The module that must not be run."""\nraise SystemExit(3)\n'
    library = fake_library(
        tmp_path, {"bomb.py": bomb}, "topics = {'if': 'The rule of the house.'}\nraise SystemExit(4)\n"
    )
    before = set(sys.modules)
    assert sorted(embedded.english(library).split("\n")) == [
        "",
        "The module that must not be run .",
        "The rule of the house .",
    ]
    assert set(sys.modules) == before


def test_documents_are_found_in_all_statements_and_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "MINIMUM_CHARACTERS", 0)
    source = '''"""The docstring of a module.

    # The sign in this line is of the docstring.
    """
# The first line of a comment
# and the second of it.
if True:
    try:
        class A:
            """The docstring of a class."""
            async def f(self):
                "The docstring of a function."
                return "This is a string of no docstring."
    finally:
        pass
'''
    library = fake_library(
        tmp_path,
        {
            "a.py": source,
            "broken.py": '"""The text of a broken file."""\ndef',
            "test/b.py": '"""The text of a test."""',
            "site-packages/c.py": '"""The text of a package."""',
            "again.py": '"""The docstring of a class."""',
            "escape.py": '"""The docstring of a \\d file."""',
        },
    )
    (library / "latin.py").write_bytes(b'# coding: latin-1\n"""The docstring of caf\xe9."""')
    (library / "bad.py").write_bytes(b'"""The docstring of \xff."""')
    lines = embedded.english(library).split("\n")
    assert sorted(lines[:-1]) == [
        "# The sign in this line is of the docstring .",
        "The docstring of a \\ d file .",
        "The docstring of a class .",
        "The docstring of a function .",
        "The docstring of a module .",
        "The docstring of café .",
        "The first line of a comment and the second of it .",
        "The rule of the house .",
    ]


@pytest.mark.parametrize("read", [embedded.english, embedded.source_code])
def test_missing_sources_are_refused(read, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path / "python311.zip")
    message = str(caught.value)
    assert all(part in message for part in ("data.path must", "python311.zip", ".py", "data.path=FILE"))


def test_first_missing_source_file_is_named(tmp_path: Path) -> None:
    for name in embedded.SOURCE_FILES[1:]:
        fake_library(tmp_path, {name: "pass\n"})
    with pytest.raises(UserError, match=re.escape(embedded.SOURCE_FILES[0])):
        embedded.source_code(tmp_path)


@pytest.mark.parametrize("topics", ["topics = {", "topics = 3\n", "\0", "topics = {}"])
def test_broken_topics_are_refused(topics: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(embedded.TOPICS)):
        embedded.english(fake_library(tmp_path, {}, topics))


def test_library_without_english_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only 24 characters"):
        embedded.english(fake_library(tmp_path, {}))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The file's name (see below).", "The file 's name ( see below ) ."),
        ("It doesn't; they can't.", "It does n't ; they ca n't ."),
        ("Call os.path.join() on __init__.", "Call os.path.join ( ) on __init__ ."),
        ("A built-in, 3.5 of 'em...", "A built-in , 3.5 of ' em ..."),
        ("naïve café -- yes", "naïve café -- yes"),
    ],
)
def test_tokenise(text: str, tokens: str) -> None:
    assert tokenise(text) == tokens


@pytest.mark.parametrize(
    ("text", "prose"),
    [
        ("Return the name of the file.", True),
        ("for x in range(3): print(x)", False),
        ("if_stmt ::= the rule of a grammar that is", False),
        ("x = foo(bar, baz) + 3", False),
        ("Copyright Somebody Nobody Everybody", False),
        ("The text with a lone \ud800 surrogate", False),
        ("", False),
    ],
)
def test_is_prose(text: str, prose: bool) -> None:
    assert is_prose(text) is prose


def test_paragraphs_lose_examples_markup_and_tables() -> None:
    text = """The title of this
    =================

    The *first* argument is ``x``, a :class:`Thing`:

    >>> the example is not prose
    it is of no use

    * this is the first item
      of the list
    * and that is the second

    +------+-------+
    | the  | table |
    +------+-------+
    """
    assert list(paragraphs(text)) == [
        "The title of this",
        "The first argument is x, a Thing:",
        "this is the first item of the list",
        "and that is the second",
    ]
