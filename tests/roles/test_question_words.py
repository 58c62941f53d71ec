from importlib.resources import files

import pytest

from ava_roles.texts.passages import Query, filler_words
from ava_roles.texts.question_words import DATE, FIGURE, NAME, asked_in, entries_of_list
from ava_server.runs.origins.approved_texts import ApprovedTexts, new_parts

QUESTIONS = [
    ("How high is the church tower?", ("church", "tower"), FIGURE),
    ("How much does the ferry cost?", ("ferry",), FIGURE),
    ("In what year was the ferry sold?", ("ferry", "sold"), DATE),
    ("Who sold the ferry?", ("sold", "ferry"), NAME),
    ("Wie hoch ist der Kirchturm?", ("kirchturm",), FIGURE),
    ("Was kostet die Überfahrt?", ("überfahrt",), FIGURE),
    ("In welchem Jahr wurde die Fähre verkauft?", ("fähre", "verkauft"), DATE),
    ("Wofür zahlt der Hafen?", ("zahlt", "hafen"), ""),
    ("Combien de marins y a-t-il sur le ferry ?", ("marins", "ferry"), FIGURE),
    ("Combien coûte la traversée ?", ("traversée",), FIGURE),
    ("En quelle année le ferry a-t-il été vendu ?", ("ferry", "vendu"), DATE),
    ("¿Cuánto cuesta la entrada?", ("entrada",), FIGURE),
    ("¿A cuánto asciende la multa?", ("multa",), FIGURE),
    ("¿Quién vendió el barco?", ("vendió", "barco"), NAME),
    ("Quanto costa il biglietto?", ("biglietto",), FIGURE),
    ("In che anno fu venduta la nave?", ("fu", "venduta", "nave"), DATE),
    ("Quanto custa o bilhete?", ("bilhete",), FIGURE),
    ("Em que ano foi vendido o navio?", ("vendido", "navio"), DATE),
    ("Köprünün uzunluğu ne kadardır?", ("köprünün", "uzunluğu"), FIGURE),
    ("图书馆有多少学生？", ("图书", "学生"), FIGURE),
    ("图书馆什么时候开门？", ("图书", "开门"), DATE),
    ("図書館は何年に完成しましたか", ("図書館", "完成"), DATE),
    ("図書館の入場料はいくらですか", ("図書館", "入場"), FIGURE),
]


@pytest.mark.parametrize(("question", "words", "kind"), QUESTIONS)
def test_question_words_are_not_what_a_question_is_about_and_tell_the_kind_of_answer(
    question: str, words: tuple[str, ...], kind: str
) -> None:
    query = Query(question)
    assert (query.words, query.kind, query.telling) == (words, kind, True)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("伊克巴勒是谁?", ("伊克", "克巴", "巴勒")),
        ("埃菲尔铁塔有多高？", ("埃菲", "菲尔", "尔铁", "铁塔")),
        ("橋の長さはどれくらいですか", ("橋", "長")),
    ],
)
def test_characters_that_the_dictionary_does_not_join_are_sought(question: str, words: tuple[str, ...]) -> None:
    assert Query(question).words == words


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("What does it cost?", ("cost",)),
        ("Wie hoch?", ("hoch",)),
        ("¿Cuánto cuesta?", ("cuesta",)),
        ("The high price of old bread", ("high", "price", "old", "bread")),
        ("Does the year of interest on a bill count?", ("year", "interest", "bill", "count")),
        ("Die hohe Zeit des Rechts", ("hohe", "zeit", "rechts")),
        ("Der Betrug am Kunden", ("betrug", "kunden")),
        ("¿Qué come la llama en las montañas?", ("llama", "montañas")),
        ("ぶどう酒の歴史", ("ぶどう酒", "歴史")),
    ],
)
def test_a_word_asks_only_among_words_with_which_it_asks(question: str, words: tuple[str, ...]) -> None:
    assert set(words) <= set(Query(question).words)


def test_question_words_tell_the_language_where_filler_words_do_not() -> None:
    assert Query("wie hoch Kirchturm der Stadt").matches("Der Kirchturm und die Städte").counts == [1, 1]
    assert asked_in("french", "combien de marins").found > asked_in("spanish", "combien de marins").found
    assert "bilhete" in Query("quanto custa bilhete").words and "custa" not in Query("quanto custa bilhete").words


def test_each_language_has_at_most_sixty_question_words() -> None:
    by_language: dict[str, set[str]] = {}
    for language, kind, words in entries_of_list():
        assert kind in (FIGURE, DATE, NAME, "any")
        by_language.setdefault(language, set()).update(words.replace("…", " ").split())
    assert {language: len(words) for language, words in by_language.items() if len(words) > 60} == {}
    assert set(by_language) == {
        "english",
        "german",
        "french",
        "spanish",
        "italian",
        "turkish",
        "portuguese",
        "chinese",
        "japanese",
    }


def test_question_words_are_no_fillers_and_no_value_needs_less_approval_for_them() -> None:
    text = files("ava_roles.texts").joinpath("filler_words.txt").read_text(encoding="utf-8")
    listed: set[str] = set()
    for line in text.splitlines():
        if not line.startswith("#"):
            listed.update(line.partition(":")[2].split())
    assert filler_words() == listed
    nothing_approved = ApprovedTexts(["Paris"])
    others = {word for _, _, words in entries_of_list() for word in words.replace("…", " ").split()} - listed
    assert {"hoch", "beträgt", "cuesta", "combien", "有多高", "何位"} <= others
    for word in others:
        assert not nothing_approved.has(word)
        assert new_parts(word, nothing_approved) == [word]
