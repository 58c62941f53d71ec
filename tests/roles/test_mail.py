"""Emails: headers, bodies, forwarded messages; attachments are named. Hostile ones do no harm."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from email.message import EmailMessage

import pytest

from ava_roles.errors import ToolFailed
from ava_roles.texts import parser_process
from ava_roles.texts.extracted import format_of
from ava_roles.texts.formats import read_mail

HEAD = b"From: a@x.org\r\nSubject: Rent\r\n"


def mail(body: str, **headers: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Ann <a@x.org>", "b@x.org", "Kündigung"
    for name, value in headers.items():
        message[name] = value
    message.set_content(body)
    return message


@pytest.mark.parametrize("encoding", ["7bit", "8bit", "base64", "quoted-printable"])
def test_reads_a_body_in_any_transfer_encoding(encoding: str) -> None:
    body = "The rent is 1150 euro.\n" if encoding == "7bit" else "Ich kündige zum 31. März.\n"
    message = mail("x")
    message.set_content(body, cte=encoding)
    found = read_mail(message.as_bytes())
    assert found.text() == f"From: Ann <a@x.org>\nTo: b@x.org\nSubject: Kündigung\n\n{body.strip()}"
    assert (found.title, found.missing) == ("Kündigung", ())


def test_reads_the_plain_form_of_two_and_else_the_words_of_the_page() -> None:
    message = mail("plain words")
    message.add_alternative("<p>page words</p>", subtype="html")
    assert "plain words" in read_mail(message.as_bytes()).text()
    assert "page words" not in read_mail(message.as_bytes()).text()
    page = EmailMessage()
    page["Subject"] = "x"
    page.set_content("<style>p {}</style><p>page words</p><script>no()</script>", subtype="html")
    assert read_mail(page.as_bytes()).text() == "Subject: x\n\npage words"
    empty = mail("  \n")
    empty.add_alternative("<p>page words</p>", subtype="html")
    assert "page words" in read_mail(empty.as_bytes()).text()


def test_reads_a_page_that_says_more_than_the_plain_form_beside_it() -> None:
    message = mail("Please use a program that shows pages.")
    message.add_alternative("<p>The rent is 1150 euro a month from May on, and heating is 90.</p>", subtype="html")
    assert read_mail(message.as_bytes()).text().endswith("from May on, and heating is 90.")
    message = mail("The rent is 1150 euro a month.")
    message.add_alternative("<p>The rent is <b>1200</b> euro a month.</p>", subtype="html")
    found = read_mail(message.as_bytes())
    assert found.text().count("euro") == 1
    assert found.missing == ("words that only the body's form as a page has: 1200",)


def test_counts_the_addresses_of_links_that_nobody_sees() -> None:
    links = "<a href='https://x.org/a'>here</a> <a class=b href=https://x.org/b>https://x.org/b</a>"
    page = EmailMessage()
    page["Subject"] = "x"
    page.set_content(links, subtype="html")
    assert read_mail(page.as_bytes()).missing == ("1 address of links",)


def test_reads_a_body_whose_parts_cannot_be_told_apart() -> None:
    found = read_mail(HEAD + b"Content-Type: multipart/mixed\r\n\r\nthe words\r\n")
    assert found.text().endswith("the words")
    assert found.missing == ("what is damaged in a body of several parts",)


def test_names_attachments_and_pictures_with_their_sizes() -> None:
    message = mail("see below")
    message.add_attachment(b"%PDF-1.7", maintype="application", subtype="pdf", filename="lease ü.pdf")
    message.add_attachment("attached words", filename="notes.txt")
    message.add_attachment(b"x" * 2_000, maintype="image", subtype="png")
    found = read_mail(message.as_bytes())
    assert "attached words" not in found.text()
    assert found.missing == (
        "an attachment: lease ü.pdf (8 bytes)",
        "an attachment: notes.txt (15 bytes)",
        "a picture: image/png (2,000 bytes)",
    )


def test_names_pictures_of_a_page_whose_plain_form_is_read() -> None:
    message = mail("plain words")
    message.add_alternative("<p>plain words</p><img src='cid:1'>", subtype="html")
    pages = message.get_payload()
    assert isinstance(pages, list)
    page = pages[1]
    assert isinstance(page, EmailMessage)
    page.add_related(b"png", maintype="image", subtype="png", cid="<1>")
    found = read_mail(message.as_bytes())
    assert found.text().endswith("plain words")
    assert found.missing == ("a picture: image/png (3 bytes)",)


def test_reads_forwarded_messages_as_parts() -> None:
    inner = mail("inner words")
    outer = mail("outer words")
    outer.add_attachment(inner)
    found = read_mail(outer.as_bytes())
    assert [part.place for part in found.parts] == ["", "forwarded message 1"]
    assert found.parts[1].text.endswith("Subject: Kündigung\n\ninner words")


def test_reads_the_status_of_a_delivery_and_names_sealed_bodies() -> None:
    status = b"Content-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; x.org\r\n\r\nAction: failed\r\n\r\n"
    assert "Action: failed" in read_mail(HEAD + status).text()
    sealed = b"Content-Type: application/pkcs7-mime; name=smime.p7m\r\n\r\nMIIB"
    assert read_mail(HEAD + sealed).missing == ("an encrypted or sealed body",)


@pytest.mark.parametrize(
    ("charset", "codec"),
    [("windows-1251", "cp1251"), ("gb2312", "gb2312"), ("iso-2022-jp", "iso2022_jp"), ("x-unknown", "utf-8")],
)
def test_reads_a_body_in_its_charset(charset: str, codec: str) -> None:
    text = {"cp1251": "Договор аренды", "gb2312": "租金", "iso2022_jp": "家賃", "utf-8": "Miete: 5 €"}[codec]
    body = base64.encodebytes(text.encode(codec))
    head = f"Content-Type: text/plain; charset={charset}\r\nContent-Transfer-Encoding: base64\r\n\r\n".encode()
    assert read_mail(HEAD + head + body).text().endswith(text)


def test_reads_an_email_in_a_child_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_process, "has_extra", lambda _name: False)
    kind = format_of("a.EML")
    assert kind is not None
    assert "rent" in parser_process.read_document(kind, mail("the rent").as_bytes()).text()


def test_a_long_body_is_cut_and_that_is_said() -> None:
    found = read_mail(HEAD + b"\r\n" + b"words " * 1_000_000)
    assert len(found.text()) < 5_100_000
    assert found.missing == ("the text after the first 5,000,000 characters",)


# -- attacks ------------------------------------------------------------------------------------------------------


def multipart(boundary: str, inside: bytes) -> bytes:
    return f'Content-Type: multipart/mixed; boundary="{boundary}"\r\n\r\n--{boundary}\r\n'.encode() + inside


def nested(levels: int) -> bytes:
    text = b"Content-Type: text/plain\r\n\r\nKEPTWORD\r\n"
    for level in range(levels):
        text = multipart(f"b{level}", text)
    return HEAD + text


def forwarded(levels: int) -> bytes:
    return HEAD + b"Content-Type: message/rfc822\r\n\r\nSubject: x\r\n" * levels + b"\r\nKEPTWORD"


def header(line: bytes) -> Callable[[], bytes]:
    return lambda: HEAD + line + b"\r\n\r\nKEPTWORD"


def body(head: str, content: bytes) -> Callable[[], bytes]:
    return lambda: HEAD + head.encode() + b"\r\n\r\n" + content


KEPT = "KEPTWORD"
PAGE = "Content-Type: text/html"
ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "no headers of an email"),
    "not an email": (lambda: b"\x00\xff" * 5_000, "no headers of an email"),
    "20 levels": (lambda: nested(20), KEPT),
    "300 levels": (lambda: nested(300), "cannot be read|nested too deep"),
    "5,000 levels": (lambda: nested(5_000), "too many parts"),
    "60 messages in messages": (lambda: forwarded(60), "nested too deep"),
    "2,000 messages in messages": (lambda: forwarded(2_000), "cannot be read|nested too deep"),
    "20,000 parts": (
        lambda: HEAD + multipart("b", b"\r\nx\r\n--b\r\n" * 20_000),
        "a part of too many",
    ),
    "an address list of 2 MB": (header(b"To: " + b"a@x.org, " * 250_000), KEPT),
    "comments in comments": (header(b"To: " + b"(" * 100_000), KEPT),
    "quotes in quotes": (header(b'To: "' + b'\\"' * 500_000), KEPT),
    "groups in groups": (header(b"To: " + b"a:" * 100_000), KEPT),
    "encoded words": (header(b"Subject: " + b"=?utf-8?q?a?= " * 100_000), KEPT),
    "a header of 200,000 lines": (header(b"Subject: a\r\n" + b" b\r\n" * 200_000 + b" c"), KEPT),
    "200,000 headers": (header(b"\r\n".join(b"X: y" for _ in range(200_000))), KEPT),
    "parameters": (header(b"Content-Type: text/plain; " + b"a=b; " * 100_000), KEPT),
    "parameters in pieces": (
        header(b"Content-Type: text/plain; " + b"; ".join(b"a*%d*=x" % n for n in range(50_000))),
        KEPT,
    ),
    "a date of a million digits": (header(b"Date: " + b"9" * 1_000_000), KEPT),
    "a charset that unpacks": (body("Content-Type: text/plain; charset=zlib", b"KEPTWORD"), KEPT),
    "a charset of the square": (
        body("Content-Type: text/plain; charset=punycode", b"KEPTWORD" + b"a-" * 900_000),
        KEPT,
    ),
    "an unknown charset": (body("Content-Type: text/plain; charset=" + "x" * 5_000, b"KEPTWORD"), KEPT),
    "broken base64": (body("Content-Transfer-Encoding: base64", b"S0VQVFdPUkQ=\r\n===!" + b"%" * 10_000), KEPT),
    "base64 of 10 MB": (
        body("Content-Transfer-Encoding: base64", base64.encodebytes(b"KEPTWORD" + b" a" * 5_000_000)),
        KEPT,
    ),
    "uuencoded nonsense": (body("Content-Transfer-Encoding: x-uuencode", b"begin 644 x\n" + b"~" * 100_000), "From"),
    "a zip bomb": (
        body("Content-Type: application/zip; name=a.zip\r\nContent-Transfer-Encoding: base64", b"UEsDBA=="),
        r"a\.zip",
    ),
    "a body elsewhere": (
        body("Content-Type: message/external-body; access-type=URL; URL=http://127.0.0.1:9/", b"\r\nx"),
        "",
    ),
    "a page with an entity": (
        body(PAGE, b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><p>KEPTWORD &f;</p>'),
        KEPT,
    ),
    "a page of a million elements": (body(PAGE, b"KEPTWORD" + b"<b>" * 1_000_000), KEPT),
    "a page with pictures elsewhere": (body(PAGE, b"KEPTWORD<img src='http://127.0.0.1:9/x'>"), KEPT),
    "an endless boundary": (
        lambda: HEAD + multipart("b" * 100_000, b"\r\nKEPTWORD\r\n") + b"--" + b"b" * 99_999,
        "",
    ),
    "a name with a path and line breaks": (
        body("Content-Type: x/y; name*=utf-8''..%2F..%2Fetc%0D%0Ax", b"KEPTWORD"),
        r"\.\./\.\./etc x",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_email_is_refused_or_read_in_bounds(name: str) -> None:
    make, says = ATTACKS[name]
    data = make()
    began = time.process_time()
    try:
        found = read_mail(data)
        said = "\n".join((found.text(), *found.missing))
        assert len(said) < 6_000_000
    except ToolFailed as refused:
        said = str(refused)
        assert len(said) < 300
    assert time.process_time() - began < 25
    assert "root:" not in said
    assert re.search(says, said)


def test_reads_a_forwarded_message_in_base64() -> None:
    inner = mail("The fee is 9 percent, für März.").as_bytes()
    parts = (
        HEAD + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nsee below\r\n--b\r\n"
        b"Content-Type: message/rfc822\r\nContent-Transfer-Encoding: BASE64\r\n\r\n"
        + base64.encodebytes(inner)
        + b"\r\n--b--\r\n"
    )
    found = read_mail(parts)
    assert [part.place for part in found.parts] == ["", "forwarded message 1"]
    assert "Subject: Kündigung" in found.parts[1].text
    assert found.parts[1].text.endswith("The fee is 9 percent, für März.")


def test_a_forwarded_message_whose_code_hides_no_message_is_shown_as_it_is() -> None:
    parts = (
        HEAD + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: message/rfc822\r\n"
        b"Content-Transfer-Encoding: base64\r\n\r\nbm8gaGVhZGVycyBoZXJl\r\n--b--\r\n"
    )
    assert "bm8gaGVhZGVycyBoZXJl" in read_mail(parts).text()


@pytest.mark.parametrize(
    ("subject", "charset"),
    [
        ("Miete für März", "iso-8859-1"),
        ("Miete für März, 1.150 €", "windows-1252"),
        ("家賃の支払いについてのお知らせ", "shift_jis"),
        ("Оплата аренды за март", "koi8-r"),
        ("価格のお知らせ", "iso-2022-jp"),
        ("東京 für März", "utf-8"),
    ],
)
def test_a_subject_whose_bytes_are_written_as_they_are_is_read(subject: str, charset: str) -> None:
    head = b"Subject: " + subject.encode(charset) + b'\nTo: "' + subject.encode(charset) + b'" <a@example.org>\n'
    body = f"Content-Type: text/plain; charset={charset}\n\n".encode() + subject.encode(charset)
    found = read_mail(head + body)
    assert found.title == subject
    assert found.text().count(subject) == 3


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_an_email_that_was_saved_in_another_form_of_unicode_is_read(codec: str) -> None:
    text = "Subject: Miete für März\nContent-Type: text/plain; charset=iso-8859-1\n\nSie beträgt 1.150 €.\n"
    found = read_mail(text.encode(codec))
    assert found.text() == "Subject: Miete für März\n\nSie beträgt 1.150 €."


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("=?ISO-2022-JP?B?GyRCLSEySERCGyhC?=", "①家賃"),
        ("=?GB2312?B?1+K98MM=?=\n =?GB2312?B?v9TC?= 1000", "租金每月 1000"),
        ("=?utf-8?Q?Geb=C3?= =?utf-8?Q?=BChr?= 5", "Gebühr 5"),
        ("=?utf-8*de?Q?M=C3=A4rz?=", "März"),
        ("=?ks_c_5601-1987?B?v/m8vA==?=", "월세"),
        ("=?iso-8859-1?Q?M=FCller=2C_Hans?=", "Müller, Hans"),
        ("=?x-unknown?B?TWlldGU=?=", "Miete"),
    ],
)
def test_words_of_a_header_are_read_in_their_encoding(written: str, shown: str) -> None:
    file = f'Content-Type: application/pdf\nContent-Disposition: attachment; filename="{written}"\n\nx'
    parts = f"--b\nContent-Type: text/plain\n\nx\n--b\n{file}\n--b--\n"
    head = f"Subject: {written}\nContent-Type: multipart/mixed; boundary=b\n\n"
    found = read_mail(f"{head}{parts}".encode())
    assert found.title == shown
    assert found.text().startswith(f"Subject: {shown}\n")
    assert found.missing == (f"an attachment: {shown} (1 byte)",)


def test_an_address_keeps_its_parts_whatever_its_words() -> None:
    data = b"To: =?iso-8859-1?Q?M=FCller=2C_Hans?= <h@x.org>, =?ISO-2022-JP?B?GyRCLSEySERCGyhC?= <j@x.org>\n\nx"
    assert read_mail(data).text().startswith('To: "Müller, Hans" <h@x.org>, ①家賃 <j@x.org>')
