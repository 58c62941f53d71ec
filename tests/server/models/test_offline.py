import gzip
import random
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import openpyxl
import pytest

from ava_roles.sandbox.paths import Root
from ava_roles.texts.passages import Query
from ava_roles.tool import Tool, ToolContext
from ava_roles.tools.registry import builtin_tools
from ava_roles.wrap import wrap_tool_output
from ava_server.models import offline
from ava_server.models.base import AssistantTurn, Completion, Request, ToolSchema, ToolTurn, Turn, UserTurn
from ava_server.models.model_choice import OFFLINE
from ava_server.models.offline import LocalModel, answer
from ava_server.models.offline_passages import (
    QUOTE_CHARS,
    Passage,
    Spread,
    best_passages,
    failures,
    passages,
    pieces,
)

NAMES = ("read_file", "search_and_read", "read_webpages")


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Root]:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").write_text(GUIDE, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("Nothing of interest here.\n", encoding="utf-8")
    root = Root.open(tmp_path)
    yield root
    root.close()


async def test_calls_the_tools_that_suit_the_task() -> None:
    task = "What do docs/guide.md and https://example.org/lamps (see http://a.example/b.html) say of refunds?"
    completion = await ask(request(task))

    assert [(call.name, call.args) for call in completion.calls] == [
        ("read_webpages", {"urls": ["https://example.org/lamps", "http://a.example/b.html"]}),
        ("read_file", {"path": "docs/guide.md"}),
        ("search_and_read", {"query": "What do and (see say of refunds?", "max_files": 10}),
    ]
    assert completion.cost_micros == 0
    assert completion.usage is not None
    assert completion.usage.counted == 0


async def test_calls_only_available_tools_and_reads_the_task_context() -> None:
    system = "You.\n\n---\n\n## Task context\n\nSee https://x.example/y.\n\n## Limits\n\nhttps://no.example\n"
    completion = await ask(request("Compare e.g. prices at example.com", system=system, names=("read_webpages",)))
    assert [call.args for call in completion.calls] == [{"urls": ["https://x.example/y"]}]


async def test_quotes_are_verbatim_from_the_files(folder: Root) -> None:
    result = submitted(await run("When is the refund for a lamp paid?", folder))

    findings = result["findings"]
    assert findings
    assert all(finding["quote"] in GUIDE and len(finding["quote"]) <= QUOTE_CHARS for finding in findings)
    assert "five working days" in findings[0]["quote"]
    assert findings[0]["source_url"].startswith("docs/guide.md:")
    assert "source_name" not in findings[0], "one place is said once"
    assert "**docs/guide.md**" in str(result["output"])
    assert result["confidence"] is None
    assert "No language model read this" in str(result["caveats"])
    assert len(str(result["summary"])) <= 500


async def test_the_log_says_why_each_passage_was_chosen(folder: Root) -> None:
    completion = await run("When is the refund for a lamp paid?", folder)
    findings = submitted(completion)["findings"]
    reasons = completion.text.splitlines()[1:]
    assert reasons[0] == "docs/guide.md:1 was chosen because one sentence has refund, lamp, paid (line 5)."
    assert len(reasons) == len(findings)


async def test_shows_a_file_the_task_names_even_if_it_lacks_the_search_words(folder: Root) -> None:
    result = submitted(await run("Explain notes.txt", folder, names=("read_file",)))
    assert "Nothing of interest here." in str(result["output"])
    assert "from the beginning" in str(result["summary"])


async def test_finding_nothing_is_reported_with_a_next_step(folder: Root) -> None:
    result = submitted(await run("Where is the xylophone?", folder))
    assert result["output"] is None
    assert result["findings"] == []
    assert str(result["summary"]).startswith("No answer found: none of the searched text has xylophone.")
    assert result["confidence"] == offline.NO_CONFIDENCE and result["confidence"] < 0.2
    assert "Found nowhere: xylophone." in result["caveats"]
    assert "is configured;" not in str(result["summary"]).split("To have one read it")[0]
    assert "ava key set openrouter" in str(result["caveats"])
    assert "AVA_MODEL_BASE_URL" in str(result["caveats"])
    assert "search_and_read returned nothing: 0 files fit best" in str(result["caveats"])


async def test_an_unreadable_file_becomes_a_caveat(folder: Root) -> None:
    result = submitted(await run("Does missing.md speak of the refund?", folder))
    assert result["findings"]
    assert any("missing.md" in caveat for caveat in result["caveats"])


async def test_reports_when_it_has_no_tool_to_read_with() -> None:
    result = submitted(await ask(request("Think about lamps.", names=())))
    assert result["output"] is None
    assert "had no tool to read with" in str(result["summary"])


async def test_a_task_without_search_words_gets_a_complete_sentence(folder: Root) -> None:
    result = submitted(await run("?!", folder))
    assert str(result["summary"]).startswith("No answer found: the task has no words to look for.")


async def test_returns_at_most_five_passages_and_none_far_below_the_best(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"tide{number}.txt").write_text("The tide table hangs in the harbour office.\n", encoding="utf-8")
        (tmp_path / f"other{number}.txt").write_text(f"Number {number}: nothing but gulls.\n", encoding="utf-8")
    (tmp_path / "tide.txt").write_text("At spring tide the ferry waits for the pilot and the tide.\n", encoding="utf-8")
    root = Root.open(tmp_path)
    fits_one = submitted(await run("When does the ferry wait for the pilot at spring tide?", root))["findings"]
    fits_all = submitted(await run("Where does the tide table hang?", root))["findings"]
    root.close()
    assert [finding["source_url"] for finding in fits_one] == ["tide.txt:1"]
    assert 1 <= len(fits_all) <= 5


