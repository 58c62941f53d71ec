"""Which passage of a document is quoted first, and which of its sentences the summary shows."""

import pytest

from ava_roles.texts.passages import Query
from ava_server.models.offline_passages import (
    Passage,
    Spread,
    best_passages,
    best_sentences,
    reason_for,
    whole_sentences,
)

TARIFF = """### § 2 Abgabentarif

(1) Die Umschlagabgabe beträgt für Steinkohle 2,19 Euro je Tonne und
für gepresste Kohle 4,78 Euro je Tonne. Mischungen von Steinkohle
und gepresster Kohle unterliegen der Abgabe nach Satz 1 entsprechend
den in ihnen enthaltenen Kohlearten."""
LIST = """(2) Für kohlehaltige Waren beträgt die Umschlagabgabe

1.  bei einer Ware, die 10 bis 100 Gramm Steinkohle je Kilogramm enthält,
    0,12 Euro je Tonne der Ware;


2.  bei einer Ware, die mehr als 100 bis 300 Gramm Steinkohle je Kilogramm
    enthält, 0,43 Euro je Tonne der Ware;


3.  bei einer Ware, die mehr als 300 bis 500 Gramm Steinkohle je Kilogramm
    enthält, 0,86 Euro je Tonne der Ware;


4.  bei einer Ware, die mehr als 500 bis 700 Gramm Steinkohle je Kilogramm
    enthält, 1,32 Euro je Tonne der Ware;"""


def test_a_sentence_with_the_whole_question_outweighs_a_list_that_repeats_a_part() -> None:
    query = Query("Was beträgt die Umschlagabgabe für Steinkohle?")
    law = [Passage("law.md", "lines 71 to 93", LIST, 71), Passage("law.md", "lines 64 to 69", TARIFF, 64)]
    best = best_passages(law, query, Spread((9,) * len(query.words), 1_000), 5).pieces[0]
    assert best.location == "law.md:64"
    shown = best_sentences(best.text, query, Spread((9,) * len(query.words), 1_000), 120, 300)
    assert shown.startswith("(1) Die Umschlagabgabe beträgt für Steinkohle 2,19 Euro je Tonne")


CHOSEN = [
    (
        "What is the notice for less than one year of service?",
        "For over 1 year of service the notice is 42 days. For less than one year of service the notice is 14 days.",
        "For less than one year of service the notice is 14 days.",
    ),
    (
        "How many sailors does the ferry Alma carry?",
        "The ferry Alma carries sailors and guests. The sailors that the ferry carries are 12. It is blue.",
        "The sailors that the ferry carries are 12.",
    ),
    (
        "When was the ferry Alma sold?",
        "The ferry Alma was sold at a loss. It was for 12 sailors. The ferry Alma was sold again in 1971.",
        "The ferry Alma was sold again in 1971.",
    ),
    (
        "Who sold the ferry Alma?",
        "The ferry Alma was sold at a loss. The ferry Alma was sold by the captain Ruth Berg. It is blue.",
        "The ferry Alma was sold by the captain Ruth Berg.",
    ),
    (
        "Combien de marins travaillent sur le ferry ?",
        "Les marins du ferry travaillent la nuit. Au ferry travaillent 12 marins. Il est bleu.",
        "Au ferry travaillent 12 marins.",
    ),
    ("渡轮上有多少水手？", "渡轮的水手晚上工作。渡轮有12名水手。它是蓝色的。", "渡轮有12名水手。"),
    (
        "連絡船の船員は何人ですか",
        "連絡船の船員は夜に働く。連絡船の船員は12人です。船は青い。",
        "連絡船の船員は12人です。",
    ),
]


@pytest.mark.parametrize(("question", "text", "sentence"), CHOSEN)
def test_of_sentences_with_as_much_of_a_question_the_summary_shows_the_one_with_the_answer(
    question: str, text: str, sentence: str
) -> None:
    query = Query(question)
    assert best_sentences(text, query, _even(query), 0, 300) == sentence


def test_a_sentence_without_the_figure_that_is_asked_for_is_shown_with_those_up_to_it() -> None:
    text = "The sailors of the ferry Alma are paid by the day. They sleep on board. There are 12. It is blue."
    query = Query("How many sailors has the ferry Alma?")
    assert best_sentences(text, query, _even(query), 0, 300) == text.removesuffix(" It is blue.")
    assert best_sentences(text, query, _even(query), 0, 60) == "The sailors of the ferry Alma are paid by the day."


def test_sentences_end_in_scripts_without_blanks_and_not_after_the_initial_of_a_name() -> None:
    assert whole_sentences("渡轮是蓝色的。「它很旧。」船长说！") == ["渡轮是蓝色的。", "「它很旧。」", "船长说！"]
    assert whole_sentences("It was sold by Ruth E. Berg. She wept.") == ["It was sold by Ruth E. Berg.", "She wept."]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# Alma\n\nIt is blue. A ferry sails.", "because it has ferry, alma (line 7)."),
        ("# A\n\nIt is blue. The ferry Alma carries us.", "because one sentence has ferry, alma (line 9)."),
        ("The Alma is a ferry.\n\nSailors sleep.", "because it has sailors, ferry, alma; one sentence has ferry, alma"),
        ("It is blue.", "as the beginning of what the task names."),
    ],
)
def test_a_line_says_which_words_a_passage_was_chosen_for_and_where_they_are(text: str, reason: str) -> None:
    query = Query("Which sailors of the ferry Alma?")
    assert reason_for(Passage("a.md", "line 7", text, 7), query).startswith(f"a.md:7 was chosen {reason}")


def _even(query: Query) -> Spread:
    return Spread((1,) * len(query.words), 3)