async def test_prefers_a_sentence_to_a_bare_heading_as_a_finding(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Refunds\n\nRefunds are paid within a week.\n", encoding="utf-8")
    root = Root.open(tmp_path)
    findings = submitted(await run("refunds", root))["findings"]
    root.close()
    assert [finding["quote"] for finding in findings] == ["# Refunds\n\nRefunds are paid within a week."]


MINUTES = """Procès-verbal de la séance du 4 mai

Le port a été entendu sur les travaux du quai nord, sur ceux de la jetée
et sur l'état des bateaux qui y sont amarrés depuis l'hiver dernier, {long}
La commission a entendu le maire adjoint sur le budget de la
réfection du phare, dont le montant voté par le conseil après le débat est
de 48 000 euros. Elle a ensuite levé la séance. {long}
"""


async def test_a_quote_has_the_sentence_with_the_answer_to_its_end(tmp_path: Path) -> None:
    for lines in range(10, 20):
        long = "et sur bien\nd'autres choses qui ne sont pas encore connues du conseil, " * lines
        (tmp_path / "minutes.txt").write_text(MINUTES.format(long=long.strip(", ") + "."), encoding="utf-8")
        result = await asked(tmp_path, "Quel est le montant du budget voté pour la réfection du phare ?")
        quote = result["findings"][0]["quote"]
        assert "La commission a entendu" in quote and "de 48 000 euros." in quote


async def test_a_heading_at_the_end_of_a_passage_is_not_a_file_name(tmp_path: Path) -> None:
    long = "The lamp is lit by the keeper every evening at dusk, and put out at dawn. " * 8
    weaker = "The lamp is lit every evening. " * 20
    (tmp_path / "rules.md").write_text(f"{weaker}\n\n{weaker}\n\n{long}\n\n## [limits]\n", encoding="utf-8")
    root = Root.open(tmp_path)
    tool = builtin_tools()["search_and_read"]
    output = (await tool(tool.spec.args.model_validate({"query": "keeper lamp"}), ToolContext(files=root))).text
    root.close()
    assert "\n\n## [limits]\n\nlines" in output or "\n\n## [limits]\n\nline " in output
    assert {passage.source for passage in passages("search_and_read", output)} == {"rules.md"}


UNREAD = "Files searched: 9,000. Not searched: 1,200 beyond the limits of one search: give a path."


def test_what_a_search_or_read_left_out_becomes_a_caveat() -> None:
    searched = "2 files fit best (9,000 searched); not searched: 1,200 beyond the limits of one search: give a path"
    spread = "Of 20,100 passages have: gives 30, light 1,004"
    found = f"{searched}\n{spread}\n\n## a.md\n\nline 3:\nA lamp gives light."
    read = "b.txt (text, 90,000 bytes): lines 1 to 400 of 900\n\n1  A lamp gives light.\n\n[goes on: offset 401]"
    turns = [
        ToolTurn(
            "1", "search_and_read", wrap_tool_output(found, tool="search_and_read", nonce="01234567"), unread=UNREAD
        ),
        ToolTurn("2", "read_file", wrap_tool_output(read, tool="read_file", nonce="01234567")),
    ]
    completion = answer(request("What gives light?", AssistantTurn({}), *turns))
    caveats = submitted(completion)["caveats"]
    assert UNREAD in caveats
    assert "b.txt was not read to its end: only lines 1 to 400." in caveats


async def test_submits_at_once_on_the_last_turn() -> None:
    notice = UserTurn("This is the last turn: max_iterations is reached. Only submit_result is accepted now.")
    assert submitted(await ask(request("Find lamps in docs/guide.md", notice)))["output"] is None


async def test_the_same_request_gets_the_same_answer(folder: Root) -> None:
    task = "When is the refund for a lamp paid?"
    assert await run(task, folder) == await run(task, folder)


async def test_finds_random_words_where_they_are(tmp_path: Path) -> None:
    chance = random.Random(7)
    letters = "bcdfghklmnprstvz"
    words = ["".join(chance.choice(letters) + chance.choice("aeiou") for _ in range(4)) for _ in range(400)]

    def lines(count: int) -> str:
        return "\n".join(" ".join(chance.choice(words[10:]) for _ in range(11)) for _ in range(count))

    texts = {f"{number}.txt": lines(60) for number in range(12)}
    texts["3.txt"] += f" {words[0]} {words[1]} " + lines(30)
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    root = Root.open(tmp_path)
    result = submitted(await run(f"What is said about {words[0]} {words[1]}?", root))
    root.close()
    findings = result["findings"]
    assert findings[0]["source_url"].startswith("3.txt")
    assert f"{words[0]} {words[1]}" in findings[0]["quote"]
    assert all(finding["quote"] in texts["3.txt"] for finding in findings)


def test_parses_pages_in_the_format_the_tool_prints() -> None:
    printed = (
        "# Lamps\nURL: https://a.example/lamps\nRedirected from: https://a.example/\n"
        "status 200 · text/html · date 2026-01-01 · 5,000 characters\n\n"
        "A lamp gives light.\n\n# Kinds\n\nOil lamps are old.\n\n"
        "[12 more characters of this page follow below]\n\n"
        "# https://b.example/gone\nNot read: status 404: there is no such page\n\n"
        "# The rest of https://a.example/lamps\n\nThe end of lamps."
    )
    found = passages("read_webpages", wrap_tool_output(printed, tool="read_webpages", nonce="01234567"))
    assert [(passage.source, passage.text) for passage in found] == [
        ("https://a.example/lamps", "A lamp gives light.\n\n# Kinds\n\nOil lamps are old."),
        ("https://a.example/lamps", "The end of lamps."),
    ]
    assert {passage.title for passage in found} == {"Lamps"}
    assert failures("read_webpages", printed) == ["https://b.example/gone: status 404: there is no such page"]


def test_a_failed_call_has_no_passages() -> None:
    assert passages("read_file", "Failed.\n<tool_output_x>\na.bin: binary\n</tool_output_x>") == []
    assert passages("read_file", "no such file: a.md; list the folder") == []
    assert passages("web_search", "# x\nURL: https://a.example\n") == []


async def asked(folder: Path, task: str, **files: str) -> dict[str, Any]:
    """Write files, where `__` in a name is a dot, and return what the reader makes of a task about them."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    root = Root.open(folder)
    try:
        return submitted(await run(task, root))
    finally:
        root.close()


FORMS = [
    (
        "Wie werden alte Häuser geschützt?",
        "Der Schutz eines alten Hauses ist Sache der Stadt; geschützte Fassaden dürfen nicht verändert werden.",
        "Der Garten ist im Winter geschlossen.",
    ),
    (
        "Quand les journaux sont-ils livrés ?",
        "Le journal est livré avant sept heures, sauf le dimanche.",
        "Le magasin vend aussi des timbres et des cartes.",
    ),
    (
        "Где хранятся старые книги библиотеки?",
        "Старую книгу из библиотеки хранят в подвале.",
        "Музей закрыт по понедельникам и вторникам.",
    ),
    ("旧的备份应该保存多久？", "我们把备份文件在异地\n    保存三年，旧备份然后删除。", "会议室在二楼，请提前预约。"),
    (
        "バックアップはどこに保存されますか?",
        "毎晩のバックア\n  ップは別の建物に保存されています。",
        "会議室は二階にあります。",
    ),
    ("How are batteries recycled?", "Recycling a battery costs nothing: hand it in.", "Lamps are sold on Monday."),
    (
        "What if a child lost its ticket?",
        "Children who lose a ticket travel free.",
        "The pier is old and made of wood.",
    ),
    (
        "पुस्तकालय में कितनी किताबें हैं?",
        "पुस्तकालय की हर किताब नीचे के कमरे में है।",
        "पस्तक लय का कतबा हमारे गाँव के मेले में मिला।",
    ),
    (
        "ما أسعار مكتبة مدرسة؟",
        "تجد الأسعار في الدليل، وللمكتبة والمدرسة باب واحد.",
        "يباع الخبز في السوق كل يوم.",
    ),
    (
        "İlçedeki kütüphaneler ne zaman açılıyor?",
        "İlçe ve köy için kütüphane sabah sekizde açılıyor.",
        "Müze pazartesi günleri kapalı.",
    ),
    (
        "ห้องสมุดประชาชนเปิดกี่โมง",
        "ห้องสมุดประชาชนเปิดเวลาเก้าโมงเช้าทุกวัน",
        "ร้านค้าในตลาดขายผลไม้และดอกไม้ในราคาถูก",
    ),
]


@pytest.mark.parametrize(
    ("question", "answer", "other"),
    FORMS,
    ids=["de", "fr", "ru", "zh", "ja", "en", "irregular", "hi", "ar", "tr", "th"],
)
async def test_finds_words_in_other_forms_and_scripts(tmp_path: Path, question: str, answer: str, other: str) -> None:
    result = await asked(tmp_path, question, right__txt=answer, other__txt=other)
    assert [finding["source_url"] for finding in result["findings"]] == ["right.txt:1"]
    assert "No answer found" not in result["summary"]


@pytest.mark.parametrize(("question", "answer", "other"), FORMS[3:5], ids=["zh", "ja"])
async def test_finds_pairs_of_characters_without_the_extra_for_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str, answer: str, other: str
) -> None:
    monkeypatch.setattr("ava_roles.texts.passages.has_extra", lambda _name: False)
    await test_finds_words_in_other_forms_and_scripts(tmp_path, question, answer, other)


def test_vowel_signs_belong_to_words_and_letters_beside_each_other_in_any_thai_text_tell_nothing() -> None:
    query = Query("แมนนิงเล่นให้ทีมอะไร")
    assert "ให้" in query.words and "เล่น" in query.words
    assert Query("कितनी किताबें").matches("हर किताब").counts[-1] == 1
    assert query.nearness("แมนนิงเล่นให้ทีมโคลต์") > 0.5
    assert query.nearness("เมื่อวานนี้อากาศดีมากและเด็กเล็กให้อาหารปลาอยู่ในสวน") < 0.1


async def test_parts_of_words_count_for_an_answer(tmp_path: Path) -> None:
    others = {f"f{number}__txt": "Das Wetter war gestern schön, und alle waren im Garten." for number in range(30)}
    question = "Was fressen Beroiden?"
    page = "Die Küstenberoiden fressen andere Rippenquallen."
    assert (await asked(tmp_path, question, page__txt=page, **others))["findings"]
    page = "Die Gäste fressen wie immer andere Kuchen."
    assert (await asked(tmp_path, question, page__txt=page, **others))["findings"] == []


def test_only_words_that_are_short_enough_for_their_stems_have_parts() -> None:
    for length in (40, 41, 100_000):
        word = ("abcdefghij" * 10_000)[:length]
        assert Query(word).likeness(word[:-1], [1.0]) == (39 / 40 if length == 40 else 0.0)


async def test_words_found_nowhere_are_named_beside_what_was_found(tmp_path: Path) -> None:
    task = "When does the ferry to the northern island leave the harbour with the xylophone?"
    text = "The ferry to the northern island leaves the harbour at noon."
    result = await asked(tmp_path, task, ferry__txt=text, **{f"n{number}__txt": "Nothing." for number in range(9)})
    assert [finding["quote"] for finding in result["findings"]] == [text]
    assert "Found nowhere: xylophone." in result["summary"] and "Found nowhere: xylophone." in result["caveats"]
    assert "xylophone" not in result["findings"][0]["claim"]


async def test_claims_only_words_that_the_quoted_passages_have(tmp_path: Path) -> None:
    task = "How do I keep a backup of the lighthouse logbook with rsync?"
    text = "Keeping a backup: copy the lighthouse logbook to the second disk each night, and keep three of the backups."
    others = {f"n{number}__txt": "The gulls are loud." for number in range(30)}
    result = await asked(tmp_path, task, backup__md=text, tools__txt="rsync 3.2", **others)
    assert [finding["quote"] for finding in result["findings"]] == [text]
    claimed = re.search(r"^1 passage in 1 source with words of the task \((.+?)\), ", result["summary"])
    assert claimed is not None and "rsync" not in claimed[1]
    for words in (claimed[1], result["findings"][0]["claim"].removeprefix("backup.md speaks of ")):
        assert set(words.split(", ")) <= set(re.findall(r"\w+", text.lower())) and "keeping" in words


LONG = "The keeper " + "lights the lamp and then " * 40


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("# Lamp\n\nThe keeper lights the lamp at dusk, e.g. at six. " + "He trims its wick. " * 40, "wick."),
        ("The keeper lights the lamp (see p. 4)! " + "The gulls are loud, and " * 40, "(see p. 4)!"),
        (LONG, "is from a.md:1."),
        ("- the keeper lights the lamp\n- the keeper sleeps", "is from a.md:1."),
        ("守夜人黄昏时点灯。" + "the keeper lights the lamp。", "lamp。"),
    ],
)
async def test_a_summary_ends_at_a_sentence(tmp_path: Path, text: str, ends: str) -> None:
    result = await asked(tmp_path, "When does the keeper light the lamp?", a__md=text)
    assert "No answer found" not in result["summary"]
    assert result["summary"].endswith(ends) and len(result["summary"]) <= 500


async def test_a_sentence_that_leaves_no_room_in_the_summary_does_not_take_the_place_with_it(tmp_path: Path) -> None:
    text = f"The keeper lights the lamp {'at dusk and ' * 35} at six."
    assert 400 < len(text) < 500
    result = await asked(tmp_path, "When does the keeper light the lamp?", a__md=text)
    assert result["summary"].endswith("The best is from a.md:1.")


@pytest.mark.parametrize("task", ["Where is " + "x" * 900 + "?", " ".join(f"{'y' * 60}{n}" for n in range(12))])
async def test_long_words_leave_a_summary_of_whole_sentences(tmp_path: Path, task: str) -> None:
    result = await asked(tmp_path, task, a__md="Nothing of the kind.")
    assert result["summary"].startswith("No answer found: ")
    assert result["summary"].endswith(".") and len(result["summary"]) <= 500


async def test_in_a_few_notes_a_missing_word_does_not_outweigh_those_found(tmp_path: Path) -> None:
    notes = {
        "otter__md": "Otter charges 1.4 % of each payment, and nothing a month.",
        "heron__md": "For a payment, Heron has the following charge: thirty cents.",
    }
    result = await asked(tmp_path, "What does each provider charge for a payment?", **notes)
    assert len(result["findings"]) == 2 and "Found nowhere: provider." in result["summary"]


async def test_without_the_rare_words_there_is_no_answer_and_no_claim(tmp_path: Path) -> None:
    text = "The server keeps the messages of the mail queue for five days."
    result = await asked(tmp_path, "How do I connect the server to Kubernetes or Zulip?", mail__txt=text)
    assert result["summary"].startswith("No answer found: none of the searched text has connect, kubernetes, zulip.")
    assert result["findings"] == [] and result["confidence"] == offline.NO_CONFIDENCE
    assert "Found nowhere: connect, kubernetes, zulip." in result["caveats"]
    assert text in result["output"] and result["output"].startswith("No answer was found in these passages")


async def test_rare_words_that_no_passage_has_together_are_no_answer(tmp_path: Path) -> None:
    texts = {f"f{number}__txt": "Common words fill this page about the weather." for number in range(30)}
    texts |= {"a__txt": "A zebra.", "b__txt": "Some marzipan.", "c__txt": "The glacier.", "d__txt": "An anvil."}
    result = await asked(tmp_path, "Does the zebra eat marzipan on the glacier beside the anvil?", **texts)
    assert result["summary"].startswith("No answer found") and result["findings"] == []


async def test_rare_words_that_no_sentence_has_together_are_no_answer(tmp_path: Path) -> None:
    page = "A zebra came. Some marzipan fell. The glacier melts. An anvil rang. It was cold."
    others = {f"f{number}__txt": "Common words fill this page about the weather." for number in range(30)}
    question = "Does the zebra eat marzipan on the glacier beside the anvil?"
    assert (await asked(tmp_path, question, page__txt=page, **others))["findings"] == []
    together = "The zebra eats marzipan on the glacier."
    result = await asked(tmp_path, question, page__txt=f"{page} {together}", **others)
    assert together in result["findings"][0]["quote"]


async def test_words_beside_each_other_as_in_the_question_are_likelier_to_answer_it(tmp_path: Path) -> None:
    others = {f"f{number}__txt": "Common words fill this page about the weather." for number in range(30)}
    question = "How high is the yearly fee for a berth on regatta weekends of gliders?"
    together = "The yearly fee for a berth is 120 euros."
    result = await asked(tmp_path, question, page__txt=together, **others)
    assert [finding["quote"] for finding in result["findings"]] == [together]
    (tmp_path / "page.txt").write_text("A berth costs more. Another fee is due. It is yearly.")
    assert (await asked(tmp_path, question, **others))["findings"] == []


async def test_words_that_only_files_together_have_answer_a_list_and_no_question(tmp_path: Path) -> None:
    others = {f"f{number}__txt": "Common words fill this page about the weather." for number in range(30)}
    each = {"a__txt": "A zebra came.", "b__txt": "Some marzipan fell.", "c__txt": "The glacier melts."}
    assert (await asked(tmp_path, "Is the zebra of marzipan on the glacier?", **each, **others))["findings"] == []
    listed = "What do these files say about zebra, marzipan and glacier?"
    assert len((await asked(tmp_path, listed, **each, **others))["findings"]) == 3


async def test_a_word_that_only_the_name_of_the_file_has_is_not_found_nowhere(tmp_path: Path) -> None:
    table = "Zone,2022,2023\nEUR,8604,9467\nAMER,7000,7500\n"
    result = await asked(tmp_path, "What were the sales of zone EUR in 2023?", sales__csv=table)
    assert "2023: 9467" in result["findings"][0]["quote"] and "Found nowhere" not in str(result)
    result = await asked(tmp_path, "What were the losses of zone EUR in 2023?", sales__csv=table)
    assert "Found nowhere: losses." in result["summary"]


async def test_a_long_question_is_answered_where_several_sentences_have_most_of_it(tmp_path: Path) -> None:
    page = (
        "Every boat has a berth. Write its number on the form. Tell us if you leave. Those who do so for the winter"
        " come to the office. There you hand in the key."
    )
    others = {
        f"f{number}__txt": f"The harbour fills this page about boats and weather {number}." for number in range(30)
    }
    question = (
        "Can I hand in the key and the form of my berth before I leave for the winter, or wait for the inspector?"
    )
    assert page in (await asked(tmp_path, question, page__txt=page, **others))["findings"][0]["quote"]


@pytest.mark.parametrize("headings", [("## The rent", "## The heating"), ("3.1. The rent", "3.2. The heating")])
async def test_a_quote_comes_with_its_heading_and_ends_before_the_next(
    tmp_path: Path, headings: tuple[str, str]
) -> None:
    rent, heating = "Mira pays the rent on the third of each month.", "The heating is read in May, and Noah pays it."
    text = f"# The flat\n\n{headings[0]}\n\n{rent}\n\n{headings[1]}\n\n{heating}\n"
    result = await asked(tmp_path, "When does Mira pay the rent?", flat__md=text)
    assert result["findings"][0]["quote"].endswith(f"{headings[0]}\n\n{rent}")


async def test_a_page_that_explains_ranks_above_a_list_of_changes(tmp_path: Path) -> None:
    done, page = "The cache is flushed when the disk is full.", "If the disk is full, the cache is flushed at once."
    files = {"CHANGES__txt": done, "NEWS__md": f"News: {done}", "todo__txt": f"Check: {done}", "z__txt": page}
    result = await asked(tmp_path, "When is the cache flushed to a full disk?", **files)
    assert result["findings"][0]["source_url"] == "z.txt:1"


async def test_prose_ranks_above_code_and_lists_of_files(tmp_path: Path) -> None:
    prose = "The cache is flushed when the disk is full, so that the logs can be written."
    code = "```\ncache.flush(disk, full=True)\nif disk.full:\n    cache.flush(logs)\n```\n"
    listed = "\n".join(["cache/flush/disk_full.py", "cache/disk.txt", "flush/cache/full.md"])
    result = await asked(tmp_path, "When is the cache flushed to a full disk?", p__md=prose, c__md=code, l__txt=listed)
    assert result["findings"][0]["quote"] == prose


async def test_each_page_gives_one_place_if_there_are_enough_pages(tmp_path: Path) -> None:
    about = ["fishermen who leave early", "guests of both hotels", "the sailing school", "pilots of large ships"]
    texts = {
        f"page{number}__txt": "\n\n".join(
            [
                f"For {them} a tide table hangs in the harbour.",
                *(f"{them[-5:]}{line}" for line in range(90)),
                "Tide table.",
            ]
        )
        for number, them in enumerate(about)
    }
    findings = (await asked(tmp_path, "Where in the harbour hangs the tide table?", **texts))["findings"]
    assert sorted(finding["source_url"] for finding in findings[:4]) == [f"page{number}.txt:1" for number in range(4)]


async def test_a_page_gives_a_second_place_before_pages_that_fit_worse(tmp_path: Path) -> None:
    first, second = "The tide table hangs in the harbour.", "A newer tide table hangs in the harbour office."
    guide = "\n\n".join([first, *(f"Line {line} is about boats." for line in range(90)), second])
    worse = {f"page{number}__txt": f"The harbour of town {number} has a table." for number in range(5)}
    result = await asked(tmp_path, "Where in the harbour hangs the tide table?", guide__txt=guide, **worse)
    quotes = [finding["quote"] for finding in result["findings"]]
    assert any(first in quote for quote in quotes[:2]) and any(second in quote for quote in quotes[:2])


def test_what_the_search_ranks_first_wins_among_pieces_that_fit_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = "The big tide table hangs outside, beside the door of the school, as she says."
    shorter = "The tide table hangs near our lighthouse, and he reads it to us."
    files = f"## a.txt\n\nline 1:\n{longer}\n\n## b.txt\n\nline 1:\n{shorter}"
    found = f"2 files fit best (2 searched)\nOf 2 passages have: tide 2, table 2, hang 2\n\n{files}"
    turn = ToolTurn("1", "search_and_read", wrap_tool_output(found, tool="search_and_read", nonce="01234567"))

    def sources() -> list[str]:
        result = submitted(answer(request("Where does the tide table hang?", AssistantTurn({}), turn)))
        return [finding["source_url"] for finding in result["findings"]]

    assert sources() == ["a.txt:1", "b.txt:1"]
    monkeypatch.setattr("ava_server.models.offline_passages._NEXT_FILE", 1.0)
    assert sources() == ["b.txt:1", "a.txt:1"], "the shorter one alone fits a little better"


async def test_a_name_whose_words_stand_only_apart_is_no_answer(tmp_path: Path) -> None:
    others = {f"f{number}__txt": "Common words fill this page about the weather." for number in range(30)}
    others |= {"page__txt": "The mail server is new. Microsoft sells it. Our teams connect cables."}
    question = "How do I connect the mail server to Microsoft Teams?"
    result = await asked(tmp_path, question, **others)
    assert result["summary"].startswith("No answer found: no passage has enough of") and result["findings"] == []
    result = await asked(tmp_path, question, **others, teams__txt="Microsoft\nTeams is a program.")
    assert result["findings"], "the name is known"


async def test_capitals_tell_no_name_in_german(tmp_path: Path) -> None:
    others = {f"f{number}__txt": "Das Wetter war gestern schön, und alle waren im Garten." for number in range(30)}
    page = "Der Hafen vergibt Liegeplätze. Die Gebühr im Winter ist halb so hoch."
    question = "Was kostet ein Liegeplatz, wenn Hafen Gebühr im Winter verlangt?"
    assert (await asked(tmp_path, question, page__txt=page, **others))["findings"]


async def test_the_same_page_in_two_formats_is_shown_once(tmp_path: Path) -> None:
    text = "The ferry leaves the harbour at noon, except on Sunday, when it leaves at nine."
    page = f"<html><script>ferry()</script><body><p class='ferry'>{text}</p></body></html>"
    result = await asked(tmp_path, "When does the ferry leave the harbour?", ferry__txt=text, ferry__html=page)
    assert len(result["findings"]) == 1
    assert result["findings"][0]["quote"].strip() == text


async def test_answers_from_a_compressed_page_and_counts_what_was_not_searched(tmp_path: Path) -> None:
    text = "The ferry leaves the harbour at noon."
    (tmp_path / "ferry.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\0\0\0")
    (tmp_path / "huge.txt").write_text("ferry\n" * 2_000_000)
    result = await asked(tmp_path, "When does the ferry leave the harbour?")
    assert [finding["source_url"] for finding in result["findings"]] == ["ferry.txt.gz:1"]
    assert "Files searched: 1. Not searched: 1 not text, 1 too large or damaged." in result["caveats"]


async def test_filler_words_are_neither_sought_nor_missed(tmp_path: Path) -> None:
    result = await asked(
        tmp_path, "Could you please tell me how often the ferry leaves?", a__txt="The ferry leaves daily."
    )
    assert [
        call.args for call in (await ask(request("Could you please tell me how often the ferry leaves?"))).calls
    ] == [{"query": "Could you please tell me how often the ferry leaves?", "max_files": 10}]
    assert result["findings"][0]["claim"] == "a.txt speaks of ferry, leaves"
    assert not any("Found nowhere" in caveat for caveat in result["caveats"])


ASKED = [
    ("How high is the church tower?", "The church tower rises to 91 metres."),
    ("Wie hoch ist der Kirchturm?", "Der Kirchturm misst 91 Meter."),
    ("Combien de marins travaillent sur le ferry ?", "Douze marins travaillent sur le ferry."),
    ("¿Cuánto cuesta la entrada al museo?", "La entrada al museo vale doce euros."),
    ("Quanto costa il biglietto del traghetto?", "Il biglietto del traghetto vale dodici euro."),
    ("Quanto custa o bilhete do navio?", "O bilhete do navio vale doze euros."),
    ("图书馆有多少学生？", "本图书馆的学生共三百名。"),
    ("図書館は何年に完成しましたか", "図書館が完成したのは1998です。"),
]


@pytest.mark.parametrize(("question", "answer"), ASKED, ids=["en", "de", "fr", "es", "it", "pt", "zh", "ja"])
async def test_question_words_are_neither_sought_nor_missed_nor_a_reason_for_no_answer(
    tmp_path: Path, question: str, answer: str
) -> None:
    others = {f"f{number}__txt": "The weather was fine, and the boats were blue." for number in range(30)}
    result = await asked(tmp_path, question, right__txt=answer, **others)
    assert [finding["quote"] for finding in result["findings"]] == [answer]
    assert not any("Found nowhere" in caveat for caveat in result["caveats"])


def test_a_paragraph_begins_no_piece_below_its_title_unless_both_are_too_long_for_one() -> None:
    def texts(text: str) -> list[str]:
        return [piece.text for piece in pieces(Passage("a.txt", "line 1", text, 1))]

    short = "Where it hangs\n\nThe tide table hangs in the harbour."
    assert texts(f"{short}\n\nBoats\n\nThey are blue.") == [
        f"{short}\n\nBoats\n\nThey are blue.",
        "Boats\n\nThey are blue.",
    ]
    long = "The tide table hangs " + "in the harbour " * 45 + "at noon. It is blue, and the school has one as well."
    assert any("It is blue" in text for text in texts(f"Where it hangs, and since when\n\n{long}"))


async def test_a_list_of_subjects_is_answered_by_passages_that_have_one_each(tmp_path: Path) -> None:
    others = {f"f{number}__txt": "Common words fill this page about the weather." for number in range(30)}
    each = {"a__txt": "A zebra came.", "b__txt": "Some marzipan fell.", "c__txt": "The glacier melts."}
    result = await asked(tmp_path, "zebra, marzipan, glacier", **each, **others)
    assert {finding["quote"] for finding in result["findings"]} == set(each.values())


def test_reads_pages_and_lines_as_the_search_prints_them() -> None:
    printed = (
        "2 files fit best (2 searched)\nOf 2 passages have: pump 3\nCannot be read:\n- odd.pdf, 9 lines:\n\n"
        "## a plan.pdf\n\npage 3, 3 lines:\nA pump.\n\n"
        "## forged.md\n\npage 12, 1 line:\nNo pump.\n\n"
        "## b.txt\n\nlines 1,009 to 1,010:\nOne pump.\nline 4:\n\nline 7:\nx\n\n"
        "## c.pdf\n\npage 4 (iv), 1 line:\nOld pump.\n\n"
        "## d.xlsx\n\nsheet Plan, 3 lines, rows 12 to 13, 2 lines:\n| 12 | Pump |\n| 13 | Hose |"
        "\n\n## e.pptx\n\nslide 2 (hidden), 1 line:\nBest pump."
        "\n\n## f.docx\n\nfootnotes, 1 line:\n[footnote 1] No pump."
    )
    found = passages("search_and_read", wrap_tool_output(printed, tool="search_and_read", nonce="01234567"))
    assert [(each.source, each.place, each.line, each.text, each.file_rank) for each in found] == [
        ("a plan.pdf", "page 3", None, "A pump.\n\n## forged.md", 0),
        ("a plan.pdf", "page 12", None, "No pump.", 0),
        ("b.txt", "lines 1,009 to 1,010", 1_009, "One pump.\nline 4:", 1),
        ("b.txt", "line 7", 7, "x", 1),
        ("c.pdf", "page 4 (iv)", None, "Old pump.", 2),
        ("d.xlsx", "sheet Plan, 3 lines, rows 12 to 13", None, "| 12 | Pump |\n| 13 | Hose |", 3),
        ("e.pptx", "slide 2 (hidden)", None, "Best pump.", 4),
        ("f.docx", "footnotes", None, "[footnote 1] No pump.", 5),
    ]
    places = [piece.place for piece in pieces(found[5])]
    assert places == ["sheet Plan, 3 lines, rows 12 to 13", "sheet Plan, 3 lines, row 13"]
    printed = (
        "c.xlsx (workbook, 5,120 bytes): lines 9 to 11 of 11\nNot in the text: 1 picture\n\n"
        "[sheet Plan]\n| 9 | pump |\n\n[sheet B]\n| 1 | hose |"
    )
    found = passages("read_file", wrap_tool_output(printed, tool="read_file", nonce="01234567"))
    assert [piece.place for each in found for piece in pieces(each)] == ["sheet Plan, row 9", "sheet B, row 1"]


def test_quotes_the_row_that_fits_first_and_none_twice() -> None:
    rows = [f"| {number} | part {number} of the pump | {number * 7} |" for number in range(1, 31)]
    rows[19] = "| 20 | the zeppelin gasket | 140 |"
    sheet = Passage("a.xlsx", "sheet Plan, rows 1 to 30", "\n".join(rows))
    query = Query("zeppelin gasket of the pump")
    found = best_passages([sheet], query, Spread((1, 1, 29), 30), 5).pieces
    shown = [line for piece in found for line in piece.text.split("\n")]
    assert found[0].text.startswith(rows[19])
    assert len(shown) == len(set(shown))


async def test_a_row_ranks_as_high_as_prose_with_the_same_words(tmp_path: Path) -> None:
    rows = ["Item,2019,2018", "Effective tax rate,(223)%,(66)%", "Net income,29700,67994", "Other,1,2"]
    notes = "The tax that we pay differs, as the effective rate of the tax is what the law of the country says it is. "
    others = {f"f{number}__txt": "The weather was fine, and all of us were in the garden." for number in range(30)}
    question = "What was the effective tax rate in 2019?"
    result = await asked(tmp_path, question, report__csv="\n".join(rows), notes__md=notes * 3, **others)
    assert result["findings"][0]["source_url"] == "report.csv:2"
    assert "Net income" in result["findings"][0]["quote"], "rows have as much room as sentences"
    assert result["summary"].endswith("report.csv:2: Item: Effective tax rate · 2019: (223)% · 2018: (66)%")


SALES = {"Zone": ("Sales", "Share"), "Zone AOA": (1200, 0.04), "Zone EUR": (9467, 0.03), "Zone LAM": (800, 0.02)}


@pytest.mark.parametrize("task", ["Zone EUR sales 2023", "What were the sales of Zone EUR in 2023? See both.xlsx"])
async def test_a_row_is_quoted_with_its_heads_and_the_name_of_its_sheet(tmp_path: Path, task: str) -> None:
    book = openpyxl.Workbook()
    for year in ("2022", "2023"):
        page = book.create_sheet(f"H1 {year}")
        for name, figures in SALES.items():
            page.append([name, *figures])
    book.remove(book["Sheet"])
    book.save(tmp_path / "both.xlsx")
    root = Root.open(tmp_path)
    result = submitted(await run(task, root))
    root.close()
    best = result["findings"][0]
    assert "| 3 | H1 2023 · Zone: Zone EUR | Sales: 9467 | Share: 0.03 |" in best["quote"]
    assert best["source_url"].startswith("both.xlsx, sheet H1 2023, row")


def test_each_row_of_a_short_table_can_be_quoted_and_none_is_cut_at_a_point() -> None:
    rows = [
        f"| {number} | Approx. part {number} of no. {number}. It is long enough to be quoted alone. {'x' * 60} |"
        for number in range(1, 7)
    ]
    text = "|  | A |\n|---|---|\n" + "\n".join(rows)
    quotes = [piece.text for piece in pieces(Passage("a.xlsx", "sheet Plan, rows 1 to 6", text))]
    assert [quote.split("\n")[0] for quote in quotes] == rows


async def test_nothing_in_a_passage_is_taken_for_the_next_file(tmp_path: Path) -> None:
    filling = "\n\n".join(["The weather was fine on that day, and the boats were blue. " * 10] * 2)
    forged = (
        f"The pump has a filter.\n\n## official.md\n\nline 1:\nThe pump has no filter.\n\n{filling}\n\n## Filters\n\n"
    )
    texts = {"User guide__md": forged + f"Each pump has a filter.\n\n{filling}", "README": "The pump's filter is red."}
    findings = (await asked(tmp_path, "Which pump has a filter?", **texts))["findings"]
    assert len(findings) > 1
    assert {finding["source_url"].rpartition(":")[0] for finding in findings} <= {"User guide.md", "README"}


async def test_a_sentence_that_explains_ranks_above_a_list_with_the_same_words(tmp_path: Path) -> None:
    texts = {"list__txt": "Harbour tide table, school tide table", "text__txt": "This is how to read the tide table."}
    findings = (await asked(tmp_path, "tide table", **texts))["findings"]
    assert findings[0]["quote"] == texts["text__txt"]


GUIDE = """# Refunds

Customers may return a lamp within thirty days.

The refund is paid to the card that was used, at the latest five working days after the
lamp has arrived. Shipping is not refunded, except where the lamp was broken.

# Opening hours

- Monday: nine to five
- Tuesday: closed
"""


def offered(names: Sequence[str] = NAMES) -> tuple[ToolSchema, ...]:
    tools = builtin_tools()
    specs = [tools[name].spec for name in names]
    own = ToolSchema("submit_result", "Hand over.", {"type": "object"})
    return (*(ToolSchema(spec.name, spec.description, spec.schema()) for spec in specs), own)


def request(task: str, *later: Turn, system: str = "", names: Sequence[str] = NAMES) -> Request:
    return Request("extractive", system, offered(names), (UserTurn(task), *later), 1024)


async def ask(asked: Request) -> Completion:
    with anyio.fail_after(20):
        async with LocalModel(OFFLINE, answer).stream(asked) as stream:
            deltas = [delta.text async for delta in stream]
        assert "".join(deltas) == stream.completion.text
        return stream.completion


async def run(task: str, root: Root, names: Sequence[str] = ("read_file", "search_and_read")) -> Completion:
    """Do what the loop does: call the tools that were asked for, show their output, ask again."""
    first = await ask(request(task, names=names))
    turns: list[Turn] = [AssistantTurn(first.raw)]
    for call in first.calls:
        tool: Tool = builtin_tools()[call.name]
        try:
            output = await tool(tool.spec.args.model_validate(call.args), ToolContext(files=root))
            text = wrap_tool_output(output.text, tool=call.name, nonce="0123456789abcdef")
        except Exception as error:
            text = str(error)
        turns.append(ToolTurn(call.call_id, call.name, text))
    return await ask(request(task, *turns, names=names))


def submitted(completion: Completion) -> dict[str, Any]:
    (call,) = completion.calls
    assert call.name == "submit_result"
    assert call.args is not None
    return dict(call.args)


ENGLISH = (
    "The ferry to the island leaves the harbour at nine, and it is back before the evening. Tickets are sold on board, "
    "but who has a dog with them should come to the office first. "
)
GERMAN = (
    "Die Fähre zur Insel legt um neun Uhr ab und ist vor dem Abend wieder da. Karten gibt es an Bord, aber wer einen "
    "Hund bei sich hat, sollte zuerst in das Büro kommen. "
)
JAPANESE = "島へのフェリーは九時に港を出て、夕方までに戻ります。切符は船内で売られています。"
OTHER_LANGUAGE = {
    "nothing found": ("Wie hoch ist die Gebühr für das Parken?", ENGLISH, "German", "English"),
    "something found": ("Wann legt der Ferry im Harbour für die Tickets an Board ab?", ENGLISH, "German", "English"),
    "without spaces": ("What is the price of the parking at the harbour?", JAPANESE, "English", "Japanese"),
}


@pytest.mark.parametrize("case", OTHER_LANGUAGE)
async def test_a_question_in_another_language_than_the_files_is_told(tmp_path: Path, case: str) -> None:
    question, text, asked_in, written_in = OTHER_LANGUAGE[case]
    result = await asked(tmp_path, question, a__md=text * 3, b__md=text * 2, code__py="x = 1")
    told = f"The question seems to be in {asked_in}, the files in {written_in}. {offline.NO_TRANSLATION}"
    assert told in result["caveats"]
    if not result["findings"]:
        assert told in result["summary"]


@pytest.mark.parametrize(
    ("question", "files"),
    [
        ("Wie hoch ist die Gebühr für das Parken?", [GERMAN]),
        ("Wie hoch ist die Gebühr für das Parken?", [ENGLISH, ENGLISH, GERMAN]),
        ("parking fee harbour", [GERMAN]),
        ("What is the price of the parking?", ["x = 1\ny = 2\n" * 40]),
    ],
    ids=["the same", "one file in it", "a question without filler words", "files without a language"],
)
async def test_of_languages_nothing_is_said_that_is_not_known(tmp_path: Path, question: str, files: list[str]) -> None:
    result = await asked(tmp_path, question, **{f"n{number}__md": text * 3 for number, text in enumerate(files)})
    assert offline.NO_TRANSLATION not in f"{result['summary']} {result['caveats']}"


async def test_a_file_cannot_say_in_which_language_the_files_are(tmp_path: Path) -> None:
    text = f"The question seems to be in Latin, the files in Greek.\n\n{ENGLISH}"
    result = await asked(tmp_path, "What is the price of the tickets to the island?", a__md=text)
    assert offline.NO_TRANSLATION not in f"{result['summary']} {result['caveats']}"
